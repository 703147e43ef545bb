"""`ArrayOptimizer`, the base class of optimisers of stacked parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim import member_state
from wattline.fusion.optim.hyperparameters import (
    Range,
    mark_varying,
    merge_joining,
    pair,
    select_rows,
    vector,
)
from wattline.fusion.optim.update import Flags, GroupLayout, Rule, Update
from wattline.fusion.step import listeners

Params = Any  # an iterable of stacked parameters or of parameter groups, or an object with `.parameters()`
Numbers = float | Sequence[float] | Tensor
Pairs = tuple[Numbers, Numbers] | Sequence[tuple[float, float]]
Group = dict[str, Any]
_OPTIMISERS: WeakSet[ArrayOptimizer] = WeakSet()


class ArrayOptimizer(torch.optim.Optimizer):
    """An optimiser of parameters of [B, ...], each row of which is updated independently.

    Hyper-parameters are float64 vectors of B in the parameter groups: `group["lr"]`; `group["betas"]` has
    two. They may be written to, or replaced by a number or a row. Frozen parameters are not updated but keep
    their place, so that states are numbered as in an ordinary optimiser of one member.

    `step` updates from `.grad`. A compiled step instead calls `init_state` once and then traces
    `build_update()(params, grads, state_tensors(), hyper_tensors())` with all four as inputs, so that none
    is a constant of the trace. `build_update()` returns an equal value as long as the trace is valid.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer]]
    rule: Rule
    ranges: ClassVar[Mapping[str, Range]]
    switches: ClassVar[tuple[str, ...]]
    keys: ClassVar[tuple[str, ...]]  # names of the hyper-parameters in parameter groups

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.keys = tuple(dict.fromkeys("betas" if name.startswith("beta") else name for name in cls.ranges))

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        groups = _groups(params)
        self.width = _width([param for group in groups for param in group["params"]])
        self.followers: WeakSet[Any] = WeakSet()  # schedules
        self._initial_values: list[dict[str, Any]] = []
        super().__init__(groups, defaults)
        _OPTIMISERS.add(self)

    @abstractmethod
    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the state tensors of a parameter."""

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of stacked parameters, which may have hyper-parameters of its own."""
        super().add_param_group({**param_group, "params": _as_list(param_group["params"])})
        group = self.param_groups[-1]
        try:
            initial = mark_varying({key: group[key] for key in self.keys})
            if (width := _width(group["params"])) != self.width:
                raise ConfigError(f"the new group has {width} members, the others have {self.width}")
            self._normalise(group)
            self._check(group)
        except BaseException:
            self.param_groups.pop()
            raise
        self._initial_values.append(initial)

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters, group by group: the order of the update's first two arguments."""
        return [param for group in self.param_groups for param in _trained(group)]

    def hyper_tensors(self) -> list[dict[str, Tensor]]:
        """Return for each group its hyper-parameters by name, [B] each, after validating user changes."""
        return [self._normalise(group) for group in self.param_groups]

    def init_state(self, idle: Iterable[Tensor] = ()) -> None:
        """Create missing state, so that a compiled step has fixed inputs.

        *idle* parameters, for which the next step has no gradient, get step counters of their own.
        """
        idle_ids = {id(param) for param in idle}
        for group in self.param_groups:
            names = self.state_names(self._flags(group))
            fresh: dict[Any, Tensor] = {}
            busy: set[int] = set()
            for param in _trained(group):
                own = self.state[param]
                for name in names:
                    if name not in own and name != "step":
                        own[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
                if "step" in names and "step" not in own:
                    if param.device not in fresh:
                        fresh[param.device] = torch.zeros(
                            self.width, dtype=torch.float64, device=param.device
                        )
                    own["step"] = fresh[param.device]
                if "step" in own and id(param) not in idle_ids:
                    busy.add(id(own["step"]))
            if idle_ids and "step" in names:
                self._separate_counters([param for param in _trained(group) if id(param) in idle_ids], busy)

    def build_update(self) -> Update:
        """Return one step as a pure function `(params, grads, tensors, hyper, active=None)`, in place."""
        return self._update(self.state_tensors())

    def state_tensors(self) -> list[Tensor]:
        """Return all state in a stable order; a step counter that parameters share is listed once."""
        tensors = [tensor for param in self.parameters() for tensor in self.state.get(param, {}).values()]
        return list({id(tensor): tensor for tensor in tensors}.values())

    def step(self, closure: Callable[[], Any] | None = None, active: Tensor | None = None) -> Any:
        """Update all members from the gradients of their parameters, or only those *active* ([B])."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = self.parameters()
        grads = [param.grad for param in params]
        if any(grad is not None and grad.layout != torch.strided for grad in grads):
            raise ConfigError("sparse gradients are not supported", "create the embedding with sparse=False")
        hyper = self.hyper_tensors()
        self.init_state([param for param, grad in zip(params, grads, strict=True) if grad is None])
        if active is not None and bool(active.all()):
            active = None
        tensors = self.state_tensors()
        self._update(tensors)(params, grads, tensors, hyper, active)
        listeners.notify_step(self.width)
        return loss

    def keep(self, rows: Sequence[int], params: Mapping[Any, Any]) -> None:
        """Keep the members *rows*, in that order; *params* maps parameters to their narrower successors."""
        if invalid := [row for row in rows if not 0 <= row < self.width]:
            raise ConfigError(f"no member {invalid[0]}, expected 0 to {self.width - 1}")
        self._replace_parameters(params, len(rows), lambda tensor: tensor[list(rows)].clone())
        for group in self.param_groups:
            self._write(group, {name: select_rows(row, rows) for name, row in self._rows(group).items()})
        for follower in self.followers:
            follower.keep(rows)

    def check_joining(self, count: int, hyper: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the values of *count* new members, group by group; raise if some are missing or unknown."""
        known = set(self.keys).union(*(follower.keys for follower in self.followers))
        if unknown := set(hyper) - known:
            raise ConfigError(
                f"{self.torch_class.__name__} has no {min(unknown)}, "
                f"expected one of {', '.join(sorted(known))}"
            )
        for follower in self.followers:
            follower.check_joining(count, hyper)
        own = {key: value for key, value in hyper.items() if key in self.keys}
        return [self._normalise(merge_joining(initial, own), count) for initial in self._initial_values]

    def extend(self, count: int, params: Mapping[Any, Any], **hyper: Any) -> None:
        """Append *count* members with fresh state and hyper-parameters of their own.

        Those are one value for all or one for each new member; missing ones are taken from the optimiser's
        creation if they were one value for all members. *params* maps old parameters to their wider
        successors. Schedules are extended too.
        """
        added = self.check_joining(count, hyper)
        self._replace_parameters(
            params,
            self.width + count,
            lambda tensor: torch.cat([tensor, tensor.new_zeros((count, *tensor.shape[1:]))]),
        )
        for group, new in zip(self.param_groups, added, strict=True):
            old = self._rows(group)
            self._write(group, {name: torch.cat([old[name], new[name]]) for name in old})
        for follower in self.followers:
            follower.extend(count, **{key: hyper[key] for key in hyper if key in follower.keys})

    def member_state_dict(self, member: int) -> dict[str, Any]:
        """Return the state of one member, in the format of the ordinary optimiser of the same name."""
        return member_state.state_dict(self, member)

    @torch.no_grad()
    def load_member(self, member: int, state: Mapping[str, Any]) -> None:
        """Continue one member from the state of an ordinary optimiser of the same name."""
        member_state.load(self, member, state)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of an optimiser of the same number of members."""
        for group in state_dict["param_groups"]:
            if (saved := len(group["lr"])) != self.width:
                raise ConfigError(f"the saved state has {saved} members, this optimiser has {self.width}")
        super().load_state_dict(state_dict)
        for param, own in self.state.items():
            for name, tensor in own.items():
                kind = torch.float64 if name == "step" else param.dtype
                own[name] = tensor.to(device=param.device, dtype=kind, copy=True)
        self.share_counters()

    def share_counters(self) -> None:
        """Merge equal step counters of the parameters of a group, to compute less."""
        for group in self.param_groups:
            known: list[Tensor] = []
            for param in _trained(group):
                own = self.state.get(param, {})
                if (step := own.get("step")) is None:
                    continue
                same = (other for other in known if other.device == step.device and torch.equal(other, step))
                own["step"] = next(same, step)
                if own["step"] is step:
                    known.append(step)

    def member_hyper(self, group: Group, member: int) -> dict[str, Any]:
        """Return the hyper-parameters of one member, as in an ordinary parameter group."""
        return {
            key: tuple(row[member].item() for row in group[key])
            if key == "betas"
            else group[key][member].item()
            for key in self.keys
        }

    def write_member(self, group: Group, member: int, values: Mapping[str, Any]) -> None:
        """Set the hyper-parameters of one member from *values*, an ordinary parameter group."""
        self._normalise(group)
        for key in values.keys() & set(self.keys):
            rows = (
                zip(group[key], values[key], strict=True) if key == "betas" else [(group[key], values[key])]
            )
            for row, value in rows:
                row[member] = float(value)

    def to_torch_state(self, own: dict[str, Tensor], hyper: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the state of one parameter of one member in the format of the ordinary optimiser."""
        return own

    def from_torch_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reverse of `to_torch_state`; empty for a parameter without steps."""
        return state

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "width": self.width, "_initial_values": self._initial_values}

    def _check(self, group: Group) -> None:
        """Validate hyper-parameters that depend on each other."""

    def _update(self, tensors: list[Tensor]) -> Update:
        place = {id(tensor): index for index, tensor in enumerate(tensors)}
        groups = []
        for group in self.param_groups:
            flags = self._flags(group)
            names = self.state_names(flags)
            states = (self.state[param] for param in _trained(group))
            groups.append(
                GroupLayout(
                    tuple(tuple((name, place[id(own[name])]) for name in names) for own in states), flags
                )
            )
        return Update(self.rule, tuple(groups))

    def _flags(self, group: Group) -> Flags:
        """Return the flags the update may branch on: switches, and which optional terms any member uses."""
        flags = {name for name in self.switches if group[name]}
        for name in ("weight_decay", "momentum"):
            used = [value != 0 for value in group[name].tolist()] if name in self.ranges else []
            if any(used):
                flags.add(name)
                if name == "momentum" and not all(used):
                    flags.add("mixed")
        return frozenset(flags)

    def _normalise(self, group: Group, width: int | None = None) -> dict[str, Tensor]:
        width = self.width if width is None else width
        for key in self.keys:
            value = group[key]
            if key == "betas":
                if not all(_is_member_vector(row, width) for row in value):
                    group[key] = pair(key, value, width, self.ranges["beta1"])
            elif not _is_member_vector(value, width):
                group[key] = vector(key, value, width, self.ranges[key])
        return self._rows(group)

    def _rows(self, group: Group) -> dict[str, Tensor]:
        return {
            name: group["betas"][name == "beta2"] if name.startswith("beta") else group[name]
            for name in self.ranges
        }

    def _write(self, group: Group, rows: dict[str, Tensor]) -> None:
        for name, row in rows.items():
            if not name.startswith("beta"):
                group[name] = row
        if "betas" in group:
            group["betas"] = (rows["beta1"], rows["beta2"])

    def _separate_counters(self, idle: list[Tensor], busy: set[int]) -> None:
        copies: dict[int, Tensor] = {}
        for param in idle:
            own = self.state[param]
            if (key := id(own["step"])) in busy:
                copies.setdefault(key, own["step"].clone())
                own["step"] = copies[key]

    @torch.no_grad()
    def _replace_parameters(
        self, params: Mapping[Any, Any], width: int, change: Callable[[Tensor], Tensor]
    ) -> None:
        """Replace the parameters, and change each state tensor once."""
        for group in self.param_groups:
            for param in _trained(group):
                if param not in params or params[param].shape[0] != width:
                    raise ConfigError(
                        f"a parameter of the shape {list(param.shape)} has no successor of {width} members"
                    )
        changed: dict[int, Tensor] = {}
        for param in list(self.state):
            own = self.state.pop(param)
            for tensor in own.values():
                if id(tensor) not in changed:
                    changed[id(tensor)] = change(tensor)
            self.state[params.get(param, param)] = {name: changed[id(tensor)] for name, tensor in own.items()}
        for group in self.param_groups:
            self._normalise(group)
            group["params"] = [params.get(param, param) for param in group["params"]]
        self.width = width


def find_optimisers(params: Iterable[Any]) -> list[ArrayOptimizer]:
    """Return the optimisers that train any of *params*."""
    wanted = {id(param) for param in params}
    return [
        o for o in _OPTIMISERS if any(id(p) in wanted for group in o.param_groups for p in group["params"])
    ]


def _as_list(params: Any) -> list[Any]:
    if hasattr(params, "parameters"):
        params = params.parameters()
    return [params] if isinstance(params, Tensor) else list(params)


def _groups(params: Params) -> list[Group]:
    if isinstance(params, Tensor):
        raise ConfigError("got one tensor, expected an iterable of parameters")
    entries = _as_list(params)
    if not entries:
        raise ConfigError("got no parameters to optimise")
    if not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    return [{**group, "params": _as_list(group["params"])} for group in entries]


def _trained(group: Group) -> list[Tensor]:
    return [param for param in group["params"] if param.requires_grad]


def _width(params: Iterable[Any]) -> int:
    tensors = [param[1] if isinstance(param, tuple) else param for param in params]
    shapes = [list(tensor.shape) for tensor in tensors if isinstance(tensor, Tensor) and tensor.requires_grad]
    if not shapes:
        raise ConfigError("no parameter requires gradients")
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        shape_list = ", ".join(map(str, shapes[:6])) + (", …" if len(shapes) > 6 else "")
        raise ConfigError(
            f"expected parameters stacked for the same number of members, got the shapes {shape_list}"
        )
    if any(isinstance(tensor, Tensor) and tensor.is_complex() for tensor in tensors):
        raise ConfigError("complex parameters are not supported")
    return shapes[0][0]


def _is_member_vector(value: Any, width: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (width,) and value.dtype == torch.float64
