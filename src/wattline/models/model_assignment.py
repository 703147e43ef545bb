"""Which model does a job train, where its trace does not say, or names one that nobody measured?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Ints, Labels
from wattline.errors import ConfigError, NotFitted
from wattline.models.array_speed import keyed
from wattline.models.workload import Workload
from wattline.models.workload_models import Measured

_ENOUGH_GPUS = 8  # measured up to here, nothing has to be made up about how a job scales
_STREAM = 6021  # of random numbers, for this and nothing else


def draw_models(jobs: Jobs, models: Measured, kind: str | Sequence[str], seed: int) -> Jobs:
    """*jobs*, those of unknown models with one drawn from (*seed*, row), equally among those that qualify.

    Jobs that may be fused with each other get the same one. A job keeps its model if it is known on all of
    *kind* that the job accepts. Drawn are workloads that were measured on every *kind* with one to at
    least eight GPUs. Batch size and noise belonged to the model that is not known, so they go with it: 0,
    which is the drawn model's usual batch for each GPU.
    """
    kinds = tuple(dict.fromkeys(name.casefold() for name in ([kind] if isinstance(kind, str) else kind)))
    rows = np.flatnonzero(~_known(jobs, models, kinds))
    if not len(rows):
        return jobs
    drawn = _candidates(models, kinds)
    names = (*jobs.model.names, *drawn)
    # The n-th number of a stream is the same however many are drawn: a row's model is its own.
    share = np.random.default_rng((seed, _STREAM)).random(len(jobs))[_first_alike(jobs)][rows]
    codes = jobs.model.codes.copy()
    codes[rows] = len(jobs.model.names) + (share * len(drawn)).astype(np.int64)
    batch, most, noise = jobs.batch.copy(), jobs.max_batch.copy(), jobs.noise.copy()
    batch[rows], most[rows], noise[rows] = 0, 0, 0.0
    return replace(jobs, model=Labels(codes, names), batch=batch, max_batch=most, noise=noise)


def _first_alike(jobs: Jobs) -> Ints:
    """For each job the first that may be fused with it: these train one model."""
    _, first, code = np.unique(jobs.fuse.codes, return_index=True, return_inverse=True)
    return np.where(keyed(jobs), first[code], np.arange(len(jobs)))


def _known(jobs: Jobs, models: Measured, kinds: Sequence[str]) -> Bools:
    """Which jobs name a model that was measured on every one of *kinds* that they accept."""
    width = len(jobs.gpu_kind.names)
    sorts, code = np.unique(jobs.model.codes * width + jobs.gpu_kind.codes, return_inverse=True)
    known = np.zeros(len(sorts), dtype=np.bool_)
    for at, sort in enumerate(sorts.tolist()):
        model, accepts = divmod(sort, width)
        words = {word.strip() for word in jobs.gpu_kind.names[accepts].casefold().split("|")} - {""}
        wanted = [kind for kind in kinds if kind in words] or kinds
        known[at] = all(_finds(models, jobs.model.names[model], kind) is not None for kind in wanted)
    return np.asarray(known[code])


def _finds(models: Measured, name: str, kind: str) -> Workload | None:
    try:
        return models.find(name.partition("(")[0].strip(), kind)  # as `Measured` looks jobs up
    except NotFitted:
        return None


def _candidates(models: Measured, kinds: Sequence[str]) -> list[str]:
    """The names under which workloads that qualify are found again."""
    names = dict.fromkeys(
        f"{w.source.name}/{w.model}" if w.source.name else w.model for w in models.workloads if _scales(w)
    )
    found = {name: [_finds(models, name, kind) for kind in kinds] for name in names}
    drawn = [name for name, ws in found.items() if all(w is not None and _scales(w) for w in ws)]
    if drawn:
        return drawn
    have = dict.fromkeys(w.gpu for w in models.workloads if _scales(w))
    wanted = " and ".join(kinds)
    raise ConfigError(
        f"no model was measured on {wanted} with 1 to {_ENOUGH_GPUS} GPUs or more, so none can be drawn; "
        + (f"expected a cluster of {', '.join(have)}" if have else "none of these models was, on any GPU"),
        hint="undrawn, jobs of unknown models do what their trace says",
    )


def _scales(w: Workload) -> bool:
    """Whether it was measured on one GPU and on enough of them."""
    least, most = w.measured.get("gpus", (1.0, 1.0))
    return least <= 1 and most >= _ENOUGH_GPUS
