"""Muon of stacked matrices."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from support.optimiser_pairs import Both  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402
from wattline.fusion.optim.muon import orthogonalise  # noqa: E402

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.mark.parametrize("nesterov", [True, False])
def test_members_agree_to_the_rounding_of_bfloat16(nesterov: bool) -> None:
    both = Both("Muon", {"lr": 0.1, "weight_decay": 0, "nesterov": nesterov}, dtype=torch.float32)
    before = [param.detach().clone() for param in both.params]
    both.step()
    # Each entry moves by up to lr * sqrt(rows / columns). Rounding changes 5 % of that, in torch.optim too.
    both.agree(atol=0.005, rtol=0)
    assert all((new - old).abs().max() > 0.05 for new, old in zip(both.params, before, strict=True))


@pytest.mark.parametrize("shape", [(6, 6), (3, 8), (8, 3)])
def test_the_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    eps = torch.full((5, 1, 1), 1e-7)
    values = torch.linalg.svdvals(orthogonalise(matrices, eps, COEFFICIENTS, 5))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_a_matrix_of_zeros_stays_zero() -> None:
    result = orthogonalise(torch.zeros(2, 3, 4), torch.full((2, 1, 1), 1e-7), COEFFICIENTS, 5)
    assert result.eq(0).all()


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_only_matrices_are_accepted(shape: tuple[int, ...]) -> None:
    params = [nn.Parameter(torch.zeros(3, 4, 5)), nn.Parameter(torch.zeros(3, *shape))]
    with pytest.raises(ConfigError, match="Muon trains matrices, but a parameter has the shape") as caught:
        optim.Muon(params)
    assert str(list(shape)) in str(caught.value)
    assert "p.ndim == 3" in caught.value.hint
    with pytest.raises(ValueError, match="2D parameters"):
        torch.optim.Muon([nn.Parameter(torch.zeros(shape))])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ns_coefficients": (1.0, 2.0)}, "expected three numbers"),
        ({"ns_coefficients": 3.4}, "ns_coefficients is 3.4, expected three numbers"),
        ({"ns_steps": 100}, "ns_steps is 100, expected an integer from 0 to 99"),
        ({"ns_steps": [5, 6]}, r"ns_steps is \[5, 6\], expected an integer"),
        ({"adjust_lr_fn": "adam"}, "adjust_lr_fn is 'adam', expected one of original, match_rms_adamw"),
    ],
)
def test_invalid_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optim.Muon([nn.Parameter(torch.zeros(2, 3, 4))], **setting)


def test_groups_may_have_settings_of_their_own() -> None:
    first, second = nn.Parameter(torch.randn(2, 3, 4)), nn.Parameter(torch.randn(2, 3, 4))
    array = optim.Muon([{"params": [first]}, {"params": [second], "ns_steps": 2}])
    array.init_state()
    update = array.build_update()
    array.param_groups[1]["ns_steps"] = 3
    assert array.build_update() != update
    array.param_groups[1]["ns_steps"] = 2
    assert array.build_update() == update


def test_a_member_with_other_settings_is_refused() -> None:
    array = optim.Muon([nn.Parameter(torch.zeros(2, 3, 4))])
    single = nn.Parameter(torch.zeros(3, 4))
    array.load_member(0, torch.optim.Muon([single], adjust_lr_fn="original").state_dict())
    with pytest.raises(ConfigError, match="the saved state has ns_steps=4, the array 5"):
        array.load_member(0, torch.optim.Muon([single], ns_steps=4).state_dict())
