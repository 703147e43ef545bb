"""Synthetic traces in which every lever of a scheduler matters to some jobs.

Each job is of one class, with models that the library measured on V100s:

- `sweep`: members of a hyper-parameter sweep on one GPU, which may be fused. HFTA (MLSys'21) found that such
  repetitive jobs take 46 % of the GPU hours of a research cluster; 4 to 16 members, as in `synth`.
- `host`: jobs that wait for cores and memory of their host, timed at 3 cores and 62.5 GiB per GPU, with
  Synergy's (OSDI'22) middle mix, as many image as language and speech models (language models need little of
  their host). Their GPUs are fixed.
- `recurring`: jobs on one GPU that come back about ten times (65 % of PAI's tasks recur, NSDI'22) with a
  batch size that may change: Zeus' (NSDI'23) workloads, at 1/8 to 1 of their default batch, up to the largest
  batch that was measured. The gradient noise scale is 49 to 104 times the smallest of these batches: the
  range of the four convolutional and recurrent workloads of Pollux (OSDI'21), fitted to the samples that
  they need at each batch size.
- `elastic`: jobs that run on a quarter to four times their request, 8 GPUs at most: Gavel's (OSDI'20)
  data-parallel models, which were measured on 1 to 8 GPUs and at nearly all batches per GPU that this gives.
- `rigid`: the same models with fixed GPUs.

Run times and requested GPUs are those of `synth` (Philly, ATC'19). A deadline is 1.2 to 4 run times after
submission, and an hour of lateness costs half to twice the GPUs' rent, 3.06 per V100 hour (AWS p3).
Assumed, without a source: half of the jobs save at every stop, the others every 10 to 60 minutes; the shares
of classes and deadlines. All numbers were chosen before any policy ran on such a trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import ConfigError
from wattline.trace.synthetic import GPU_MIX, choose_gpus, find_sweeps

TIMED_ON = "v100"
"""GPU kind on which the jobs take the time of the trace."""

CLASSES = ("sweep", "host", "recurring", "elastic", "rigid")

_MODELS: Mapping[str, tuple[tuple[str, int, int, float], ...]] = {
    # name, batch per requested GPU, largest batch that was measured on a V100, share within the class
    "sweep": (
        ("gavel/ResNet-18", 64, 0, 0.5),
        ("gavel/Transformer", 64, 0, 0.25),
        ("gavel/LM", 20, 0, 0.25),
    ),
    "host": (
        *((f"synergy/{name}", 0, 0, 1 / 15) for name in ("alexnet", "resnet18", "shufflenet")),
        *((f"synergy/{name}", 0, 0, 1 / 15) for name in ("mobilenet", "resnet50")),
        *((f"synergy/{name}", 0, 0, 1 / 9) for name in ("gnmt", "lstm", "transformer")),
        *((f"synergy/{name}", 0, 0, 1 / 6) for name in ("deepspeech", "m5")),
    ),
    "recurring": (
        ("zeus/shufflenetv2", 1024, 4096, 1 / 6),
        ("zeus/resnet50", 256, 360, 1 / 6),
        ("zeus/deepspeech2", 192, 192, 1 / 6),
        ("zeus/neumf", 1024, 16384, 1 / 6),
        ("zeus/bert-sentiment", 128, 128, 1 / 6),
        ("zeus/bert-squad", 32, 56, 1 / 6),
    ),
    "elastic": (
        ("gavel/ResNet-50", 32, 0, 0.25),
        ("gavel/ResNet-18", 64, 0, 0.25),
        ("gavel/Transformer", 64, 0, 0.25),
        ("gavel/LM", 20, 0, 0.25),
    ),
}
_LIKE_ELASTIC = {"rigid": "elastic"}
_NOISE = (49.4, 53.0, 65.7, 103.8)  # cifar10, deepspeech2, yolov3, imagenet: over the smallest batch
_SHRUNK = (1, 2, 4, 8)  # the requested batch is the default over one of these
_MOST_GPUS = 8
_HOST = (3.0, 62.5)  # cores and GiB per GPU of Synergy's servers
_RENT_PER_H = 3.06
_SPREAD = 0.1  # sigma of the log run time between recurrences of one job and members of a sweep
_EACH_RECURS = 10


def combined(
    count: int = 300,
    seed: int = 0,
    load: float = 0.95,
    gpus_total: int = 32,
    sweep: float = 0.25,
    host: float = 0.25,
    recurring: float = 0.2,
    elastic: float = 0.2,
    deadlines: float = 0.3,
    tail: float = 0.2,
    long_h: float = 0.0,
    mixed: int = 0,
    teams: int = 4,
    users: int = 20,
) -> Jobs:
    """Return *count* jobs of five classes; the same *seed* gives the same jobs in any process.

    The shares *sweep*, *host*, *recurring* and *elastic* of the jobs are of that class, the rest is rigid.
    *load* is the requested GPU time over that of *gpus_total* GPUs until the last arrival. *tail* is the
    share of jobs that run for 17 to 167 h. With *long_h* the job in the middle of the first tenth runs for
    that many hours on one GPU. With *mixed* 1 the jobs of Gavel's models accept V100, P100 and K80, the
    others V100 only, since they were not measured elsewhere.
    """
    shares = {"sweep": sweep, "host": host, "recurring": recurring, "elastic": elastic}
    _check(count, seed, load, gpus_total, teams, users, mixed, long_h)
    for name, share in {**shares, "deadlines": deadlines, "tail": tail}.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"combined: {name} is {share}, expected a share from 0 to 1")
    if sum(shares.values()) > 1 + 1e-9:
        raise ConfigError(f"combined: {' + '.join(shares)} is {sum(shares.values()):g}, expected at most 1")

    def draw(stream: int) -> Floats:
        return np.random.default_rng([seed, 2200 + stream]).random(count)

    swept, leader, fuse = find_sweeps(draw(0), draw(1), sweep)
    others = max(1e-9, 1 - sweep)
    edges = np.cumsum([host / others, recurring / others, elastic / others])
    kind = np.where(swept, 0, 1 + np.searchsorted(edges, draw(2), side="right"))
    first, key = _find_recurrences(kind == CLASSES.index("recurring"), draw(3), leader)
    model, batch, most_batch = _choose_models(kind, draw(4))
    one_gpu = (kind == CLASSES.index("sweep")) | (kind == CLASSES.index("recurring"))
    gpus = np.where(one_gpu, 1, choose_gpus(draw(5), GPU_MIX))
    shrunk = np.where(most_batch > 0, np.array(_SHRUNK)[(draw(6) * len(_SHRUNK)).astype(np.int64)], 1)
    noise = np.where(most_batch > 0, _choose(draw(7), _NOISE) * batch / _SHRUNK[-1], 0.0)
    duration_s = _draw_durations_s(draw(8), draw(9), tail)
    long = count // 20 if long_h > 0 else -1
    spread = np.random.default_rng([seed, 2210]).standard_normal(count) * _SPREAD - _SPREAD**2 / 2
    again = first != np.arange(count)
    duration_s = duration_s[first] * np.where(again, np.exp(spread), 1.0)
    batch, gpus, noise = (batch * gpus // shrunk)[first], gpus[first], noise[first]
    model, most_batch, kind = model[first], most_batch[first], kind[first]
    if long >= 0:
        duration_s[long], gpus[long] = 3600.0 * long_h, 1
    elastic_row = kind == CLASSES.index("elastic")
    host_row = kind == CLASSES.index("host")
    submit_s = np.cumsum(-np.log1p(-draw(10)))[leader]
    submit_s *= float(gpus @ duration_s) / (load * gpus_total * float(submit_s[-1]))
    submit_s = np.round(submit_s, 3)
    user = (draw(11) * users).astype(np.int64)[first]
    due = draw(12) < deadlines
    deadline_s = np.round(submit_s + (1.2 + 2.8 * draw(13)) * duration_s, 3)
    late_per_h = np.round(_RENT_PER_H * gpus * 0.5 * 4.0 ** draw(14), 2)
    names = tuple(dict.fromkeys(name for rows in _MODELS.values() for name, *_ in rows))
    return Jobs.of(
        submit_s=submit_s,
        gpus=gpus,
        duration_s=np.round(duration_s, 3),
        deadline_s=np.where(due, deadline_s, np.inf),
        late_per_h=np.where(due, late_per_h, 0.0),
        batch=batch,
        max_batch=most_batch,
        noise=np.asarray(np.round(noise, 1), dtype=np.float64),
        min_gpus=np.where(elastic_row, np.maximum(gpus // 4, 1), gpus),
        max_gpus=np.where(elastic_row, np.minimum(4 * gpus, _MOST_GPUS), gpus),
        cpus=np.where(host_row, _HOST[0] * gpus, 0.0),
        mem_gib=np.where(host_row, _HOST[1] * gpus, 0.0),
        checkpoint_s=np.where(draw(15) < 0.5, 0.0, np.round(600.0 * 6.0 ** draw(16))),
        model=Labels(model, names),
        gpu_kind=_accepted_kinds(Labels(model, names), mixed),
        team=Labels(user % teams, tuple(f"team-{at}" for at in range(teams))),
        user=Labels(user, tuple(f"user-{at}" for at in range(users))),
        key=key,
        fuse=fuse,
    )


def _check(
    count: int, seed: int, load: float, gpus_total: int, teams: int, users: int, mixed: int, long_h: float
) -> None:
    least = (("count", count, 2), ("seed", seed, 0), ("gpus_total", gpus_total, 1), ("teams", teams, 1))
    for name, value, low in (*least, ("users", users, 1)):
        if value < low:
            raise ConfigError(f"combined: {name} is {value}, expected at least {low}")
    if not 0 < load < math.inf:
        raise ConfigError(f"combined: load is {load}, expected a number above 0")
    if mixed not in (0, 1):
        raise ConfigError(f"combined: mixed is {mixed}, expected 0 or 1")
    if not 0 <= long_h < math.inf:
        raise ConfigError(f"combined: long_h is {long_h}, expected a number of hours, or 0 for none")


def _find_recurrences(recurs: Bools, which: Floats, leader: Ints) -> tuple[Ints, Labels]:
    """Return for every job the first job of its recurrence or sweep, and its recurrence key."""
    groups = max(1, round(float(recurs.sum()) / _EACH_RECURS))
    group = np.where(recurs, (which * groups).astype(np.int64), groups + leader)
    _, first, code = np.unique(group, return_index=True, return_inverse=True)
    names = (*(f"recurring-{at}" for at in range(groups)), "")
    return first[code].astype(np.int64), Labels(np.where(recurs, group, groups), names)


def _choose_models(kind: Ints, draw: Floats) -> tuple[Ints, Ints, Ints]:
    """Return the number of each job's model, its default batch and its largest (0: fixed)."""
    names = list(dict.fromkeys(name for rows in _MODELS.values() for name, *_ in rows))
    chosen = np.zeros((3, len(kind)), dtype=np.int64)
    for code, word in enumerate(CLASSES):
        rows = _MODELS[_LIKE_ELASTIC.get(word, word)]
        edges = np.cumsum([share for *_, share in rows])
        at = np.minimum(np.searchsorted(edges / edges[-1], draw, side="right"), len(rows) - 1)
        table = np.array([(names.index(name), batch, most) for name, batch, most, _ in rows]).T
        chosen = np.where(kind == code, table[:, at], chosen)
    return chosen[0], chosen[1], chosen[2]


def _choose(draw: Floats, values: tuple[float, ...]) -> Floats:
    return np.asarray(np.array(values, dtype=np.float64)[(draw * len(values)).astype(np.int64)])


def _draw_durations_s(which: Floats, where: Floats, tail: float) -> Floats:
    """Return run times as `synth` draws them, the share *tail* of the long kind."""
    log10 = np.where(which < 1 - tail, 1.5 + 1.5 * where, 3.0 + where)
    return np.asarray(60.0 * 10.0**log10)


def _accepted_kinds(model: Labels, mixed: int) -> Labels:
    kinds = ("v100|p100|k80" if name.startswith("gavel/") else TIMED_ON for name in model.words())
    return Labels.of(kinds) if mixed else Labels.repeat("", len(model))
