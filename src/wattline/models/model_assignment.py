"""Random assignment of measured models to trace jobs with an unknown model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Ints, Labels
from wattline.errors import ConfigError, NotFitted
from wattline.models.array_speed import has_fusion_key
from wattline.models.workload import Workload
from wattline.models.workload_models import WorkloadModels

_SCALING_GPUS = 8  # a workload measured up to this many GPUs needs no assumption about its scaling
_STREAM = 6021  # seed of a random stream used only here


def assign_models(jobs: Jobs, models: WorkloadModels, kind: str | Sequence[str], seed: int) -> Jobs:
    """Return *jobs* with every unknown model replaced by one drawn uniformly from (*seed*, row).

    Jobs with the same fusion key get the same model. A job keeps its model if it was measured on all of
    *kind* that the job accepts. Candidates are workloads measured on every *kind* with one to at least eight
    GPUs. Batch size and gradient noise belong to the unknown model and are reset to 0, which stands for
    the drawn model's usual batch per GPU.
    """
    kinds = tuple(dict.fromkeys(name.casefold() for name in ([kind] if isinstance(kind, str) else kind)))
    rows = np.flatnonzero(~_has_measured_model(jobs, models, kinds))
    if not len(rows):
        return jobs
    drawn = _list_candidates(models, kinds)
    names = (*jobs.model.names, *drawn)
    # The n-th number of a stream does not depend on how many are drawn, so a row's model does not either.
    share = np.random.default_rng((seed, _STREAM)).random(len(jobs))[_fusion_leaders(jobs)][rows]
    codes = jobs.model.codes.copy()
    codes[rows] = len(jobs.model.names) + (share * len(drawn)).astype(np.int64)
    batch, most, noise = jobs.batch.copy(), jobs.max_batch.copy(), jobs.noise.copy()
    batch[rows], most[rows], noise[rows] = 0, 0, 0.0
    return replace(jobs, model=Labels(codes, names), batch=batch, max_batch=most, noise=noise)


def _fusion_leaders(jobs: Jobs) -> Ints:
    """Return for each job the first row with the same fusion key, or its own row without a key."""
    _, first, code = np.unique(jobs.fuse.codes, return_index=True, return_inverse=True)
    return np.where(has_fusion_key(jobs), first[code], np.arange(len(jobs)))


def _has_measured_model(jobs: Jobs, models: WorkloadModels, kinds: Sequence[str]) -> Bools:
    """Return a mask of the jobs with a model measured on every one of *kinds* that they accept."""
    width = len(jobs.gpu_kind.names)
    pairs, code = np.unique(jobs.model.codes * width + jobs.gpu_kind.codes, return_inverse=True)
    known = np.zeros(len(pairs), dtype=np.bool_)
    for at, pair in enumerate(pairs.tolist()):
        model, accepts = divmod(pair, width)
        words = {word.strip() for word in jobs.gpu_kind.names[accepts].casefold().split("|")} - {""}
        wanted = [kind for kind in kinds if kind in words] or kinds
        known[at] = all(_find_workload(models, jobs.model.names[model], kind) is not None for kind in wanted)
    return np.asarray(known[code])


def _find_workload(models: WorkloadModels, name: str, kind: str) -> Workload | None:
    try:
        return models.find(name.partition("(")[0].strip(), kind)  # the same lookup as in `WorkloadModels`
    except NotFitted:
        return None


def _list_candidates(models: WorkloadModels, kinds: Sequence[str]) -> list[str]:
    """Return the names of the workloads that can be drawn; raises `ConfigError` if there are none."""
    names = dict.fromkeys(
        f"{w.source.name}/{w.model}" if w.source.name else w.model
        for w in models.workloads
        if _covers_scaling(w)
    )
    workloads_of = {name: [_find_workload(models, name, kind) for kind in kinds] for name in names}
    drawn = [
        name for name, ws in workloads_of.items() if all(w is not None and _covers_scaling(w) for w in ws)
    ]
    if drawn:
        return drawn
    kinds_with_scaling = dict.fromkeys(w.gpu for w in models.workloads if _covers_scaling(w))
    wanted = " and ".join(kinds)
    raise ConfigError(
        f"no model was measured on {wanted} with 1 to {_SCALING_GPUS} GPUs or more, so none can be drawn; "
        + (
            f"expected a cluster of {', '.join(kinds_with_scaling)}"
            if kinds_with_scaling
            else "none of these models was, on any GPU"
        ),
        hint="without drawn models, jobs of unknown models run as fast as their trace says",
    )


def _covers_scaling(w: Workload) -> bool:
    """Return True if the workload was measured from 1 to at least `_SCALING_GPUS` GPUs."""
    least, most = w.measured.get("gpus", (1.0, 1.0))
    return least <= 1 and most >= _SCALING_GPUS
