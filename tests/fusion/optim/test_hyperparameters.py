"""Hyper-parameters of arrays: one value or one per member, and clear refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from support.optimiser_pairs import Both  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"lr": [0.1, 0.1, 0.1, -0.1]}, "lr of member 3 is -0.1, expected at least 0"),
        ({"lr": -1}, "lr is -1.0, expected at least 0"),
        ({"lr": [0.1, 0.2, 0.3]}, r"lr has 3 values, expected one or 4 \(one per member\)"),
        ({"lr": float("nan")}, "lr is nan"),
        (
            {"betas": ([0.9, 0.9, 1.0, 0.9], 0.99)},
            r"betas\[0\] of member 2 is 1.0, expected at least 0 and below 1",
        ),
        ({"betas": [(0.9, 0.99)] * 3}, "betas has 3 pairs, expected one or 4"),
        ({"betas": (0.9, 0.99, 0.999)}, "betas has 3 values, expected a pair"),
        ({"eps": torch.tensor([1.0, 1.0, -1.0, 1.0])}, "eps of member 2"),
    ],
)
def test_an_invalid_hyper_parameter_is_refused_with_the_member(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.Adam([nn.Parameter(torch.zeros(4, 2))], **hyper)


def test_nesterov_needs_momentum_of_every_member() -> None:
    with pytest.raises(ConfigError, match=r"but member 1 has momentum 0.0 and dampening 0.0"):
        optim.SGD([nn.Parameter(torch.zeros(2, 2))], momentum=[0.9, 0], nesterov=True)


def test_values_written_into_groups_are_checked_too() -> None:
    array = optim.Adam([nn.Parameter(torch.zeros(2, 3))])
    array.param_groups[0]["lr"] = [0.1, -0.2]
    with pytest.raises(ConfigError, match=r"lr of member 1 is -0\.2"):
        array.hyper_tensors()


def test_pairs_of_two_members_are_read_by_their_brackets() -> None:
    params = [nn.Parameter(torch.zeros(2, 3))]
    members = optim.Adam(params, betas=[(0.9, 0.99), (0.8, 0.98)]).hyper_tensors()[0]
    assert members["beta1"].tolist() == [0.9, 0.8]
    pair = optim.Adam(params, betas=((0.9, 0.8), (0.99, 0.98))).hyper_tensors()[0]
    assert pair["beta1"].tolist() == [0.9, 0.8]


def test_widths_that_differ_are_refused_with_their_shapes() -> None:
    params = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4, 3))]
    with pytest.raises(ConfigError, match=r"got the shapes \[2, 3\], \[4, 3\]"):
        optim.Adam(params)
    array = optim.Adam(params[:1])
    with pytest.raises(ConfigError, match="the new group has 4 members, the others have 2"):
        array.add_param_group({"params": params[1:]})
    assert len(array.param_groups) == 1
    with pytest.raises(ConfigError, match="no parameter requires gradients"):
        optim.Adam([nn.Parameter(torch.zeros(2), requires_grad=False)])
    with pytest.raises(ConfigError, match="complex"):
        optim.Adam([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"lr": None}, "lr is None, expected one number, or one per member"),
        ({"lr": "fast"}, "lr is 'fast', expected one number"),
        ({"lr": [0.1, None]}, r"lr is \[0\.1, None\], expected one number"),
        ({"lr": [[0.1], [0.2]]}, "expected one number, or one per member"),
        ({"betas": 0.9}, r"betas is 0\.9, expected a pair of numbers"),
        ({"betas": None}, "betas is None, expected a pair"),
    ],
)
def test_a_value_that_is_no_number_is_named(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.Adam([nn.Parameter(torch.zeros(2, 3))], **hyper)


def test_a_group_without_a_hyper_parameter_is_named() -> None:
    array = optim.Adam([nn.Parameter(torch.zeros(2, 3))])
    del array.param_groups[0]["lr"]
    with pytest.raises(
        ConfigError, match=r"a parameter group has no lr, expected .* Adam: lr, betas"
    ) as caught:
        array.hyper_tensors()
    assert 'param_groups[i]["lr"]' in caught.value.hint


def test_a_group_without_parameters_is_named() -> None:
    array = optim.Adam([nn.Parameter(torch.zeros(2, 3))])
    with pytest.raises(ConfigError, match="a parameter group has the keys lr, expected") as caught:
        array.add_param_group({"lr": 0.1})
    assert '"params": array.parameters()' in caught.value.hint
    with pytest.raises(ConfigError, match="a parameter group has the keys lr, expected"):
        optim.Adam([{"lr": 0.1}])
    with pytest.raises(ConfigError, match=r"got 0\.1, expected an array, or an iterable of parameters"):
        optim.Adam(0.1)
    assert len(array.param_groups) == 1


def test_members_that_join_an_array_of_different_rates_need_their_own() -> None:
    both = Both("Adam", {"lr": [0.1, 0.01, 0.02, 0.3]})
    mapping = both.exchange([*both.alone, both.fresh()])
    with pytest.raises(ConfigError, match="lr differs between members"):
        both.array.extend(1, mapping)
    with pytest.raises(ConfigError, match="Adam has no momentum"):
        both.array.extend(1, mapping, lr=0.1, momentum=0.9)
    both.array.extend(1, mapping, lr=0.5)
    assert both.array.param_groups[0]["betas"][0].tolist() == [0.9] * 5
