"""`Objective`: the building, training and evaluation of trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from wattline.errors import ConfigError, did_you_mean
from wattline.fusion.array import FusedArray
from wattline.fusion.optim import Adam, ArrayOptimizer
from wattline.fusion.search.space import Config


@dataclass(frozen=True)
class Objective:
    """Training of the trials that have all infusible hyper-parameters in common.

    *build* makes one model from the whole configuration of a trial. *batches* returns the batches of an
    epoch, each (input, target) as for `train_step`; epochs are counted from 0 for every trial. If it is an
    iterable instead of a function, all members get its batches once per epoch, independent of their age.
    *evaluate* returns one number for each member of the array, which is in evaluation mode. *hyper* names the
    hyper-parameters of the optimiser, one value per member, and *fusible* those that only *build* uses and
    that change no shape; all others are infusible. *optimiser* is one of this package's, or a
    `functools.partial` of one.
    """

    build: Callable[[Config], nn.Module]
    batches: Callable[[int], Iterable[Any]] | Iterable[Any]
    loss: Callable[..., Tensor]
    evaluate: Callable[[FusedArray], Tensor | Sequence[float]]
    optimiser: Callable[..., ArrayOptimizer] = Adam
    hyper: tuple[str, ...] = ("lr",)
    fusible: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("hyper", "fusible"):
            names = getattr(self, name)
            if isinstance(names, str):
                raise ConfigError(f"{name} is {names!r}, expected a tuple of names: {name}=({names!r},)")
            object.__setattr__(self, name, tuple(names))
        kind = getattr(self.optimiser, "func", self.optimiser)
        keys: tuple[str, ...] = getattr(kind, "keys", self.hyper)
        for name in self.hyper:
            if name not in keys:
                raise ConfigError(
                    f"{kind.__name__} has no per-member {name}, expected one of {', '.join(keys)}",
                    did_you_mean(name, keys),
                )

    def infusible(self, space: Collection[str]) -> tuple[str, ...]:
        """Return the names in the space on which all members of an array must agree."""
        for kind in ("hyper", "fusible"):
            for name in getattr(self, kind):
                if name not in space:
                    raise ConfigError(
                        f"{kind} names {name}, but the space has only {', '.join(space)}",
                        did_you_mean(name, space)
                        or f"add it to the space; a fixed value is allowed: {name}=0.9",
                    )
        return tuple(name for name in space if name not in {*self.hyper, *self.fusible})


class SharedConfig(Mapping[str, Any]):
    """The infusible hyper-parameters of an array, as passed to the builder of objectives.

    Their names are known only after the first objective is built. Until then all can be read, and
    `restrict_to` raises if one was read that differs between members.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._names: tuple[str, ...] | None = None
        self._read: dict[str, None] = {}

    def restrict_to(self, names: Sequence[str]) -> None:
        """Allow only *names* from now on."""
        self._names = tuple(names)
        for name in self._read:
            self._check(name)

    def _check(self, name: str) -> None:
        if self._names is not None and name in self._config and name not in self._names:
            raise ConfigError(
                f"{name} was read from the shared config, but it may differ between members",
                f"read config[{name!r}] in build, or remove {name} from hyper and fusible",
            )

    def __getitem__(self, name: str) -> Any:
        self._check(name)
        self._read[name] = None
        return self._config[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._config if self._names is None else self._names)

    def __len__(self) -> int:
        return len(self._config if self._names is None else self._names)

    def __repr__(self) -> str:
        return repr({name: self._config[name] for name in self})
