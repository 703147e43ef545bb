"""Models from a table of measured throughputs by GPU kind, as Gavel publishes them."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from wattline.core.events import Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.table import Floats, Labels
from wattline.errors import InputError, NotFitted, did_you_mean
from wattline.models.scaling import LINEAR
from wattline.models.trace_model import TraceModels

_APART = "_unconsolidated"  # measured with one GPU per node; not read, see `ThroughputTable`
_CANNOT_RUN = 1e-6  # relative speed where the table has 0


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Models in which a job is as fast on each kind of GPU as a table has measured.

    `steps_s[kind][job type]` maps numbers of GPUs to steps per second. A job type is the model of a job with
    its batch size, `ResNet-50 (batch size 64)`. Speeds are relative to the fastest kind of the table with
    the requested GPUs. Between measured numbers of GPUs the logarithms are interpolated; beyond the largest,
    more GPUs gain nothing. Sharing of GPUs, power caps and spanning of nodes follow *fallback*: the table
    does not say what they cost, and its own figures for GPUs of different nodes are not used.
    """

    name: str
    steps_s: Mapping[str, Mapping[str, Mapping[int, float]]]
    fallback: TraceModels = field(default_factory=TraceModels)

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def __str__(self) -> str:
        return f"ThroughputTable({self.name}: {', '.join(self.steps_s)})"

    __repr__ = __str__

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the speed of each grant relative to the fastest kind with the requested GPUs."""
        linear = replace(self.fallback, scaling=LINEAR)  # the table has the speeds on other numbers of GPUs
        others = linear.speed(jobs, grants) * jobs.gpus[grants.job] / grants.gpus
        requested = self._look_up(jobs, Grants.of(grants.job, jobs.gpus[grants.job]))
        return np.asarray(np.maximum(self._look_up(jobs, grants) / requested, _CANNOT_RUN) * others)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return nan: unknown."""
        return self.fallback.watts(jobs, grants)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> ThroughputTable:
        """Return the models unchanged: they do not learn."""
        return self

    def time_jobs(self, jobs: Jobs) -> Jobs:
        """Return *jobs* with the time per step of the fastest kind, and without kinds that cannot run them.

        A trace of this kind has steps, and durations only by prediction. Raise `NotFitted` if the table
        lacks a job type.
        """
        rows = np.arange(len(jobs), dtype=np.int64)
        step_s = 1.0 / self._look_up(jobs, Grants.of(rows, jobs.gpus))
        runs = {kind: self._look_up(jobs, Grants.of(rows, jobs.gpus, kind=kind)) > 0 for kind in self.steps_s}
        accepts = [set(filter(None, word.casefold().split("|"))) for word in jobs.gpu_kind.words()]
        possible = [
            "|".join(
                kind
                for kind in self.steps_s
                if runs[kind][row] and (not accepts[row] or kind in accepts[row])
            )
            for row in range(len(jobs))
        ]
        everywhere = "|".join(self.steps_s)
        kinds = Labels.of("" if word == everywhere else word for word in possible)
        return replace(jobs, step_s=step_s, gpu_kind=kinds)

    def _look_up(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return steps per second of each grant; of the fastest kind where none is specified."""
        columns = (jobs.model.codes[grants.job], jobs.batch[grants.job], grants.kind.codes, grants.gpus)
        keys, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        answers = np.empty(len(keys))
        for at, (model, batch, kind, gpus) in enumerate(keys.tolist()):
            family = jobs.model.names[model]
            job_type = f"{family} (batch size {batch})" if batch else family
            on = grants.kind.names[kind].casefold()
            answers[at] = max(
                self._steps_per_s(name, job_type, gpus) for name in ([on] if on else self.steps_s)
            )
        return answers[place.reshape(-1)]

    def _steps_per_s(self, kind: str, job_type: str, gpus: int) -> float:
        types = self.steps_s.get(kind)
        if types is None:
            raise NotFitted(
                f"{self.name} has no GPU kind {kind!r}, only {', '.join(self.steps_s)}", "change --cluster"
            )
        sizes = types.get(job_type)
        if sizes is None:
            raise NotFitted(
                f"{self.name} has no job type {job_type!r} on {kind}", did_you_mean(job_type, list(types))
            )
        if gpus in sizes:
            return sizes[gpus]
        measured = sorted(size for size, value in sizes.items() if value > 0)
        if not measured:
            return 0.0
        return float(
            np.exp(np.interp(np.log(gpus), np.log(measured), np.log([sizes[size] for size in measured])))
        )


def read_throughput_table(path: str, fallback: TraceModels | None = None) -> ThroughputTable:
    """Read `{kind: {"('job type', gpus)": {"null": steps per second, …}}}` from JSON, plain or .gz.

    Entries of pairs of jobs on the same GPUs are ignored, and kinds measured with one GPU per node.
    """
    try:
        data = Path(path).read_bytes()
        tables = json.loads(gzip.decompress(data) if path.endswith(".gz") else data)
        steps_s: dict[str, dict[str, dict[int, float]]] = {}
        for kind, entries in tables.items():
            if kind.endswith(_APART):
                continue
            types = steps_s.setdefault(kind.casefold(), {})
            for key, values in entries.items():
                job_type, gpus = ast.literal_eval(key)
                types.setdefault(job_type, {})[int(gpus)] = float(values["null"])
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}", "give a file as in --models gavel:FILE"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise InputError(
            f"{path}: {error!r}, expected JSON such as "
            '{"v100": {"(\'ResNet-50 (batch size 64)\', 2)": {"null": 8.5}}}'
        ) from None
    if not steps_s:
        raise InputError(f"{path} has no GPU kinds, expected at least one")
    return ThroughputTable(Path(path).name, steps_s, fallback or TraceModels())
