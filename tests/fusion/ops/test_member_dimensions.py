"""Operators on batched tensors with members in any dimension."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import B, assert_same, build_members, integer_tensor, normal_tensor  # noqa: E402
from support.operator_cases.base import own_rows  # noqa: E402
from wattline.fusion import Ways, fuse  # noqa: E402
from wattline.fusion.lowering.rules import LoweringMode  # noqa: E402


@pytest.mark.parametrize("index", [5, -1])
def test_an_invalid_index_of_one_member_never_reads_the_row_of_another(index: int) -> None:
    array = fuse(build_members(lambda: nn.Embedding(5, 3)))
    for member in range(B):
        rows = integer_tensor(5, B, 4)
        rows[member, 2] = index
        with pytest.raises(IndexError, match="out of range"):
            array(rows, members=True)
    with pytest.raises(IndexError, match="out of range"):
        array(torch.tensor([0, index]))


TWO_SIDED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "grid sample": (
        lambda a, b: F.grid_sample(a, b, align_corners=False),
        (normal_tensor(2, 4, 5, 5), normal_tensor(2, 3, 3, 2)),
    ),
    "matmul": (torch.matmul, (normal_tensor(2, 4, 5), normal_tensor(2, 5, 3))),
    "baddbmm": (torch.baddbmm, (normal_tensor(2, 4, 3), normal_tensor(2, 4, 5), normal_tensor(2, 5, 3))),
    "linear": (F.linear, (normal_tensor(2, 4), normal_tensor(3, 4), normal_tensor(3))),
    "convolution": (F.conv2d, (normal_tensor(2, 4, 5, 5), normal_tensor(3, 4, 2, 2), normal_tensor(3))),
    "transposed convolution": (
        F.conv_transpose2d,
        (normal_tensor(2, 4, 3, 3), normal_tensor(4, 3, 2, 2), normal_tensor(3)),
    ),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        (normal_tensor(2, 4, 5), normal_tensor(5), normal_tensor(5)),
    ),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (normal_tensor(2, 4, 5), normal_tensor(4), normal_tensor(4)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (normal_tensor(2, 4, 5), normal_tensor(4), normal_tensor(4)),
    ),
    "attention": (
        F.scaled_dot_product_attention,
        (normal_tensor(2, 2, 3, 4), normal_tensor(2, 2, 5, 4), normal_tensor(2, 2, 5, 4)),
    ),
    "embedding": (F.embedding, (integer_tensor(5, 2, 3), normal_tensor(5, 4))),
    "gather": (lambda a, i: a.gather(1, i), (normal_tensor(4, 5), integer_tensor(5, 4, 3))),
    "index": (lambda a, i: a[:, i], (normal_tensor(4, 5, 6), integer_tensor(5, 3))),
    "scatter": (
        lambda a, i, s: a.scatter_add(1, i, s),
        (normal_tensor(4, 5), integer_tensor(5, 4, 3), normal_tensor(4, 3)),
    ),
    "where": (
        lambda c, a, b: torch.where(c > 0, a, b),
        (normal_tensor(4, 1), normal_tensor(4, 5), normal_tensor(5)),
    ),
    "cat": (lambda a, b: torch.cat([a, b], -1), (normal_tensor(2, 4, 5), normal_tensor(2, 4, 3))),
    "bilinear": (
        F.bilinear,
        (normal_tensor(3, 4), normal_tensor(3, 5), normal_tensor(2, 4, 5), normal_tensor(2)),
    ),
    "cross entropy": (F.cross_entropy, (normal_tensor(4, 5), integer_tensor(5, 4))),
    "view": (lambda a, b: a.view(-1)[:4] + b.view(-1), (normal_tensor(2, 3, 4), normal_tensor(2, 2))),
}


@pytest.mark.parametrize("name", TWO_SIDED)
def test_members_may_be_in_any_dimension(name: str) -> None:
    function, args = TWO_SIDED[name]
    choices = [[None, *range(a.dim() + 1)] for a in args]
    for dims in itertools.product(*choices):
        if all(d is None for d in dims):
            continue
        rows = [a if d is None else own_rows((a,))[0].movedim(0, d) for a, d in zip(args, dims, strict=True)]
        warning = [
            function(
                *(r if d is None else r.select(d, m).contiguous() for r, d in zip(rows, dims, strict=True))
            )
            for m in range(B)
        ]
        with LoweringMode(Ways()):
            out = torch.vmap(function, in_dims=dims)(*rows)
        assert_same(out, torch.stack(warning), f"members in {dims}")
