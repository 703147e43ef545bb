"""One update of all members as a pure function of tensors, which make_fx and torch.compile can trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import align_with

State = dict[str, Tensor]
Hyper = Mapping[str, Tensor]
Flags = frozenset[str]
# Update of the parameters of one group, in place: parameters, gradients, state, hyper-parameters ([B] each)
# and the flags it may branch on.
Rule = Callable[[list[Tensor], list[Tensor], list[State], Hyper, Flags], None]

_HALF_TYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class GroupLayout:
    """One parameter group: its rule, the indices of each parameter's state in the flat tensors, its flags."""

    rule: Rule
    state: tuple[tuple[tuple[str, int], ...], ...]
    flags: Flags


@dataclass(frozen=True)
class Update:
    """The update of all groups, in place on the tensors passed to it.

    It holds no tensor, so a trace contains no constants of it. Equal updates have the same trace for the same
    shapes. An optimiser returns another update when its branches change: a switch, the first member with
    weight decay or momentum, the first without momentum among members that have it.
    """

    groups: tuple[GroupLayout, ...]
    _selected: list[Any] = field(default_factory=list, compare=False, repr=False)

    @torch.no_grad()
    def __call__(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        hyper: Sequence[Hyper],
        active: Tensor | None = None,
    ) -> None:
        """Update *params* and their state *tensors*; members that are not *active* ([B]) stay unchanged."""
        written = [*params, *tensors] if active is not None else []
        before = [tensor.clone() for tensor in written]
        start = 0
        for group, states, values in zip(self.groups, self._select(tensors), hyper, strict=True):
            own = slice(start, start + len(states))
            present = [row for row in zip(params[own], grads[own], states, strict=True) if row[1] is not None]
            if present:
                group_params, group_grads, group_states = map(list, zip(*present, strict=True))
                _run(group.rule, group_params, group_grads, group_states, values, group.flags)
            start = own.stop
        if active is not None:
            for tensor, old in zip(written, before, strict=True):
                tensor.copy_(torch.where(align_with(active.to(tensor.device), tensor), tensor, old))

    def _select(self, tensors: Sequence[Tensor]) -> list[list[State]]:
        """Return the state of each parameter by name, group by group; that of the last call is kept."""
        if self._selected and self._selected[0] is tensors:
            selected: list[list[State]] = self._selected[1]
            return selected
        states = [
            [{name: tensors[index] for name, index in layout} for layout in group.state]
            for group in self.groups
        ]
        if not torch.compiler.is_compiling():
            self._selected[:] = [tensors, states]
        return states


def step_counters(state: Iterable[State]) -> list[Tensor]:
    """Return the distinct step counters of *state*; parameters that step together share one."""
    return list({id(entry["step"]): entry["step"] for entry in state}.values())


def _run(
    rule: Rule, params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """Apply *rule*; 16-bit values are computed in 32 bits, where 0.999 is not yet rounded to 1."""
    if not any(param.dtype in _HALF_TYPES for param in params):
        rule(params, grads, state, hyper, flags)
        return
    params32 = [_to_float32(param) for param in params]
    state32 = [{name: _to_float32(tensor) for name, tensor in entry.items()} for entry in state]
    rule(params32, [_to_float32(grad) for grad in grads], state32, hyper, flags)
    for param, result in zip(params, params32, strict=True):
        _store(param, result)
    for entry, results in zip(state, state32, strict=True):
        for name, tensor in entry.items():
            _store(tensor, results[name])


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF_TYPES else tensor


def _store(tensor: Tensor, result: Tensor) -> None:
    if result is not tensor:
        tensor.copy_(result)
