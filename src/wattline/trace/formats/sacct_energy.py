"""Energy of jobs as Slurm recorded it: ConsumedEnergyRaw in joules, ConsumedEnergy with a prefix."""

from __future__ import annotations

import math
import re

import numpy as np

from wattline.core.table import Floats, Labels
from wattline.trace.field_parser import Chunk

METHOD = "Slurm's ConsumedEnergy: the nodes of a job while it ran, with what else ran on them"
"""Method of recorded energy: plugins of acct_gather_energy read the counters of whole nodes."""

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NO_VALUE = 18446744073709551614.0  # NO_VAL64: the plugin failed


def read_energy_j(chunk: Chunk) -> Floats | None:
    """Return the joules of each job, nan where there is no meter; None without either column.

    Slurm writes 0 for a job that it did not meter.
    """
    name = next((n for n in ("ConsumedEnergyRaw", "ConsumedEnergy") if chunk.has(n)), "")
    if not name:
        return None
    words = Labels.of(chunk.words(name))
    by_word = np.array([_parse_energy(word) for word in words.names])
    values: Floats = by_word[words.codes]
    chunk.reject(
        values < 0, lambda row: f"{name} is {words.word(row)!r}, expected joules as in 5400 or 5.40K"
    )
    return np.where(values > 0, values, np.nan)


def _parse_energy(word: str) -> float:
    """Return joules; nan: not metered, -1: not a number."""
    if word in ("", "0", "Unknown", "N/A"):
        return math.nan
    match = _AMOUNT.fullmatch(word)
    if match is None:
        return -1.0
    value = float(match[1]) * _PREFIX[match[2]]
    return math.nan if value == 0 or value >= _NO_VALUE else value
