"""What is believed of jobs that were measured: a library of workloads, as `Models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from wattline.errors import NotFitted, did_you_mean
from wattline.messages import RAN, Events
from wattline.model.asked import Asked
from wattline.model.workload import REACH, Prediction, Workload
from wattline.profile.settings import Settings
from wattline.table import Floats, Ints, Labels
from wattline.types import Jobs, Snapshot


@dataclass(frozen=True, eq=False)
class Measured:
    """Jobs do what was measured of their model; others do what *otherwise* says.

    A model is found by its name in any spelling ("ResNet-50" is "resnet50"), or by "source/name"
    where several sources measured it; the first in *workloads* goes first.
    """

    workloads: tuple[Workload, ...]
    otherwise: Asked = field(default_factory=Asked)

    def __str__(self) -> str:
        sources = sorted({w.source.name for w in self.workloads} - {""})
        return f"Measured({len(self.workloads)} workloads{' of ' if sources else ''}{', '.join(sources)})"

    __repr__ = __str__

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], int]:
        places: dict[tuple[str, str], int] = {}
        for place, w in enumerate(self.workloads):
            for name in (w.model, f"{w.source.name}/{w.model}"):
                for gpu in (w.gpu.casefold(), ""):
                    places.setdefault((plain(name), gpu), place)
        return places

    def find(self, model: str, gpu: str) -> Workload:
        """The workload of that name on that kind of GPU; `NotFitted` when nobody measured it."""
        place = self._by_name.get((plain(model), gpu.casefold()))
        if place is not None and gpu:
            return self.workloads[place]
        kinds = sorted({g for name, g in self._by_name if name == plain(model) and g})
        if kinds:
            raise NotFitted(f"{model} was not measured on {gpu!r}, only on {', '.join(kinds)}")
        known = dict.fromkeys(w.model for w in self.workloads)
        raise NotFitted(f"nothing was measured of {model!r}", did_you_mean(model, known))

    def predict(
        self, model: str | Labels, gpu: str | Labels, settings: Settings | None = None, **knobs: Any
    ) -> Prediction:
        """Samples per second and watts of *model* on *gpu*, one row per setting.

        Give *settings*, or knobs as `Settings.of` takes them: `predict("resnet50", "a100", gpus=8)`.
        *model* and *gpu* may be columns, as long as the settings.
        """
        rows = Settings.of(**knobs) if settings is None else settings
        if isinstance(model, str) and isinstance(gpu, str):
            return self.find(model, gpu).predict(rows)
        models = Labels.same(model, len(rows)) if isinstance(model, str) else model
        gpus = Labels.same(gpu, len(rows)) if isinstance(gpu, str) else gpu
        kinds = models.codes * len(gpus.names) + gpus.codes
        samples_s, watts = np.empty(len(rows)), np.empty(len(rows))
        for kind in np.unique(kinds):
            here = np.flatnonzero(kinds == kind)
            name, on = divmod(int(kind), len(gpus.names))
            found = self.find(models.names[name], gpus.names[on])
            samples_s[here], watts[here] = found.predict(rows.take(here))
        return Prediction(samples_s, watts)

    def speed(self, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints, members: Ints) -> Floats:
        """See `wattline.types.Models`: relative to what each job asked for, on one node.

        Beyond the reach of the measurements more GPUs make a job no faster.
        """
        speed = self.otherwise.speed(jobs, job, gpus, nodes, members)
        names = jobs.model.codes[job] * len(jobs.gpu_kind.names) + jobs.gpu_kind.codes[job]
        for code in np.unique(names):
            place = self._place(jobs, int(code))
            if place is None:
                continue
            here = np.flatnonzero(names == code)
            mine = job[here]
            asked, granted = jobs.gpus[mine].astype(np.float64), gpus[here].astype(np.float64)
            found = self.workloads[place]
            got = _samples_s(found, jobs, mine, granted, nodes[here].astype(np.float64))
            wanted = _samples_s(found, jobs, mine, asked, np.ones(len(here)))
            speed[here] = got / wanted * self.otherwise.company(members[here])
        return speed

    def observe(self, events: Events, state: Snapshot) -> Measured:
        """What is believed after *events*, by what the jobs of *state* hold.

        A job that runs at a rate other than expected teaches the model of its workload; the rest
        cost one look.
        """
        ran = events[(events[:, 0] == RAN) & (events[:, 4] > 0)]
        if not len(ran):
            return self
        jobs, leases = state.jobs, state.leases
        job = ran[:, 1].astype(np.int64)
        held = np.isin(job, leases.job) & np.isin(job, leases.group)
        job, rate = job[held], ran[held, 4]
        if not len(job):
            return self
        gpus = np.bincount(leases.job, leases.gpus, len(jobs))[job]
        nodes = np.bincount(leases.job, minlength=len(jobs))[job].astype(np.float64)
        shared = np.bincount(leases.job[leases.job != leases.group], minlength=len(jobs))
        leads = np.bincount(leases.group[leases.job != leases.group], minlength=len(jobs))
        alone = (shared[job] == 0) & (leads[job] == 0)
        workloads = list(self.workloads)
        names = jobs.model.codes[job] * len(jobs.gpu_kind.names) + jobs.gpu_kind.codes[job]
        for code in np.unique(names[alone]):
            place = self._place(jobs, int(code))
            if place is None:
                continue
            here = np.flatnonzero((names == code) & alone)
            mine, found = job[here], workloads[place]
            # The trace's own step time is of what was asked: it gives the rate its unit.
            wanted = _samples_s(found, jobs, mine, jobs.gpus[mine].astype(np.float64), np.ones(len(here)))
            seen = wanted * rate[here] * jobs.step_s[mine]
            workloads[place] = found.observe(_settings(found, jobs, mine, gpus[here], nodes[here]), seen)
        if all(a is b for a, b in zip(workloads, self.workloads, strict=True)):
            return self
        return replace(self, workloads=tuple(workloads))

    def _place(self, jobs: Jobs, code: int) -> int | None:
        """Which workload a job of that model and those accepted kinds is."""
        name, kinds = divmod(code, len(jobs.gpu_kind.names))
        model = plain(jobs.model.names[name].partition("(")[0])
        if not model:
            return None
        for kind in (*jobs.gpu_kind.names[kinds].casefold().split("|"), ""):
            place = self._by_name.get((model, kind.strip()))
            if place is not None:
                return place
        return None


def plain(name: str) -> str:
    """*name* without what spellings differ in."""
    return "".join(c for c in name.casefold() if c.isalnum() or c == "/")


def _settings(found: Workload, jobs: Jobs, job: Ints, gpus: Floats, nodes: Floats) -> Settings:
    batch = jobs.batch[job].astype(np.float64)
    most = found.measured.get("gpus", (1.0, np.inf))[1] * REACH
    wide = np.maximum(np.minimum(gpus, most), 1.0)
    return Settings.of(gpus=wide, nodes=np.minimum(nodes, wide), batch=np.where(batch > 0, batch, np.nan))


def _samples_s(found: Workload, jobs: Jobs, job: Ints, gpus: Floats, nodes: Floats) -> Floats:
    return found.extrapolate(_settings(found, jobs, job, gpus, nodes)).samples_s


def joined(parts: Sequence[Measured]) -> Measured:
    """All workloads of *parts*; where two are of the same name, the first is found."""
    return Measured(tuple(w for part in parts for w in part.workloads))
