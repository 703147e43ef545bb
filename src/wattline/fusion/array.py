"""Many models of one architecture as one module: every tensor of theirs is a row of one of the array's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.architecture_check import check_alike, is_same, shared
from wattline.fusion.lowering.fallback import settle, warn_alone, warn_slow
from wattline.fusion.lowering.forward import Where, each, each_alone, run
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.per_member import bare
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.module_state import FRAME, state_of
from wattline.fusion.optim import optimisers_of


def fuse(models: Sequence[nn.Module]) -> FusedArray:
    """One module that computes what *models* would, each with its own weights, buffers and random numbers.

    The models may differ in nothing but the values of their tensors; `NotFusible` says what else differs.
    They are left as they are: the array has copies of their weights. Frozen parameters and buffers that are
    the same object in all of them are kept once.
    """
    models = list(models)
    check_alike(models)
    common = shared(models)
    memo: dict[int, Any] = {id(t): t for t in common.values()}
    states = [state_of(model) for model in models]
    for name, first in states[0].items():
        if name not in common:
            rows = torch.stack([state[name].detach() for state in states])
            memo[id(first)] = (
                nn.Parameter(rows, first.requires_grad) if isinstance(first, nn.Parameter) else rows
            )
    kept = _kept(models, memo)
    array = FusedArray(copy.deepcopy(models[0], memo), len(models), frozenset(common))
    array._carried.update(kept)
    return array


def _kept(models: Sequence[nn.Module], memo: dict[int, Any]) -> dict[Where, Tensor]:
    """Tensors in plain attributes, of which members have their own; *memo* learns how to copy them."""
    found = {}
    for path, module in models[0].named_modules():
        for name, value in vars(module).items():
            if not isinstance(value, Tensor) or name in FRAME:
                continue
            memo[id(value)] = value.detach().clone()
            all_have = [vars(model.get_submodule(path))[name] for model in models]
            if not value.is_leaf or any(not is_same(value, other) for other in all_have):
                found[path, name] = torch.stack([t.detach() for t in all_have])
    return found


class FusedArray(nn.Module):
    """What `fuse` makes: `array(x)` is what each member says of x, members in front.

    `body` is a member whose tensors are those of all members, one row each; train, eval, to and the like are
    those of any module.
    """

    def __init__(self, body: nn.Module, size: int, common: frozenset[str]) -> None:
        super().__init__()
        self.body = body
        self.training = body.training
        self._size = size
        self._common = common
        self._carried: dict[Where, Tensor] = {}
        self._settled: set[bool] = set()
        self._announced: list[Any] = []
        self._slow: set[str] = set()
        self._following: WeakSet[Any] = WeakSet()
        self.ways = Ways()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_following": None, "_announced": []}  # a copy has its own followers

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._following = WeakSet()

    def __len__(self) -> int:
        return self._size

    def extra_repr(self) -> str:
        """The width, for `print(array)`."""
        return f"{self._size} members"

    @property
    def stacked(self) -> dict[str, Tensor]:
        """The tensors that members have of their own, by the name that they have in a member: [B, …]."""
        return {name: t for name, t in state_of(self.body).items() if name not in self._common}

    @property
    def common(self) -> dict[str, Tensor]:
        """The frozen parameters that all members share, by name."""
        return {name: t for name, t in state_of(self.body).items() if name in self._common}

    def forward(self, *args: Any, members: bool | Sequence[bool] = False, **kwargs: Any) -> Any:
        """What each member answers, members in front.

        All members get the same arguments; with *members*, tensors have a leading dimension B and each gets
        its row. *members* may be a list that says so of each positional argument.
        """
        inputs = Inputs.of(args, kwargs, members, self._size)
        stacked, common = self.stacked, self.common
        buffers = [t for t in [*stacked.values(), *common.values()] if not isinstance(t, nn.Parameter)]
        carried = dict(self._carried)
        fixed = [t for t in inputs.tensors if not t.is_inference()]
        versions = [t._version for t in fixed]

        def attempt() -> Any:
            nonlocal carried
            if versions != [t._version for t in fixed]:
                raise NotFusible(
                    "the forward writes into its input and cannot be fused", "give it input.clone()"
                )
            carried = dict(self._carried)
            state = {name: t._version for name, t in common.items()}
            out = run(self.body, dict(stacked), common, carried, inputs, self.ways, slow=slow)
            for name, tensor in common.items():
                if tensor._version != state[name]:
                    raise NotFusible(f"{name} is shared by all members, and the forward writes to it")
            return out

        new = self.training not in self._settled
        slow: set[str] | None = set() if new else None
        out = settle(self.body, buffers, attempt, watch_chance=new)
        self._settled.add(self.training)
        self._carried = carried
        warn_slow((slow or set()) - self._slow)
        self._slow |= slow or set()
        return out

    def loss(
        self, fn: Callable[..., Tensor], output: Any, target: Any = None, *, members: bool = False
    ) -> Tensor:
        """`fn(output, target)` of each member: a vector of B losses.

        Their sum's gradient is each member's own, since members share no weights. *output* is what the array
        answered; all members have the same *target*, or each its row of it with *members*.
        """
        given = () if target is None else (target,)
        return self.each(fn, output, *given, members=(True, *[members] * len(given)))

    def each(self, fn: Callable[..., Any], *args: Any, members: bool | Sequence[bool] = True) -> Any:
        """`fn(*args)` for each member; *members* says which arguments have a row for each."""
        slow: set[str] = set()
        try:
            out = each(fn, args, members, self._size, self.ways, slow)
        except NotFusible:
            raise
        except Exception as error:
            out = each_alone(fn, args, members, self._size)
            if fn not in self._announced:
                self._announced.append(fn)
                warn_alone(getattr(fn, "__name__", type(fn).__name__), error)
        else:
            warn_slow(slow - self._slow)
            self._slow |= slow
        return out

    @property
    def carries(self) -> bool:
        """Whether modules keep tensors in plain attributes from one call to the next."""
        return bool(self._carried)

    def drop(self, indices: Sequence[int]) -> None:
        """Members leave; the others, with the state of their optimisers, schedules and scalers, close up."""
        gone = {self._check(index) for index in indices}
        rows = [index for index in range(self._size) if index not in gone]
        if not rows:
            raise NotFusible("all members would leave, expected at least one to stay")
        self._resize(lambda _, t: t[rows].clone(), len(rows))
        for optimiser in optimisers_of(self.parameters()):
            optimiser.keep(rows, {p: p for p in self.parameters()})
        for follower in self._following:
            follower.keep(rows)

    def add(self, models: Sequence[nn.Module], **hyper: Any) -> None:
        """Models join at the end, as if just begun; *hyper* is what optimisers and schedules get for them.

        A number is for all of *models*, a list for one each; what is not given is what the optimiser was made
        with for all members.
        """
        models = list(models)
        if not models:
            return
        if self._carried:
            raise NotFusible(
                "modules keep tensors from one call to the next, which those who join do not have"
            )
        check_alike([self.member(0), *models])
        states = [state_of(model) for model in models]
        for name, tensor in self.common.items():
            if any(not torch.equal(state[name], tensor) for state in states):
                raise NotFusible(f"{name} is shared by all members, and a model that joins has another")
        optimisers = optimisers_of(self.parameters())
        for optimiser in optimisers:  # complains before anything has changed
            optimiser.check_joining(len(models), hyper)
        self._resize(
            lambda name, t: torch.cat(
                [t, torch.stack([s[name].detach() for s in states]).to(t.device, t.dtype)]
            ),
            self._size + len(models),
        )
        for optimiser in optimisers:
            optimiser.extend(len(models), {p: p for p in self.parameters()}, **hyper)
        for follower in self._following:
            follower.extend(len(models))

    def follow(self, follower: Any) -> None:
        """*follower* (a `Scaler`) is told who leaves and who joins, by `keep(rows)` and `extend(count)`."""
        self._following.add(follower)

    def _resize(self, change: Callable[[str, Tensor], Tensor], size: int) -> None:
        with torch.no_grad():
            for name, tensor in self.stacked.items():
                data = change(name, tensor.data)
                # While somebody holds a graph of an earlier step, PyTorch would give gradients to the node
                # that it made for the old shape. Data of another type makes it forget that node.
                other = torch.float64 if data.dtype == torch.float32 else torch.float32
                tensor.data = data.new_empty(0, dtype=other)
                tensor.data = data
                tensor.grad = None
            self._carried = {at: change("", t) for at, t in self._carried.items()}
        self._size = size

    def member_state_dict(self, index: int) -> dict[str, Tensor]:
        """The state dict of one member, as its own module would give it."""
        return self.member(index).state_dict()

    def member(self, index: int) -> nn.Module:
        """One member as an ordinary module, with copies of its weights."""
        index = self._check(index)
        memo: dict[int, Any] = {}
        for tensor in self.stacked.values():
            row = tensor.detach()[index].clone()
            memo[id(tensor)] = (
                nn.Parameter(row, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else row
            )
        for tensor in self.common.values():
            memo[id(tensor)] = tensor
        with bare(self.body):
            model = copy.deepcopy(self.body, memo)
        for (path, name), tensor in self._carried.items():
            model.get_submodule(path).__dict__[name] = tensor[index].clone()
        return model

    def split(self) -> list[nn.Module]:
        """All members as ordinary modules, with copies of their weights."""
        return [self.member(index) for index in range(self._size)]

    def load_member(self, index: int, state: dict[str, Tensor]) -> None:
        """Gives a member the weights and buffers of an ordinary module's state dict."""
        model = copy.deepcopy(self.member(index))  # with a copy of what all share, too
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise NotFusible(f"member {index} cannot be loaded: {error}") from None
        new = state_of(model)
        for name, tensor in self.common.items():
            if not torch.equal(tensor, new[name]):
                raise NotFusible(f"{name} is shared by all members, and the state dict has another")
        with torch.no_grad():
            for name, tensor in self.stacked.items():
                tensor[index].copy_(new[name])

    def _check(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise NotFusible(f"there is no member {index}, the array has {self._size}")
        return index % self._size
