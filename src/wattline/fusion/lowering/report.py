"""`explain`: report how each module is computed in an array, and why some cannot be fused."""

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
from wattline.fusion.lowering.fallback import FusionWarning, run_with_fallback
from wattline.fusion.lowering.forward import run_forward
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.lowering.rules import describe_lowering
from wattline.fusion.torch_internals import BatchNormBase, InstanceNormBase, NormBase
from wattline.text_table import format_table

DIRECT, VMAP, PER_MEMBER, CONTAINER = "direct", "vmap", "per member", "container"

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
    (BatchNormBase, F.batch_norm),
    (InstanceNormBase, F.instance_norm),
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
_IGNORED_CALLS = frozenset(
    ("__get__", "__set__", "dim", "size", "stride", "numel", "is_floating_point", "__len__")
)


@dataclass(frozen=True)
class LoweredPart:
    """One module: *how* it is computed for all members ("direct", "vmap", "per member"), and the details."""

    name: str
    kind: str
    how: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`: a `LoweredPart` for each module in model order; prints as a table."""

    parts: tuple[LoweredPart, ...]
    tried: bool

    def __str__(self) -> str:
        lines = format_parts(self.parts)
        if not self.tried:
            lines.append("Pass a batch to run the model: parts that depend on data are detected only then.")
        return "\n".join(lines)

    @property
    def fusible(self) -> bool:
        """True if no module runs separately for each member."""
        return all(part.how != PER_MEMBER for part in self.parts)


def format_parts(parts: Sequence[LoweredPart]) -> list[str]:
    """Return one line for each part, under a heading."""
    rows = [[p.name or "(the model)", p.kind, p.how, p.why] for p in parts]
    return format_table(["module", "kind", "how", ""], rows)


def explain(model: nn.Module, batch: Any = None) -> Explanation:
    """Report how each module of *model* is computed in an array.

    Without a *batch* (a tensor, or a tuple of arguments) the report is derived from the module types. With
    one, two copies are fused and run, and the report states what happened.
    """
    if batch is None:
        parts = tuple(_predict_part(name, module) for name, module in model.named_modules())
        return Explanation(parts, tried=False)
    return Explanation(_trace_parts(model, batch if isinstance(batch, tuple) else (batch,)), tried=True)


def _predict_part(name: str, module: nn.Module) -> LoweredPart:
    kind = type(module).__name__
    exception = _known_exception(module)
    if exception is not None:
        return LoweredPart(name, kind, PER_MEMBER, exception)
    function = next((f for classes, f in _CALLS if isinstance(module, classes)), None)
    own = type(module).forward
    if function is not None and own.__module__.startswith("torch."):
        return LoweredPart(name, kind, DIRECT, describe_lowering(function) or "")
    if type(module).__module__.startswith("torch.nn.modules"):
        if next(module.children(), None) is not None:
            return LoweredPart(name, kind, CONTAINER, "see its submodules")
        return LoweredPart(name, kind, VMAP, "the same operator on the stacked tensors of all members")
    return LoweredPart(name, kind, VMAP, "its own forward; operators with rules are computed directly")


def _known_exception(module: nn.Module) -> str | None:
    """Return why one of PyTorch's own modules cannot be fused; None if it can."""
    if isinstance(module, NormBase) and module.track_running_stats and module.momentum is None:
        return "without momentum its average depends on the number of batches seen (.item())"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return "an LSTM with projections has no batched form"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "its table is renormalised in place"
    return None


def _trace_parts(model: nn.Module, args: tuple[Any, ...]) -> tuple[LoweredPart, ...]:
    array = fuse([copy.deepcopy(model), copy.deepcopy(model)])
    body, inside = array.body, [array.body]
    seen: dict[nn.Module, dict[str, str | None]] = {module: {} for module in body.modules()}

    def record_call(function: Callable[..., Any], direct: bool) -> None:
        name = getattr(function, "__name__", str(function))
        if name not in _IGNORED_CALLS:
            seen[inside[-1]][name] = describe_lowering(function) if direct else None

    def enter(module: nn.Module, args_: Any) -> None:
        inside.append(module)

    def leave(module: nn.Module, args_: Any, out: Any) -> None:
        del inside[inside.index(module, 1) :]

    handles = [m.register_forward_pre_hook(enter) for m in body.modules()]
    handles += [m.register_forward_hook(leave) for m in body.modules()]
    inputs, layout = Inputs.from_call(args, {}, False, 2), ModelLayout(body)

    def attempt() -> Any:
        del inside[1:]
        return run_forward(
            layout, dict(array.stacked), array.common, dict(array._carried), inputs, array.ways, record_call
        )

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FusionWarning)
            run_with_fallback(
                layout, [t for t in array.stacked.values() if not t.requires_grad], attempt, watch_rng=True
            )
    finally:
        for handle in handles:
            handle.remove()
    per_member = [name for name, module in body.named_modules() if per_member_reason(module) is not None]
    parts = []
    for name, module in body.named_modules():
        around = next((a for a in per_member if a != name and (not a or name.startswith(f"{a}."))), None)
        if around is None:
            parts.append(_describe_part(name, module, seen[module]))
        else:
            parts.append(
                LoweredPart(name, type(module).__name__, PER_MEMBER, f"inside {around or 'the model'}")
            )
    return tuple(parts)


def _describe_part(name: str, module: nn.Module, calls: dict[str, str | None]) -> LoweredPart:
    kind, why = type(module).__name__, per_member_reason(module)
    if why is not None:
        return LoweredPart(name, kind, PER_MEMBER, why)
    direct = [how for how in calls.values() if how is not None]
    rest = [call for call, how in calls.items() if how is None]
    if direct and not rest:
        return LoweredPart(name, kind, DIRECT, "; ".join(dict.fromkeys(direct)))
    if not calls:
        return LoweredPart(name, kind, CONTAINER, "see its submodules" if any(module.children()) else "")
    details = [*dict.fromkeys(direct), f"{', '.join(rest[:6])}{', …' if len(rest) > 6 else ''} by vmap"]
    return LoweredPart(name, kind, VMAP if not direct else DIRECT, "; ".join(details))
