"""What is believed of jobs that were measured: a library of workloads, as `Models`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from wattline.errors import ConfigError, NotFitted, did_you_mean
from wattline.messages import RAN, Events
from wattline.model.asked import Asked
from wattline.model.curves import REACH
from wattline.model.workload import Prediction, Workload
from wattline.profile.settings import Settings, fewest_nodes
from wattline.table import Floats, Ints, Labels
from wattline.types import Jobs, Leases


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
        """Places by (name, GPU kind), "" for any kind; the exact name goes before plainer spellings."""
        places: dict[tuple[str, str], int] = {}
        for spell in (str, str.casefold, plain):
            for place, w in enumerate(self.workloads):
                for name in (spell(w.model), spell(f"{w.source.name}/{w.model}")):
                    for gpu in (w.gpu.casefold(), ""):
                        places.setdefault((name, gpu), place)
        return places

    def _place(self, model: str, gpu: str) -> int | None:
        for name in (model, model.casefold(), plain(model)):
            place = self._by_name.get((name, gpu.casefold())) if name else None
            if place is not None:
                return place
        return None

    def find(self, model: str, gpu: str) -> Workload:
        """The workload of that name on that kind of GPU; `NotFitted` when nobody measured it."""
        place = self._place(model, gpu) if gpu else None
        if place is not None:
            return self.workloads[place]
        kinds = sorted({kind for name, kind in self._by_name if name == plain(model) and kind})
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
        if not len(models) == len(gpus) == len(rows):
            raise ConfigError(f"{len(models)} models on {len(gpus)} GPU kinds, expected {len(rows)} of each")
        kinds = models.codes * len(gpus.names) + gpus.codes
        # Small numbers sort in linear time.
        order = np.argsort(kinds.astype(np.min_scalar_type(int(kinds.max(initial=0)))), kind="stable")
        rows, kinds = rows.take(order), kinds[order]
        starts = np.flatnonzero(np.diff(kinds, prepend=-1)).tolist()
        sorted_s, sorted_w = np.empty(len(rows)), np.empty(len(rows))
        for first, last in zip(starts, [*starts[1:], len(rows)], strict=True):
            name, on = divmod(int(kinds[first]), len(gpus.names))
            found = self.find(models.names[name], gpus.names[on])
            sorted_s[first:last], sorted_w[first:last] = found.predict(rows.take(slice(first, last)))
        samples_s, watts = np.empty(len(rows)), np.empty(len(rows))
        samples_s[order], watts[order] = sorted_s, sorted_w
        return Prediction(samples_s, watts)

    def speed(self, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints, members: Ints) -> Floats:
        """See `wattline.types.Models`: relative to what each job asked for, on as few nodes as it takes.

        Beyond the reach of the measurements more GPUs make a job no faster.
        """
        speed = self.otherwise.speed(jobs, job, gpus, nodes, members)
        for found, here in self._known(jobs, job):
            mine = job[here]
            got, asked = self._samples_s(found, jobs, mine, gpus[here], nodes[here])
            speed[here] = got / asked * self.otherwise.company(members[here])
        return speed

    def observe(self, events: Events, jobs: Jobs, leases: Leases) -> Measured:
        """What is believed after *events* that happened under *leases*.

        A job that runs alone, on other GPUs than it asked for, at another rate than expected teaches
        the model of its workload; the rest cost one look.
        """
        ran = events[(events[:, 0] == RAN) & (events[:, 4] > 0)]
        together = leases.job != leases.group
        job = ran[:, 1].astype(np.int64)
        alone = np.isin(job, leases.job)
        if together.any():
            alone &= ~np.isin(job, np.append(leases.job[together], leases.group[together]))
        job, rate = job[alone], ran[alone, 4]
        if not len(job):
            return self
        # Leases are sorted by job, one row per node.
        first, last = (np.searchsorted(leases.job, job, side=side) for side in ("left", "right"))
        before = np.concatenate(([0], np.cumsum(leases.gpus)))
        gpus, nodes = before[last] - before[first], last - first
        learnt = {}
        for found, here in self._known(jobs, job):
            mine = job[here]
            held = self._settings(found, jobs, mine, gpus[here], nodes[here])
            asked = self._settings(found, jobs, mine, jobs.gpus[mine], np.ones_like(mine))
            other = np.flatnonzero((held.gpus != asked.gpus) | (held.nodes != asked.nodes))
            if not len(other):
                continue
            # A trace says how long a step takes as asked; what is learnt is how others compare with it.
            held, asked, mine = held.take(other), asked.take(other), mine[other]
            seen = found.extrapolate(asked).samples_s * rate[here][other] * jobs.step_s[mine]
            after = found.observe(held, seen, keep=asked)
            if after is not found:
                learnt[id(found)] = after
        if not learnt:
            return self
        return replace(self, workloads=tuple(learnt.get(id(w), w) for w in self.workloads))

    def _known(self, jobs: Jobs, job: Ints) -> Iterator[tuple[Workload, Ints]]:
        """The workloads among these jobs, each with where they are."""
        codes = jobs.model.codes[job] * len(jobs.gpu_kind.names) + jobs.gpu_kind.codes[job]
        rows: dict[int, list[Ints]] = {}
        for code in np.unique(codes).tolist():
            place = self._place_of(jobs, code)
            if place is not None:
                rows.setdefault(place, []).append(np.flatnonzero(codes == code))
        for place, parts in rows.items():
            yield self.workloads[place], np.concatenate(parts)

    def _place_of(self, jobs: Jobs, code: int) -> int | None:
        """Which workload a job of that model and those accepted kinds is."""
        name, kinds = divmod(code, len(jobs.gpu_kind.names))
        model = jobs.model.names[name].partition("(")[0].strip()
        for kind in (*jobs.gpu_kind.names[kinds].split("|"), ""):
            place = self._place(model, kind.strip()) if model else None
            if place is not None:
                return place
        return None

    def _samples_s(
        self, found: Workload, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints
    ) -> tuple[Floats, Floats]:
        """Speed with what jobs got, and with what they asked for."""
        twice = np.concatenate((job, job))
        wide = np.concatenate((gpus, jobs.gpus[job]))
        spread = np.concatenate((nodes, np.ones_like(nodes)))
        both = found.extrapolate(self._settings(found, jobs, twice, wide, spread)).samples_s
        return both[: len(job)], both[len(job) :]

    def _settings(self, found: Workload, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints) -> Settings:
        most = found.measured.get("gpus", (1.0, np.inf))[1] * REACH
        wide = np.clip(gpus.astype(np.float64), 1.0, most)
        batch = jobs.batch[job].astype(np.float64)
        unknown = batch <= 0
        batch[unknown] = found.usual_batch * jobs.gpus[job][unknown]
        unset = np.full(len(job), np.nan)
        return Settings(
            gpus=wide,
            nodes=np.minimum(np.maximum(nodes, fewest_nodes(wide)), wide),
            batch=batch,
            cap_w=unset,
            clock_mhz=unset,
            cpus=unset,
            mem_gib=unset,
            fuse=np.ones(len(job)),
        )


def plain(name: str) -> str:
    """*name* without what spellings differ in."""
    return "".join(c for c in name.casefold() if c.isalnum() or c in "/.+")
