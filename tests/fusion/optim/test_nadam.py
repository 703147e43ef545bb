"""NAdam in the default precision of PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from support.optimiser_pairs import Both  # noqa: E402


def test_the_product_of_momenta_is_more_precise_than_that_of_torch() -> None:
    both = Both("NAdam", {"lr": [0.1, 0.01, 0.0, 0.3]})
    both.step(10)
    both.agree(atol=1e-7, rtol=1e-7)  # torch.optim rounds the product to float32
    own = both.array.state[both.params[0]]["mu_product"]
    assert own.dtype == torch.float64
    for member, single in enumerate(both.singles):
        saved = both.array.member_state_dict(member)["state"][0]["mu_product"]
        theirs = single.state_dict()["state"][0]["mu_product"]
        assert (saved.dtype, saved.shape) == (theirs.dtype, theirs.shape)
        torch.testing.assert_close(saved, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_product_is_not_rounded_to_the_type_of_the_parameters(dtype: torch.dtype) -> None:
    both = Both("NAdam", {}, dtype=dtype)
    both.step(3)
    other = type(both.array)(both.params)
    other.load_state_dict(both.array.state_dict())
    products = [array.state[both.params[0]]["mu_product"] for array in (both.array, other)]
    assert products[0].dtype == torch.float64
    assert torch.equal(*products)


def test_parameters_that_were_idle_have_products_of_their_own() -> None:
    both = Both("NAdam", {})
    both.step(2, without=(1,))
    own = [both.array.state[param]["mu_product"] for param in both.params]
    assert own[0] is own[2]
    assert own[1].eq(1).all()
    assert own[0].lt(0.3).all()


def test_equal_steps_with_other_products_are_not_merged() -> None:
    both = Both("NAdam", {"momentum_decay": 4.0})
    both.step(1, without=(1,))
    for optimiser in (both.array, *both.singles):
        optimiser.param_groups[0]["momentum_decay"] = 0.0
    both.step(1, without=(0, 2, 3))
    other = type(both.array)(both.params)
    other.load_state_dict(both.array.state_dict())
    first, second, third = (other.state[param]["mu_product"] for param in both.params[:3])
    assert first is third
    assert first.gt(second + 0.01).all()
    both.array = other
    both.step(2)
    both.agree(atol=1e-7, rtol=1e-7)
