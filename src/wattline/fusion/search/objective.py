"""What is tuned: how a trial is built, trained and judged."""

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
    """How trials are trained that have all infusible hyper-parameters in common.

    *build* makes one model from the whole configuration of a trial. *batches* gives the batches of an epoch,
    each (input, target) as `train_step` takes them, counted from 0 for every trial; an iterable instead of a
    function is gone through once for all members, however old they are. *evaluate* gives one number for each
    member of the array, which is in evaluation mode. *hyper* names the hyper-parameters that the optimiser
    gets, one value per member, and *fusible* others that only *build* uses and that change no shape; what is
    in neither is infusible. *optimiser* is one of this package's, or a `functools.partial` of one.
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
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"{name} is {given!r}, expected names: {name}=({given!r},)")
            object.__setattr__(self, name, tuple(given))
        kind = getattr(self.optimiser, "func", self.optimiser)
        keys: tuple[str, ...] = getattr(kind, "keys", self.hyper)
        for name in self.hyper:
            if name not in keys:
                raise ConfigError(
                    f"{kind.__name__} has no {name} for each member, expected one of {', '.join(keys)}",
                    did_you_mean(name, keys),
                )

    def infusible(self, space: Collection[str]) -> tuple[str, ...]:
        """The names of the space that all members of an array must agree on."""
        for kind in ("hyper", "fusible"):
            for name in getattr(self, kind):
                if name not in space:
                    raise ConfigError(
                        f"{name} is named in {kind}, but the space has only {', '.join(space)}",
                        did_you_mean(name, space) or f"a fixed value may be in the space: {name}=0.9",
                    )
        return tuple(name for name in space if name not in {*self.hyper, *self.fusible})


class Shared(Mapping[str, Any]):
    """The infusible hyper-parameters of an array, as the builder of objectives gets them.

    Which they are is known only when the first objective is there. Until then all can be read, and who has
    read one that differs between members is told so by `limit`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._names: tuple[str, ...] | None = None
        self._read: dict[str, None] = {}

    def limit(self, names: Sequence[str]) -> None:
        """From now on only *names* are there."""
        self._names = tuple(names)
        for name in self._read:
            self._check(name)

    def _check(self, name: str) -> None:
        if self._names is not None and name in self._config and name not in self._names:
            raise ConfigError(
                f"{name} was read from what members share, but it may differ between members",
                f"read config[{name!r}] in build, or take {name} out of hyper and fusible",
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
