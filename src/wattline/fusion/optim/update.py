"""One update of all members as a pure function of tensors, which make_fx and torch.compile can trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wattline.fusion.optim.broadcast import spread

State = dict[str, Tensor]
Hyper = Mapping[str, Tensor]
Flags = frozenset[str]
# What an optimiser does to the parameters of one group, in place: params, gradients, state, hyper-parameters
# ([B] each) and the flags it may branch on.
Rule = Callable[[list[Tensor], list[Tensor], list[State], Hyper, Flags], None]

_NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Layout:
    """One parameter group: which of the flat tensors are the state of each parameter, and the flags."""

    state: tuple[tuple[tuple[str, int], ...], ...]
    flags: Flags


@dataclass(frozen=True)
class Update:
    """The update of all groups, in place on the tensors it is given.

    It holds no tensor, so no number is baked into a trace. Equal ones have the same trace of the same shapes.
    An optimiser gives another one when what it may branch on has changed: a switch, the first member
    with weight decay or momentum, the first without momentum among those who have it.
    """

    rule: Rule
    groups: tuple[Layout, ...]

    @torch.no_grad()
    def __call__(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        hyper: Sequence[Hyper],
        active: Tensor | None = None,
    ) -> None:
        """Update *params* and their state *tensors*, but nothing of members that are not *active* ([B])."""
        written = [*params, *tensors] if active is not None else []
        before = [tensor.clone() for tensor in written]
        start = 0
        for group, values in zip(self.groups, hyper, strict=True):
            chosen, given, states = [], [], []
            for row, layout in enumerate(group.state):
                grad = grads[start + row]
                if grad is not None:
                    chosen.append(params[start + row])
                    given.append(grad)
                    states.append({name: tensors[index] for name, index in layout})
            if chosen:
                _run(self.rule, chosen, given, states, values, group.flags)
            start += len(group.state)
        if active is not None:
            for tensor, old in zip(written, before, strict=True):
                tensor.copy_(torch.where(spread(active.to(tensor.device), tensor), tensor, old))


def counters(state: Iterable[State]) -> list[Tensor]:
    """The step counters of *state*, each once: parameters that step together share one."""
    return list({id(entry["step"]): entry["step"] for entry in state}.values())


def _run(
    rule: Rule, params: list[Tensor], grads: list[Tensor], state: list[State], hyper: Hyper, flags: Flags
) -> None:
    """Apply *rule*; what is stored in 16 bits is computed in 32, where 0.999 is not yet 1."""
    if not any(param.dtype in _NARROW for param in params):
        rule(params, grads, state, hyper, flags)
        return
    wide = [_wide(param) for param in params]
    wide_state = [{name: _wide(tensor) for name, tensor in entry.items()} for entry in state]
    rule(wide, [_wide(grad) for grad in grads], wide_state, hyper, flags)
    for narrow, result in zip(params, wide, strict=True):
        _store(narrow, result)
    for entry, results in zip(state, wide_state, strict=True):
        for name, tensor in entry.items():
            _store(tensor, results[name])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _NARROW else tensor


def _store(tensor: Tensor, result: Tensor) -> None:
    if result is not tensor:
        tensor.copy_(result)
