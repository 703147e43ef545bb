"""Arrays under `torch.autocast` and in bfloat16: equal to separate models in the same precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.fusion_equality import integer_tensor, normal_tensor
from support.small_transformers import VOCABULARY, build_llama
from wattline import fusion

IDS = integer_tensor(VOCABULARY, 4, 8)
IMAGES, CLASSES = normal_tensor(4, 3, 8, 8).float(), integer_tensor(5, 4)
# bfloat16 has eight bits. Sums in another order differ by a few units in the last place of the largest terms.
ROUNDING = 2**-6


def build_conv_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)
    )


def transformer_loss(model: nn.Module) -> tuple[Tensor, Tensor]:
    out = model(input_ids=IDS, labels=IDS)
    return out.logits, out.loss


def conv_loss(model: nn.Module) -> tuple[Tensor, Tensor]:
    logits = model(IMAGES.to(next(model.parameters()).dtype))
    if isinstance(model, fusion.FusedArray):
        return logits, model.loss(F.cross_entropy, logits, CLASSES)
    return logits, F.cross_entropy(logits, CLASSES)


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    """Assert that the difference is small against the largest element."""
    assert ours.dtype == theirs.dtype, what
    ours, theirs = ours.detach(), theirs.detach()
    difference = (ours.float() - theirs.float()).abs().max()
    assert float(difference) <= ROUNDING * float(theirs.float().abs().max()), what


def compare(build: Any, run: Any, cast: Any) -> fusion.FusedArray:
    models = [cast(build(seed)) for seed in range(3)]
    array = fusion.fuse(models)
    logits, losses = run(array)
    losses.sum().backward()
    stacked = dict(array.body.named_parameters())
    for index, model in enumerate(models):
        expected, loss = run(model)
        loss.backward()
        assert_close(logits[index], expected, f"output of member {index}")
        assert_close(losses[index], loss, f"loss of member {index}")
        for name, parameter in model.named_parameters():
            grad = stacked[name].grad
            assert grad is not None
            assert_close(grad[index], parameter.grad, f"gradient of {name}, member {index}")
    return array


CASES = [
    pytest.param(build_llama, transformer_loss, id="transformer"),
    pytest.param(build_conv_net, conv_loss, id="conv_net"),
]


@pytest.mark.parametrize(("build", "run"), CASES)
def test_an_array_under_autocast_equals_separate_models(build: Any, run: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        array = compare(build, run, lambda model: model)
        assert run(array)[0].dtype == torch.bfloat16
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in array.parameters() if p.grad is not None)


@pytest.mark.parametrize(("build", "run"), CASES)
def test_an_array_in_bfloat16_equals_separate_models(build: Any, run: Any) -> None:
    array = compare(build, run, lambda model: model.to(torch.bfloat16))
    assert all(p.dtype == torch.bfloat16 for p in array.parameters())


TARGET, SIGNS = integer_tensor(5, 4), integer_tensor(2, 4, 5, seed=3) * 2.0 - 1
LOSSES: dict[str, Any] = {
    "cross_entropy": lambda x: F.cross_entropy(x, TARGET),
    "label_smoothing": lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1),
    "shares": lambda x: F.cross_entropy(x, x.softmax(-1)),
    "nll": lambda x: F.nll_loss(x, TARGET),
    "kl_div": lambda x: F.kl_div(x, x.abs(), reduction="batchmean"),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "l1": lambda x: F.l1_loss(x, x.tanh()),
    "mse": lambda x: F.mse_loss(x, x.tanh()),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.tanh()),
    "huber": lambda x: F.huber_loss(x, x.tanh()),
    "hinge": lambda x: F.hinge_embedding_loss(x, SIGNS),
    "poisson": lambda x: F.poisson_nll_loss(x, x.abs()),
    "cosine": lambda x: F.cosine_embedding_loss(x, x.tanh(), SIGNS[:, 0]),
    "ranking": lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], SIGNS[:, 0]),
    "triplet": lambda x: F.triplet_margin_loss(x, x.tanh(), x.sin()),
    "soft_margin": lambda x: F.soft_margin_loss(x, SIGNS),
}


@pytest.mark.filterwarnings("ignore:.*runs separately for each member")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_under_autocast_has_the_precision_of_a_separate_model(name: str) -> None:
    array = fusion.fuse([nn.Linear(5, 5) for _ in range(3)])
    outputs = normal_tensor(3, 4, 5).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = array.loss(LOSSES[name], outputs)
        for index in range(3):
            alone = LOSSES[name](outputs[index])
            assert losses.dtype == alone.dtype == torch.float32
            torch.testing.assert_close(losses[index], alone)
