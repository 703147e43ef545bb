"""The settings of a job that its speed and power depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints, Table
from wattline.errors import ConfigError, did_you_mean

NODE_GPUS = 8
"""GPUs per node where the number of nodes is not given."""

UNSET = {"gpus": 1.0, "fuse": 1.0}
"""Default of each setting: one GPU, the fewest nodes; nan leaves a setting unchanged."""


@dataclass(frozen=True, eq=False)
class Settings(Table):
    """One row per way to run a job; nan: not set, not limited, not known.

    *batch* is of the whole job, all its GPUs together. *cap_w* and *clock_mhz* are of each GPU.
    *cpus*, *mem_gib* and *read_mib_s*, what storage delivers to it, are of the whole job. *fuse* jobs are
    trained as one array.
    """

    gpus: Floats
    nodes: Floats
    batch: Floats
    cap_w: Floats
    clock_mhz: Floats
    cpus: Floats
    mem_gib: Floats
    read_mib_s: Floats
    fuse: Floats

    @classmethod
    def of(cls, **knobs: Any) -> Settings:
        """Build settings from numbers and columns, which are stretched to one length.

        Without *nodes*, jobs use the fewest nodes of `NODE_GPUS` each.
        """
        unknown = set(knobs) - set(KNOBS)
        if unknown:
            word = sorted(unknown)[0]
            raise ConfigError(
                f"{word} is not a knob, expected some of {', '.join(KNOBS)}", did_you_mean(word, KNOBS)
            )
        given = {}
        for name in KNOBS:
            value = UNSET.get(name, np.nan) if knobs.get(name) is None else knobs[name]
            try:
                given[name] = np.asarray(value, np.float64)
            except (TypeError, ValueError):
                raise ConfigError(f"{name} is {value!r}, expected a number, or a column of them") from None
        if np.isnan(given["nodes"]).all():
            given["nodes"] = fewest_nodes(given["gpus"])
        length = max(np.atleast_1d(column).shape[0] for column in given.values())
        columns = {}
        for name, column in given.items():
            if column.ndim > 1 or column.size not in (1, length):
                raise ConfigError(f"{name} has {column.size} values, expected 1 or {length}")
            columns[name] = np.ascontiguousarray(np.broadcast_to(column.reshape(-1), length))
        settings = cls(**columns)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in KNOBS:
            column = getattr(self, name)
            least = 1.0 if name in _COUNTED else 0.0
            wrong = (column < least) | np.isinf(column)
            if least:
                wrong |= np.isnan(column) | (column != np.floor(column))
            elif name != "mem_gib":
                wrong |= column == 0.0
            if wrong.any():
                number = "of at least 0" if name == "mem_gib" else "above 0"
                expected = "a whole number of at least 1" if least else f"a finite number {number}"
                raise ConfigError(f"{name} is {column[int(np.argmax(wrong))]:g}, expected {expected}")
        wide = self.nodes > self.gpus
        if wide.any():
            row = int(np.argmax(wide))
            raise ConfigError(
                f"nodes is {self.nodes[row]:g}, expected at most the number of GPUs, {self.gpus[row]:g}"
            )

    def followed_by(self, more: Settings) -> Settings:
        """Return these rows followed by those of *other*."""
        return Settings(
            **{name: np.concatenate((getattr(self, name), getattr(more, name))) for name in KNOBS}
        )

    @property
    def local_batch(self) -> Floats:
        """Samples per GPU and step; 1 where the batch is not known."""
        return np.where(np.isnan(self.batch), 1.0, self.batch / self.gpus)


def fewest_nodes(gpus: Floats | Ints) -> Floats:
    """Return the fewest nodes of `NODE_GPUS` each."""
    return np.asarray(np.ceil(gpus / NODE_GPUS))


_COUNTED = frozenset(("gpus", "nodes", "fuse"))
KNOBS = tuple(field.name for field in fields(Settings))
