"""Wrong inputs, indices and members: each raises an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    build_members,
    normal_tensor,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import fuse  # noqa: E402

WRONG: list[tuple[Callable[[], nn.Module], Tensor, str]] = [
    (lambda: nn.Linear(4, 3), normal_tensor(5, 3), "shapes cannot be multiplied"),
    (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(4, 3)),
        normal_tensor(5, 4),
        "cannot be multiplied",
    ),
    (
        lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(3, 4, 3)),
        normal_tensor(5, 2, 6, 6),
        "expected input",
    ),
    (lambda: nn.BatchNorm1d(4), normal_tensor(1, 4), "Expected more than 1 value per channel"),
    (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        normal_tensor(1, 4),
        r"more than 1 value per channel.*\[1, 4\]",
    ),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm2d(4)), normal_tensor(5, 4), "expected 4D input"),
    (lambda: nn.Embedding(5, 3), torch.tensor([5]), "out of range"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(5)), normal_tensor(5, 4), "normalized_shape"),
    (lambda: nn.LSTM(4, 3), normal_tensor(2, 2, 5), "input.size"),
    (lambda: nn.MultiheadAttention(4, 2), normal_tensor(2, 2, 4), "key"),
    (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(2, 4)), normal_tensor(2, 2, 5, 5), "."),
    (lambda: nn.Linear(4, 3), normal_tensor(5, 4).float(), "dtype"),
]


@pytest.mark.parametrize(("make", "x", "words"), WRONG)
def test_wrong_inputs_raise_the_error_of_a_single_member(
    make: Callable[[], nn.Module], x: Tensor, words: str
) -> None:
    models = build_members(make)
    with pytest.raises(Exception, match=words) as ordinary:
        models[0](x)
    models = build_members(make)
    array = fuse(models)
    with pytest.raises(type(ordinary.value)) as raised:  # a FusionWarning would be an error, too
        array(x)
    assert str(raised.value) == str(ordinary.value)
    assert_same_state(array, models)
    assert not any("forward" in vars(m) for m in array.body.modules())


def test_members_must_be_in_front() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match=r"shape \(5, 4\), expected 3 members in front"):
        array(normal_tensor(5, 4), members=True)
    with pytest.raises(NotFusible, match=r"shape \(\), expected 3 members"):
        array(torch.tensor(1.0), members=True)
    with pytest.raises(NotFusible, match="members has 2 entries, expected one for each of 1"):
        array(normal_tensor(5, 4), members=[True, False])
    with pytest.raises(NotFusible, match=r"shape \(4, 5\), expected 3 members"):
        array.loss(nn.functional.mse_loss, array(normal_tensor(5, 4)), normal_tensor(4, 5), members=True)


def test_a_wrong_state_dict_is_not_loaded() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    before = array.member_state_dict(1)
    for state, words in (
        (nn.Linear(4, 2).state_dict(), "size mismatch for weight"),
        ({"weight": normal_tensor(3, 4)}, "Missing key.*bias"),
        ({**before, "more": normal_tensor(1)}, "Unexpected key.*more"),
    ):
        with pytest.raises(NotFusible, match=rf"(?s)member 1 cannot be loaded: .*{words}"):
            array.load_member(1, state)
    assert_same(array.member_state_dict(1), before, "weights")


@pytest.mark.parametrize("index", [3, -4])
def test_a_member_index_out_of_range_is_refused(index: int) -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    calls: list[Callable[[], Any]] = [
        lambda: array.member(index),
        lambda: array.member_state_dict(index),
        lambda: array.drop([0, index]),
        lambda: array.load_member(index, {}),
    ]
    for call in calls:
        with pytest.raises(NotFusible, match=rf"no member {index}, the array has 3"):
            call()
    assert len(array) == 3


def test_dropping_all_members_is_refused() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match="all members would leave"):
        array.drop([0, 1, 2])
    assert len(array) == 3


def test_joining_members_must_have_the_same_architecture() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match=r"weight has the shape \(2, 4\), expected \(3, 4\)"):
        array.add([nn.Linear(4, 2).double()])
    with pytest.raises(NotFusible, match=r"torch\.float32, expected torch\.float64"):
        array.add([nn.Linear(4, 3)])
    array.add([])
    assert len(array) == 3
