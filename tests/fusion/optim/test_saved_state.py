"""Saved states of other optimisers are refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from support.optimiser_pairs import NAMES, Both, ordinary_class  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402

B = 2


def make_array(name: str, **hyper: Any) -> Any:
    array = getattr(optim, name)([nn.Parameter(torch.ones(B, 3, 4))], **hyper)
    for param in array.parameters():
        param.grad = torch.ones_like(param)
    array.step()
    return array


def make_single(name: str, *shapes: tuple[int, ...], **hyper: Any) -> Any:
    params = [nn.Parameter(torch.ones(shape)) for shape in shapes or [(3, 4)]]
    single = ordinary_class(name)(params, **hyper)
    for param in params:
        param.grad = torch.ones_like(param)
    single.step()
    return single


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_a_member_of_another_class_is_refused(name: str, other: str) -> None:
    array, saved = make_array(name), make_single(other).state_dict()
    before = array.member_state_dict(1)
    if name == other:
        array.load_member(1, saved)
        return
    with pytest.raises(ConfigError, match=r"the saved state has|of the saved state has|in the saved state"):
        array.load_member(1, saved)
    torch.testing.assert_close(array.member_state_dict(1), before)


# States of arrays of Adam and AdamW have the same format.
PAIRS = [pair for pair in product(NAMES, NAMES) if set(pair) != {"Adam", "AdamW"}]


@pytest.mark.parametrize(("name", "other"), PAIRS)
def test_an_array_of_another_class_is_refused(name: str, other: str) -> None:
    array, saved = make_array(name), make_array(other).state_dict()
    if name == other:
        array.load_state_dict(saved)
        return
    before = array.member_state_dict(1)
    with pytest.raises(ConfigError, match=r"of the saved state has|in the saved state"):
        array.load_state_dict(saved)
    torch.testing.assert_close(array.member_state_dict(1), before)


def without(saved: dict[str, Any], key: str) -> dict[str, Any]:
    groups = [{name: group[name] for name in group if name != key} for group in saved["param_groups"]]
    return {**saved, "param_groups": groups}


WRONG: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: {"model": 1}, "the saved state has the keys model, expected state and param_groups", "not that"),
    (lambda: None, "the saved state has the type NoneType", "not that of a model"),
    (
        lambda: without(make_single("Adam").state_dict(), "lr"),
        "group 0 of the saved state has no lr, expected the hyper-parameters of Adam: lr, betas, eps",
        "load a state of Adam",
    ),
    (lambda: without(make_single("Adam").state_dict(), "params"), "has no params, expected their numb", ""),
    (lambda: make_single("Adam", (3, 4), (2,)).state_dict(), r"groups of \[2\] parameters, expected", ""),
    (lambda: make_single("Adam", (4,)).state_dict(), r"exp_avg .* shape \[4\] .* expected \[3, 4\]", ""),
    (lambda: make_array("Adam").state_dict(), "lr of group 0 .* has 2 values, expected one", "load_state_d"),
    (
        lambda: make_single("AdamW").state_dict(),
        "has decoupled_weight_decay=True, but Adam always has decoupled_weight_decay=False",
        "AdamW's by fusion.AdamW",
    ),
]


@pytest.mark.parametrize(("make", "message", "hint"), WRONG)
def test_a_wrong_state_of_a_member_is_named(make: Callable[[], Any], message: str, hint: str) -> None:
    array = make_array("Adam")
    with pytest.raises(ConfigError, match=message) as caught:
        array.load_member(0, make())
    assert hint in caught.value.hint


def test_the_state_of_one_member_is_no_state_of_an_array() -> None:
    with pytest.raises(ConfigError, match=r"lr of group 0 of the saved state is 0\.001, expected") as caught:
        make_array("Adam").load_state_dict(make_single("Adam").state_dict())
    assert "load_member(i, state)" in caught.value.hint
    with pytest.raises(ConfigError, match="group 0 of the saved state has no lr"):
        make_array("Adam").load_state_dict(without(make_array("Adam").state_dict(), "lr"))
    with pytest.raises(ConfigError, match="the saved state has the keys none"):
        make_array("Adam").load_state_dict({})


def test_states_of_older_versions_of_torch_are_loaded() -> None:
    saved = without(without(make_single("NAdam").state_dict(), "maximize"), "decoupled_weight_decay")
    array = make_array("NAdam")
    array.load_member(0, saved)
    with pytest.raises(ConfigError, match="the saved state has maximize=False, the array True"):
        make_array("NAdam", maximize=True).load_member(0, saved)


@pytest.mark.parametrize("initial", [0.0, [0.5, 2.0]])
def test_adagrad_has_state_before_the_first_step(initial: Any) -> None:
    param = nn.Parameter(torch.ones(B, 3))
    array = optim.Adagrad([param], initial_accumulator_value=initial)
    single = nn.Parameter(torch.ones(3))
    loaded = torch.optim.Adagrad([single])
    loaded.load_state_dict(array.member_state_dict(1))
    param.grad = torch.ones_like(param)
    single.grad = torch.ones_like(single)
    array.step()
    loaded.step()  # raises a KeyError in torch.optim without a sum
    torch.testing.assert_close(param[1], single)


def test_a_member_of_another_kind_is_refused() -> None:
    both = Both("Adam", {})
    saved = torch.optim.Adam(both.fresh(), amsgrad=True).state_dict()
    with pytest.raises(ConfigError, match="the saved state has amsgrad=True, the array False"):
        both.array.load_member(0, saved)
    with pytest.raises(ConfigError, match=r"the saved state has groups of \[2\] parameters, expected \[4\]"):
        both.array.load_member(0, torch.optim.Adam(both.fresh()[:2]).state_dict())
    with pytest.raises(ConfigError, match="no member 9, expected 0 to 3"):
        both.array.member_state_dict(9)
