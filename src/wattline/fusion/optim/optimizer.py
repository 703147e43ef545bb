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
from wattline.fusion.optim.broadcast import align_with
from wattline.fusion.optim.counters import merge_counters, separate_counters
from wattline.fusion.optim.hyperparameters import (
    Range,
    is_member_vector,
    mark_varying,
    merge_joining,
    pair,
    select_rows,
    vector,
)
from wattline.fusion.optim.ordinary_scheduler import OptimizerWithoutScheduler
from wattline.fusion.optim.param_groups import (
    Group,
    Params,
    count_members,
    read_group,
    read_groups,
    trained_params,
)
from wattline.fusion.optim.saved_state import check_array_state
from wattline.fusion.optim.step_plan import DECIDING, StepPlan, make_plan
from wattline.fusion.optim.update import Flags, GroupLayout, Hyper, Rule, Update

Numbers = float | Sequence[float] | Tensor
Pairs = tuple[Numbers, Numbers] | Sequence[tuple[float, float]]
_OPTIMISERS: WeakSet[ArrayOptimizer] = WeakSet()
_KINDS: WeakSet[type[ArrayOptimizer]] = WeakSet()


class ArrayOptimizer(OptimizerWithoutScheduler):
    """An optimiser of parameters of [B, ...], each row of which is updated independently.

    Hyper-parameters are float64 vectors of B in the parameter groups: `group["lr"]`; `group["betas"]` has
    two. They may be written to, or replaced by a number or a row. Frozen parameters are not updated but keep
    their place, so that states are numbered as in an ordinary optimiser of one member.

    `step` updates from `.grad`. A compiled step instead calls `init_state` once and then traces
    `build_update()(params, grads, state_tensors(), hyper_tensors())` with all four as inputs, so that none
    is a constant of the trace. `build_update()` returns an equal value as long as the trace is valid.
    """

    torch_class: ClassVar[type[torch.optim.Optimizer] | None]  # None: PyTorch has none
    update_tolerance: ClassVar[float] = 0.1  # by which two updates may differ by rounding, of their norm
    rule: Rule
    ranges: ClassVar[Mapping[str, Range]]
    switches: ClassVar[tuple[str, ...]]  # names of settings that all members have in common
    counters: ClassVar[tuple[str, ...]] = ("step",)  # names of the state that is one number per member
    eager_state: ClassVar[bool] = False  # the ordinary optimiser has state before its first step
    keys: ClassVar[tuple[str, ...]]  # names of the hyper-parameters in parameter groups

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.keys = tuple(dict.fromkeys("betas" if name.startswith("beta") else name for name in cls.ranges))
        _KINDS.add(cls)

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        groups = read_groups(params)
        self.width = count_members([param for group in groups for param in group["params"]])
        self.followers: WeakSet[Any] = WeakSet()  # schedules
        self._initial_values: list[dict[str, Any]] = []
        self._plan: StepPlan | None = None
        super().__init__(groups, defaults)
        _OPTIMISERS.add(self)

    @abstractmethod
    def state_names(self, flags: Flags) -> tuple[str, ...]:
        """Return the names of the state tensors of a parameter."""

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of stacked parameters, which may have hyper-parameters of its own."""
        super().add_param_group(read_group(param_group))
        group = self.param_groups[-1]
        try:
            initial = mark_varying({key: group[key] for key in self.keys})
            if (width := count_members(group["params"])) != self.width:
                raise ConfigError(f"the new group has {width} members, the others have {self.width}")
            self._normalise(group)
            self._check(group)
        except BaseException:
            self.param_groups.pop()
            raise
        self._initial_values.append(initial)

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters, group by group: the order of the update's first two arguments."""
        return [param for group in self.param_groups for param in trained_params(group)]

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
            starts = self.initial_state(self._normalise(group))
            fresh: dict[Any, dict[str, Tensor]] = {}
            trained = trained_params(group)
            for param in trained:
                own = self.state[param]
                for name in names:
                    if name not in own and name not in self.counters:
                        own[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
                        if name in starts:
                            own[name].add_(align_with(starts[name].to(param), param))
                if "step" in names and "step" not in own:
                    if param.device not in fresh:
                        fresh[param.device] = self._new_counters(param.device, starts)
                    own.update(fresh[param.device])
            if idle_ids and "step" in names:
                separate_counters(
                    [self.state[param] for param in trained if id(param) in idle_ids],
                    [self.state[param] for param in trained if id(param) not in idle_ids],
                    self.counters,
                )

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
        idle = [param for param, grad in zip(params, grads, strict=True) if grad is None]
        plan = self._plan
        if plan is None or idle or not plan.is_current(params, self.state):
            self._plan = plan = make_plan(self, params, idle)
        if active is not None and bool(active.all()):
            active = None
        plan.update(params, grads, plan.tensors, plan.hyper, active)
        return loss

    def keep(self, rows: Sequence[int], params: Mapping[Any, Any]) -> None:
        """Keep the members *rows*, in that order; *params* maps parameters to their narrower successors."""
        if invalid := [row for row in rows if not 0 <= row < self.width]:
            raise ConfigError(f"no member {invalid[0]}, expected 0 to {self.width - 1}")
        self._replace_parameters(params, len(rows), lambda tensor, _name, _group: tensor[list(rows)].clone())
        for group in self.param_groups:
            self._write(group, {name: select_rows(row, rows) for name, row in self._rows(group).items()})
        for follower in self.followers:
            follower.keep(rows)

    def check_joining(self, count: int, hyper: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the values of *count* new members, group by group; raise if some are missing or unknown."""
        known = set(self.keys).union(*(follower.keys for follower in self.followers))
        if unknown := set(hyper) - known:
            raise ConfigError(
                f"{type(self).__name__} has no {min(unknown)}, expected one of {', '.join(sorted(known))}"
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
        starts = [self.initial_state(new) for new in added]

        def widen(tensor: Tensor, name: str, group: int) -> Tensor:
            rows = tensor.new_zeros((count, *tensor.shape[1:]))
            if name in starts[group]:
                rows += align_with(starts[group][name].to(rows), rows)
            return torch.cat([tensor, rows])

        self._replace_parameters(params, self.width + count, widen)
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
        check_array_state(self, state_dict)
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for param, place in zip(group["params"], saved["params"], strict=True):
                for name, tensor in self.state.get(param, {}).items():
                    # The base class has rounded counters other than "step" to the parameter's type.
                    counts = name in self.counters
                    source = state_dict["state"][place][name] if counts else tensor
                    kind = torch.float64 if counts else param.dtype
                    self.state[param][name] = source.to(device=param.device, dtype=kind, copy=True)
        self.share_counters()

    def share_counters(self) -> None:
        """Merge equal counters of the parameters of a group, to compute less."""
        for group in self.param_groups:
            merge_counters([self.state.get(param, {}) for param in trained_params(group)], self.counters)

    def initial_state(self, hyper: Hyper) -> dict[str, Tensor]:
        """Return by name the initial values, [B] each, of the state that does not start at 0."""
        return {}

    def group_rule(self, group: Group) -> Rule:
        """Return the update rule of one parameter group; equal rules have equal traces."""
        return self.rule

    @classmethod
    def ordinary_defaults(cls) -> dict[str, Any]:
        """Return the defaults of the ordinary optimiser of one member."""
        if cls.torch_class is None:
            return {}
        return dict(cls.torch_class([torch.zeros(1, 1)]).defaults)  # type: ignore[call-arg]

    @classmethod
    def foreign_names(cls) -> set[str]:
        """Return the names of hyper-parameters and switches that only other optimisers have."""
        known = {name for kind in _KINDS for name in (*kind.keys, *kind.switches)}
        return known - {*cls.keys, *cls.switches, *cls.ordinary_defaults()}

    def read_switch(self, name: str, value: Any) -> Any:
        """Return the meaning of a switch's *value*, for comparisons."""
        return bool(value)

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
        own = {"width": self.width, "_initial_values": self._initial_values, "_plan": None}
        return {**super().__getstate__(), **own}

    def _check(self, group: Group) -> None:
        """Validate hyper-parameters that depend on each other."""

    def _update(self, tensors: list[Tensor]) -> Update:
        place = {id(tensor): index for index, tensor in enumerate(tensors)}
        groups = []
        for group in self.param_groups:
            flags = self._flags(group)
            names = self.state_names(flags)
            states = (self.state[param] for param in trained_params(group))
            groups.append(
                GroupLayout(
                    self.group_rule(group),
                    tuple(tuple((name, place[id(own[name])]) for name in names) for own in states),
                    flags,
                )
            )
        return Update(tuple(groups))

    def _flags(self, group: Group) -> Flags:
        """Return the flags the update may branch on: switches, and which optional terms any member uses."""
        flags = {name for name in self.switches if group[name]}
        for name in DECIDING:
            used = [value != 0 for value in group[name].tolist()] if name in self.ranges else []
            if any(used):
                flags.add(name)
                if name == "momentum" and not all(used):
                    flags.add("mixed")
        return frozenset(flags)

    def _normalise(self, group: Group, width: int | None = None) -> dict[str, Tensor]:
        width = self.width if width is None else width
        for key in self.keys:
            if key not in group:
                raise ConfigError(
                    f"a parameter group has no {key}, expected the hyper-parameters of "
                    f"{type(self).__name__}: {', '.join(self.keys)}",
                    f'set optimiser.param_groups[i]["{key}"] to a number, or to one per member',
                )
            value = group[key]
            if key == "betas":
                if not isinstance(value, tuple) or not all(is_member_vector(row, width) for row in value):
                    group[key] = pair(key, value, width, self.ranges["beta1"])
            elif not is_member_vector(value, width):
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

    def _new_counters(self, device: torch.device, starts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        zeros = torch.zeros(self.width, dtype=torch.float64, device=device)
        return {
            name: zeros + starts[name].to(device) if name in starts else zeros.clone()
            for name in self.counters
        }

    @torch.no_grad()
    def _replace_parameters(
        self, params: Mapping[Any, Any], width: int, change: Callable[[Tensor, str, int], Tensor]
    ) -> None:
        """Replace the parameters, and change each state tensor once, given its name and its group."""
        for group in self.param_groups:
            for param in trained_params(group):
                if param not in params or params[param].shape[0] != width:
                    raise ConfigError(
                        f"a parameter of the shape {list(param.shape)} has no successor of {width} members"
                    )
        changed: dict[int, Tensor] = {}
        for index, group in enumerate(self.param_groups):
            for param in group["params"]:
                own = self.state.pop(param, {})
                for name, tensor in own.items():
                    if id(tensor) not in changed:
                        changed[id(tensor)] = change(tensor, name, index)
                if own:
                    new = {name: changed[id(tensor)] for name, tensor in own.items()}
                    self.state[params.get(param, param)] = new
            self._normalise(group)
            group["params"] = [params.get(param, param) for param in group["params"]]
        self.width = width


def require_array_optimiser(optimiser: Any) -> None:
    """Raise `ConfigError` unless *optimiser* is one of this package's."""
    if not isinstance(optimiser, ArrayOptimizer):
        kind = type(optimiser)
        same = next((own.__name__ for own in _KINDS if own.torch_class is kind), "Adam")
        raise ConfigError(
            f"got {kind.__module__}.{kind.__qualname__}, expected an optimiser of wattline.fusion",
            f"create it for the array: fusion.{same}(array, lr=...)",
        )


def find_optimisers(params: Iterable[Any]) -> list[ArrayOptimizer]:
    """Return the optimisers that train any of *params*."""
    wanted = {id(param) for param in params}
    return [
        o for o in _OPTIMISERS if any(id(p) in wanted for group in o.param_groups for p in group["params"])
    ]
