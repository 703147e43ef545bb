"""Which part of a model is computed how when it is fused, and why what cannot be fused cannot."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from wattline.fusion.array import fuse
from wattline.fusion.lowering.fallback import FusionWarning, settle
from wattline.fusion.lowering.forward import run
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.per_member import why_alone
from wattline.fusion.lowering.rules import how_lowered
from wattline.grid import grid

DIRECT, VMAP, ALONE, PASSES = "direct", "vmap", "per member", "container"

_CALLS: tuple[tuple[type | tuple[type, ...], Callable[..., Any]], ...] = (
    (nn.Linear, F.linear),
    *((getattr(nn, f"Conv{n}d"), getattr(F, f"conv{n}d")) for n in (1, 2, 3)),
    *((getattr(nn, f"ConvTranspose{n}d"), getattr(F, f"conv_transpose{n}d")) for n in (1, 2, 3)),
    *((getattr(nn, f"Dropout{n}d"), getattr(F, f"dropout{n}d")) for n in (1, 2, 3)),
    *(
        (getattr(nn, f"{kind}{n}d"), getattr(F, f"{function}{n}d"))
        for n in (1, 2, 3)
        for kind, function in (
            ("MaxPool", "max_pool"),
            ("AvgPool", "avg_pool"),
            ("AdaptiveAvgPool", "adaptive_avg_pool"),
            ("AdaptiveMaxPool", "adaptive_max_pool"),
        )
    ),
    (nn.modules.batchnorm._BatchNorm, F.batch_norm),
    (nn.modules.instancenorm._InstanceNorm, F.instance_norm),
    (nn.LayerNorm, F.layer_norm),
    (nn.RMSNorm, F.rms_norm),
    (nn.GroupNorm, F.group_norm),
    (nn.Embedding, F.embedding),
    (nn.Dropout, F.dropout),
    (nn.MultiheadAttention, F.multi_head_attention_forward),
    (nn.LSTM, torch.lstm),
    (nn.GRU, torch.gru),
    (nn.RNN, torch.rnn_tanh),
)
_TRIFLES = frozenset(("__get__", "__set__", "dim", "size", "stride", "numel", "is_floating_point", "__len__"))


@dataclass(frozen=True)
class Part:
    """One module: *how* it is computed for all members ("direct", "vmap", "per member"), and the details."""

    name: str
    kind: str
    how: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """What `explain` answers: a `Part` for each module, in the order of the model; prints as a table."""

    parts: tuple[Part, ...]
    tried: bool

    def __str__(self) -> str:
        lines = table(self.parts)
        if not self.tried:
            lines.append("Give a batch to have this tried: what depends on data shows only then.")
        return "\n".join(lines)

    @property
    def fusible(self) -> bool:
        """Whether nothing runs for each member by itself."""
        return all(part.how != ALONE for part in self.parts)


def table(parts: Sequence[Part]) -> list[str]:
    """A line for each part, under a head."""
    rows = [["module", "kind", "how", ""]]
    rows += [[p.name or "(the model)", p.kind, p.how, p.why] for p in parts]
    return grid(rows, lambda column: "<")


def explain(model: nn.Module, batch: Any = None) -> Explanation:
    """How each module of *model* is computed in an array.

    Without a *batch* (a tensor, or a tuple of arguments) it is told from what the modules are; with one, two
    copies are fused and run, and it is told what happened.
    """
    if batch is None:
        parts = tuple(_guessed(name, module) for name, module in model.named_modules())
        return Explanation(parts, tried=False)
    return Explanation(_tried(model, batch if isinstance(batch, tuple) else (batch,)), tried=True)


def _guessed(name: str, module: nn.Module) -> Part:
    kind = type(module).__name__
    unusual = _unusual(module)
    if unusual is not None:
        return Part(name, kind, ALONE, unusual)
    function = next((f for classes, f in _CALLS if isinstance(module, classes)), None)
    own = type(module).forward
    if function is not None and own.__module__.startswith("torch."):
        return Part(name, kind, DIRECT, how_lowered(function) or "")
    if type(module).__module__.startswith("torch.nn.modules"):
        if next(module.children(), None) is not None:
            return Part(name, kind, PASSES, "its parts are computed as they say")
        return Part(name, kind, VMAP, "the same operator on the tensors of all members")
    return Part(
        name, kind, VMAP, "its own forward; operators in it are computed directly where they have rules"
    )


def _unusual(module: nn.Module) -> str | None:
    """Why a module of PyTorch's own cannot be fused."""
    if (
        isinstance(module, nn.modules.batchnorm._NormBase)
        and module.track_running_stats
        and module.momentum is None
    ):
        return "without momentum its average depends on how many batches were counted (.item())"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return "an LSTM with projections has no batched form"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "a table that is renormalised in place"
    return None


def _tried(model: nn.Module, args: tuple[Any, ...]) -> tuple[Part, ...]:
    array = fuse([copy.deepcopy(model), copy.deepcopy(model)])
    body, inside = array.body, [array.body]
    seen: dict[nn.Module, dict[str, str | None]] = {module: {} for module in body.modules()}

    def note(function: Callable[..., Any], direct: bool) -> None:
        name = getattr(function, "__name__", str(function))
        if name not in _TRIFLES:
            seen[inside[-1]][name] = how_lowered(function) if direct else None

    def enter(module: nn.Module, given: Any) -> None:
        inside.append(module)

    def leave(module: nn.Module, given: Any, out: Any) -> None:
        del inside[inside.index(module, 1) :]

    handles = [m.register_forward_pre_hook(enter) for m in body.modules()]
    handles += [m.register_forward_hook(leave) for m in body.modules()]
    inputs = Inputs.of(args, {}, False, 2)

    def attempt() -> Any:
        del inside[1:]
        return run(body, dict(array.stacked), array.common, dict(array._carried), inputs, array.ways, note)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FusionWarning)
            settle(
                body, [t for t in array.stacked.values() if not t.requires_grad], attempt, watch_chance=True
            )
    finally:
        for handle in handles:
            handle.remove()
    alone = [name for name, module in body.named_modules() if why_alone(module) is not None]
    parts = []
    for name, module in body.named_modules():
        around = next((a for a in alone if a != name and (not a or name.startswith(f"{a}."))), None)
        if around is None:
            parts.append(_found(name, module, seen[module]))
        else:
            parts.append(Part(name, type(module).__name__, ALONE, f"inside of {around or 'the model'}"))
    return tuple(parts)


def _found(name: str, module: nn.Module, calls: dict[str, str | None]) -> Part:
    kind, why = type(module).__name__, why_alone(module)
    if why is not None:
        return Part(name, kind, ALONE, why)
    direct = [how for how in calls.values() if how is not None]
    rest = [call for call, how in calls.items() if how is None]
    if direct and not rest:
        return Part(name, kind, DIRECT, "; ".join(dict.fromkeys(direct)))
    if not calls:
        return Part(
            name, kind, PASSES, "its parts are computed as they say" if any(module.children()) else ""
        )
    words = [*dict.fromkeys(direct), f"{', '.join(rest[:6])}{', …' if len(rest) > 6 else ''} by vmap"]
    return Part(name, kind, VMAP if not direct else DIRECT, "; ".join(words))
