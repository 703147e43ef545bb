"""Losses of each member."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    B,
    assert_same,
    assert_same_training,
    build_members,
    integer_tensor,
    normal_tensor,
    select_member,
)
from support.operator_cases.base import own_rows  # noqa: E402
from wattline.fusion import FusionWarning, fuse  # noqa: E402

HALF = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
LOSSES: list[tuple[str, Callable[..., Tensor], Tensor]] = [
    ("cross entropy", F.cross_entropy, integer_tensor(3, 5)),
    ("cross entropy, summed", lambda o, t: F.cross_entropy(o, t, reduction="sum"), integer_tensor(3, 5)),
    ("cross entropy with weights", lambda o, t: F.cross_entropy(o, t, weight=HALF), integer_tensor(3, 5)),
    (
        "cross entropy, smoothed",
        lambda o, t: F.cross_entropy(o, t, label_smoothing=0.2),
        integer_tensor(3, 5),
    ),
    (
        "cross entropy, smoothed with weights",
        lambda o, t: F.cross_entropy(o, t, weight=HALF, label_smoothing=0.2),
        integer_tensor(3, 5),
    ),
    ("cross entropy, ignoring", lambda o, t: F.cross_entropy(o, t, ignore_index=1), integer_tensor(3, 5)),
    ("cross entropy, ignoring -100", F.cross_entropy, torch.tensor([0, -100, 2, 1, -100])),
    (
        "cross entropy of pixels",
        lambda o, t: F.cross_entropy(o.t().reshape(1, 3, 5), t.view(1, 5)),
        integer_tensor(3, 5),
    ),
    ("cross entropy of shares", F.cross_entropy, normal_tensor(5, 3).softmax(1)),
    ("cross entropy module", nn.CrossEntropyLoss(weight=HALF), integer_tensor(3, 5)),
    ("nll", lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=HALF, ignore_index=0), integer_tensor(3, 5)),
    ("mse", F.mse_loss, normal_tensor(5, 3)),
    ("mse, summed", lambda o, t: F.mse_loss(o, t, reduction="sum"), normal_tensor(5, 3)),
    ("l1", F.l1_loss, normal_tensor(5, 3)),
    ("smooth l1", lambda o, t: F.smooth_l1_loss(o, t, beta=0.3), normal_tensor(5, 3)),
    ("huber", lambda o, t: F.huber_loss(o, t, delta=0.3, reduction="sum"), normal_tensor(5, 3)),
    ("bce", lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), normal_tensor(5, 3).sigmoid()),
    (
        "bce with logits",
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, weight=HALF, pos_weight=HALF),
        normal_tensor(5, 3).sigmoid(),
    ),
    ("kl", lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="batchmean"), normal_tensor(5, 3).softmax(1)),
    (
        "kl of logarithms",
        lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="sum", log_target=True),
        normal_tensor(5, 3).log_softmax(1),
    ),
    ("poisson", F.poisson_nll_loss, normal_tensor(5, 3).abs()),
    ("hinge", F.hinge_embedding_loss, normal_tensor(5, 3).sign()),
    (
        "margin ranking",
        lambda o, t: F.margin_ranking_loss(o[:, 0], o[:, 1], t, margin=0.3),
        normal_tensor(5).sign(),
    ),
    ("multi margin", F.multi_margin_loss, integer_tensor(3, 5)),
    ("multilabel margin", F.multilabel_margin_loss, torch.tensor([[0, 1, -1]] * 5)),
    ("multilabel soft margin", F.multilabel_soft_margin_loss, integer_tensor(2, 5, 3).double()),
    ("soft margin", F.soft_margin_loss, normal_tensor(5, 3).sign()),
    ("triplet", lambda o, t: F.triplet_margin_loss(o, t, t.flip(0)), normal_tensor(5, 3)),
    (
        "triplet with a distance",
        lambda o, t: F.triplet_margin_with_distance_loss(o, t, t.flip(0)),
        normal_tensor(5, 3),
    ),
    (
        "cosine embedding",
        lambda o, t: F.cosine_embedding_loss(o, o.flip(0), t, margin=0.1),
        normal_tensor(5).sign(),
    ),
    ("ctc", lambda o, t: F.ctc_loss(o.log_softmax(-1).unsqueeze(1), t, (5,), (2,)), torch.tensor([[1, 2]])),
    ("gaussian", lambda o, t: F.gaussian_nll_loss(o[:, 0], t[:, 0], o[:, 1].exp()), normal_tensor(5, 3)),
]
LOOPS = {
    "multilabel margin": "multilabel_margin_loss",
    "multi margin": "multi_margin_loss",
    "ctc": "ctc|lambda",
    "gaussian": "lambda",
    "margin ranking": "margin_ranking_loss",
    "soft margin": "soft_margin_loss",
    "triplet": "triplet_margin_loss",
}


@pytest.mark.parametrize("each", [False, True], ids=["one target", "a target of each"])
@pytest.mark.parametrize(("name", "loss", "target"), LOSSES, ids=[name for name, *_ in LOSSES])
def test_losses_are_each_members_own(
    name: str, loss: Callable[..., Tensor], target: Tensor, each: bool
) -> None:
    x = normal_tensor(5, 4)
    args, aim = own_rows((x, target)) if each else (x, target)
    if each and target.is_floating_point():
        aim = torch.stack([target] * B)
    loops = "lambda" if each and name == "cross entropy, smoothed with weights" else LOOPS.get(name)
    with pytest.warns(FusionWarning, match=loops) if loops else nullcontext():
        assert_same_training(
            lambda: nn.Linear(4, 3), args, members=each, loss=loss, target=aim, lr=0.01, steps=1
        )


def test_losses_are_a_vector() -> None:
    models = build_members(lambda: nn.Linear(4, 3))
    array = fuse(models)
    losses = array.loss(F.cross_entropy, array(normal_tensor(5, 4)), integer_tensor(3, 5))
    assert losses.shape == (B,)
    assert_same(
        select_member(losses, 1),
        F.cross_entropy(models[1](normal_tensor(5, 4)), integer_tensor(3, 5)),
        "loss",
    )
