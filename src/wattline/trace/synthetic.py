"""Synthetic traces: a seeded stream of jobs that resembles a training cluster.

Arrivals are Poisson; run times are Philly-like, mostly minutes to hours with a tail of days; most
jobs want one GPU. Each property draws from its own stream, so that changing one leaves the others.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import ConfigError

GPU_MIX = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
"""Requested GPUs, and the share of jobs that request so many."""

MODELS = (
    ("resnet18", 128), ("resnet50", 64), ("vgg16", 64), ("inception3", 64),
    ("bert", 64), ("gpt2", 128), ("transformer", 128), ("deepspeech2", 32),
)  # fmt: skip
"""Models and their batch sizes, drawn with equal probability."""

_SHORT = (0.8, 1.5, 3.0)  # share of jobs, and the range of log10(minutes) they run
_LONG = (0.2, 3.0, 4.0)
_EACH_RECURS = 10  # jobs per recurring key, on average
_SPREAD = 0.1  # sigma of the log run time between recurrences of one job, and members of a sweep
_SWEEP = (4, 16)  # the fewest and the most members of a sweep


def synth(
    count: int = 1000,
    seed: int = 0,
    jobs_per_hour: float | None = None,
    load: float = 0.8,
    gpus_total: int = 128,
    gpu_mix: Mapping[int, float] = GPU_MIX,
    teams: int = 4,
    users: int = 20,
    deadlines: float = 0.2,
    recurring: float = 0.3,
    urgent: float = 0.1,
    sweeps: float = 0.0,
) -> Jobs:
    """Return *count* synthetic jobs; the same *seed* gives the same jobs in any process.

    Without *jobs_per_hour* they arrive so fast that on average they ask for *load* times the GPU time
    that *gpus_total* GPUs have. The shares *deadlines*, *recurring* and *urgent* of the jobs have a
    deadline (1.2 to 4 times their run time after submission), a recurrence key, and priority 1. The share
    *sweeps* comes in sweeps of 4 to 16 jobs that are submitted together, ask for the same and may be fused.
    """
    _check(count, seed, jobs_per_hour, load, gpus_total, gpu_mix, teams, users)
    shares = {"deadlines": deadlines, "recurring": recurring, "urgent": urgent, "sweeps": sweeps}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"synth: {name} is {share}, expected a share from 0 to 1")

    def draws(stream: int) -> Floats:
        return np.random.default_rng([seed, stream]).random(count)

    swept, leader, fuse = find_sweeps(draws(12), draws(13), sweeps)
    first, key = _recurrences(draws(0), draws(1), recurring, swept, leader)
    gpus = choose_gpus(draws(2), gpu_mix)[first]
    spread = np.random.default_rng([seed, 3]).standard_normal(count) * _SPREAD - _SPREAD**2 / 2
    again = first != np.arange(count)
    duration_s = _durations_s(draws(4), draws(5))[first] * np.where(again, np.exp(spread), 1.0)
    rate = _jobs_per_s(jobs_per_hour, load, gpus_total, gpu_mix)
    submit_s = np.round(np.cumsum(-np.log1p(-draws(6))) / rate, 3)[leader]
    user = (draws(7) * users).astype(np.int64)[first]
    model = (draws(8) * len(MODELS)).astype(np.int64)[first]
    slack = 1.2 + 2.8 * draws(9)
    return Jobs.of(
        submit_s=submit_s,
        gpus=gpus,
        duration_s=np.round(duration_s, 3),
        deadline_s=np.where(draws(10) < deadlines, np.round(submit_s + slack * duration_s, 3), np.inf),
        priority=np.where(draws(11)[leader] < urgent, 1.0, 0.0),
        batch=np.array([batch for _, batch in MODELS], dtype=np.int64)[model],
        team=_label("team", user % teams),
        user=_label("user", user),
        model=Labels(model, tuple(name for name, _ in MODELS)),
        key=key,
        fuse=fuse,
    )


def parse_parameters(text: str, generate: Callable[..., Jobs] = synth) -> dict[str, Any]:
    """Parse `count=500,seed=3,gpu_mix=1:0.5|8:0.5` into parameters of the function *generate*."""
    known, word = inspect.signature(generate).parameters, generate.__name__
    chosen: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        hint = f"the parameters are: {', '.join(known)}"
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.0)[0]
            raise ConfigError(f"{word}: unknown parameter {name!r}, did you mean {near!r}?", hint)
        if not equals:
            raise ConfigError(f"{word}: {name} has no value, expected {name}=…", hint)
        try:
            chosen[name] = _parse_value(name, value, known[name].default)
        except ValueError:
            raise ConfigError(
                f"{word}: {name} is {value!r}, expected a value like its default", hint
            ) from None
    return chosen


def _parse_value(name: str, value: str, default: Any) -> Any:
    if name == "gpu_mix":
        pairs = (pair.split(":") for pair in value.split("|"))
        return {int(gpus): float(share) for gpus, share in pairs}
    return int(value) if isinstance(default, int) else float(value)


def _check(
    count: int,
    seed: int,
    jobs_per_hour: float | None,
    load: float,
    gpus_total: int,
    gpu_mix: Mapping[int, float],
    teams: int,
    users: int,
) -> None:
    least = (("count", count, 1), ("seed", seed, 0), ("gpus_total", gpus_total, 1))
    for name, value, low in (*least, ("teams", teams, 1), ("users", users, 1)):
        if value < low:
            raise ConfigError(f"synth: {name} is {value}, expected at least {low}")
    for name, rate in (("load", load), ("jobs_per_hour", jobs_per_hour)):
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"synth: {name} is {rate}, expected a number above 0")
    shares = list(gpu_mix.values())
    if not shares or min(gpu_mix) < 1 or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise ConfigError(f"synth: gpu_mix is {dict(gpu_mix)}, expected shares of GPU counts, at least 1")


def find_sweeps(length: Floats, which: Floats, sweeps: float) -> tuple[Bools, Ints, Labels]:
    """Return for every job whether it is in a sweep, the first job of it (or itself), and the fusion key."""
    count, (least, most) = len(length), _SWEEP
    starts = np.cumsum(least + (length * (most - least + 1)).astype(np.int64))
    run = np.searchsorted(starts, np.arange(count), side="right")  # of jobs that follow each other
    swept = (which < sweeps)[run]
    first = np.where(swept, np.concatenate(([0], starts))[run], np.arange(count))
    return (
        swept,
        first,
        Labels.of(f"sweep-{at}" if at >= 0 else "" for at in np.where(swept, run, -1).tolist()),
    )


def _recurrences(
    draw: Floats, which: Floats, recurring: float, swept: Bools, leader: Ints
) -> tuple[Ints, Labels]:
    """Return for every job the first job of its recurrence or sweep, and its recurrence key."""
    recurs = (draw < recurring) & ~swept
    groups = max(1, round(len(draw) * recurring / _EACH_RECURS))
    group = np.where(recurs, (which * groups).astype(np.int64), groups + leader)
    _, first, code = np.unique(group, return_index=True, return_inverse=True)
    names = [f"recurring-{g}" for g in range(groups)] + [""]
    return first[code].astype(np.int64), Labels(np.where(recurs, group, groups), tuple(names))


def choose_gpus(draw: Floats, mix: Mapping[int, float]) -> Ints:
    """Return numbers of GPUs with the shares *mix*; *draw* is uniform in [0, 1)."""
    gpus, shares = np.array(list(mix), dtype=np.int64), np.array(list(mix.values()))
    edges = np.cumsum(shares) / shares.sum()
    return np.asarray(gpus[np.minimum(np.searchsorted(edges, draw, side="right"), len(gpus) - 1)])


def _durations_s(which: Floats, where: Floats) -> Floats:
    (share, low, high), (_, tail_low, tail_high) = _SHORT, _LONG
    log10 = np.where(which < share, low + (high - low) * where, tail_low + (tail_high - tail_low) * where)
    return np.asarray(60.0 * 10.0**log10)


def _jobs_per_s(jobs_per_hour: float | None, load: float, gpus_total: int, mix: Mapping[int, float]) -> float:
    if jobs_per_hour is not None:
        return jobs_per_hour / 3600.0
    # The mean of 10**U(low, high) is the area under it.
    mean_s = 60.0 * sum(
        share * (10**high - 10**low) / ((high - low) * math.log(10)) for share, low, high in (_SHORT, _LONG)
    )
    mean_gpus = sum(gpus * share for gpus, share in mix.items()) / sum(mix.values())
    return load * gpus_total / (mean_s * mean_gpus)


def _label(word: str, code: Ints) -> Labels:
    return Labels(code, tuple(f"{word}-{i}" for i in range(int(code.max()) + 1)))
