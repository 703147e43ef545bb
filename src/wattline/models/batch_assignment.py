"""Batch sizes that jobs of a trace could use, as Pollux' published workloads have them.

No public trace says which batch sizes a job allows, or what larger ones cost in samples. Pollux (OSDI'21)
publishes training runs of six applications to the same target at many batch sizes. The samples that they
need follow c · (φ + B) with the noise scale φ, within 1.1 % (`benchmarks/fit_pollux_noise.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wattline.core.jobs import Jobs
from wattline.models.workload_models import WorkloadModels

_STREAM = 6022  # seed of a random stream used only here


class PublishedBatches(NamedTuple):
    """Smallest and largest batch size of an application, and its gradient noise scale in samples."""

    least: int
    most: int
    noise: float

    @property
    def middle(self) -> float:
        """Geometric mean of smallest and largest."""
        return float(np.sqrt(self.least * self.most))


PUBLISHED = {
    "bert": PublishedBatches(12, 384, 10_760),
    "cifar10": PublishedBatches(128, 4096, 6_319),
    "deepspeech2": PublishedBatches(20, 640, 1_062),
    "imagenet": PublishedBatches(200, 12_800, 20_640),
    "ncf": PublishedBatches(256, 32_768, 1_593_000),
    "yolov3": PublishedBatches(8, 512, 530),
}
"""Pollux' applications; made by `benchmarks/fit_pollux_noise.py`."""


def allow_published_batches(jobs: Jobs) -> Jobs:
    """Return *jobs* in which those of Pollux' applications may use all batch sizes that it measured."""
    known = [PUBLISHED.get(name.rpartition("/")[2].casefold()) for name in jobs.model.names]
    most = np.array([0 if one is None else one.most for one in known], dtype=np.int64)[jobs.model.codes]
    noise = np.array([0.0 if one is None else one.noise for one in known])[jobs.model.codes]
    free = (most > 0) & (jobs.batch > 0)
    return replace(
        jobs,
        max_batch=np.where(free, np.maximum(most, jobs.batch), jobs.max_batch),
        noise=np.where(free, noise, jobs.noise),
    )


def draw_batches(jobs: Jobs, models: WorkloadModels, kind: str, seed: int) -> Jobs:
    """Return *jobs* in which the batch size of every measured model may change.

    A model gets noise scale and largest batch of one of `PUBLISHED`, drawn uniformly from (*seed*, model),
    relative to the batch: requests stand for the middle of what was measured. A job without a batch has
    the usual one of its model on *kind* for each GPU. Jobs of other models keep what they have.
    """
    choices = list(PUBLISHED.values())
    usual, chosen = np.zeros(len(jobs.model.names)), np.zeros(len(jobs.model.names), dtype=np.int64)
    for code, name in enumerate(jobs.model.names):
        word = name.partition("(")[0].strip()
        if word and models.knows(word):
            found = models.find(word, kind).usual_batch
            usual[code] = 0.0 if np.isnan(found) else found
            drawn = np.random.default_rng([seed, _STREAM, *word.encode()]).random()
            chosen[code] = int(drawn * len(choices))
    per_gpu = usual[jobs.model.codes]
    batch = np.where(jobs.batch > 0, jobs.batch, np.round(per_gpu * jobs.gpus)).astype(np.int64)
    most, noise = (
        np.array(ratios)[chosen][jobs.model.codes]
        for ratios in (
            [one.most / one.middle for one in choices],
            [one.noise / one.middle for one in choices],
        )
    )
    free = (per_gpu > 0) & (batch > 0)
    return replace(
        jobs,
        batch=np.where(free, batch, jobs.batch),
        max_batch=np.where(free, np.maximum((most * batch).astype(np.int64), batch), jobs.max_batch),
        noise=np.where(free, noise * batch, jobs.noise),
    )
