"""What is believed of jobs that were measured: a library of workloads, as `Models`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from wattline.errors import ConfigError, NotFitted, did_you_mean
from wattline.messages import RAN, Events
from wattline.model.asked import Asked, efficiency
from wattline.model.curves import REACH
from wattline.model.workload import Prediction, Workload
from wattline.profile.settings import Settings, fewest_nodes
from wattline.table import Floats, Ints, Labels
from wattline.types import Grants, Jobs, Leases


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

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.types.Models`: relative to what each job asked for, on as few nodes as it takes.

        Beyond the reach of the measurements more GPUs make a job no faster.
        """
        speed = self.otherwise.speed(jobs, grants)
        for found, here in self._known(jobs, grants.job, grants.kind):
            mine, held = grants.job[here], grants.take(here)
            now, then = self._settings(found, jobs, held), self._asked(found, jobs, mine)
            both = found.extrapolate(now.followed_by(then)).samples_s
            gain = both[: len(mine)] / both[len(mine) :]
            if held.batch.any():
                gain = gain * efficiency(jobs.noise[mine], then.batch, now.batch)
            speed[here] = gain * self.otherwise.company(held.members)
        return speed

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.types.Models`: unknown where a job's model was measured on other GPUs only."""
        watts = self.otherwise.watts(jobs, grants)
        for found, here in self._known(jobs, grants.job, grants.kind):
            held = grants.take(here)
            names = np.array([name.casefold() in (found.gpu, "") for name in held.kind.names])
            mine = np.flatnonzero(names[held.kind.codes])
            rows = self._settings(found, jobs, held.take(mine))
            watts[here[mine]] = found.extrapolate(rows).watts / rows.gpus
        return watts

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
        held_now = Grants.of(job, gpus, nodes, cap_w=leases.cap_w[first], batch=leases.batch[first])
        for found, here in self._known(jobs, job, held_now.kind):
            mine = job[here]
            held, asked = self._settings(found, jobs, held_now.take(here)), self._asked(found, jobs, mine)
            as_asked = (held.gpus == asked.gpus) & (held.nodes == asked.nodes) & (held.batch == asked.batch)
            other = np.flatnonzero(~(as_asked & np.isnan(held.cap_w)))
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

    def _known(self, jobs: Jobs, job: Ints, kind: Labels) -> Iterator[tuple[Workload, Ints]]:
        """The workloads among these jobs on these kinds of GPUs, each with where they are."""
        codes = jobs.model.codes[job] * len(jobs.gpu_kind.names) + jobs.gpu_kind.codes[job]
        codes = codes * len(kind.names) + kind.codes
        rows: dict[int, list[Ints]] = {}
        for code in np.unique(codes).tolist():
            place = self._place_of(jobs, kind, code)
            if place is not None:
                rows.setdefault(place, []).append(np.flatnonzero(codes == code))
        for place, parts in rows.items():
            yield self.workloads[place], np.concatenate(parts)

    def _place_of(self, jobs: Jobs, kind: Labels, code: int) -> int | None:
        """Which workload a job of that model is on the GPUs it runs on, or else on those it accepts."""
        code, on = divmod(code, len(kind.names))
        name, kinds = divmod(code, len(jobs.gpu_kind.names))
        model = jobs.model.names[name].partition("(")[0].strip()
        named = (kind.names[on], *jobs.gpu_kind.names[kinds].split("|"))
        for gpu in (*filter(None, named), ""):
            place = self._place(model, gpu.strip()) if model else None
            if place is not None:
                return place
        return None

    def _asked(self, found: Workload, jobs: Jobs, job: Ints) -> Settings:
        return self._settings(found, jobs, Grants.of(job, jobs.gpus[job]))

    def _settings(self, found: Workload, jobs: Jobs, held: Grants) -> Settings:
        most = found.measured.get("gpus", (1.0, np.inf))[1] * REACH
        wide = np.clip(held.gpus.astype(np.float64), 1.0, most)
        batch = np.where(held.batch > 0, held.batch, jobs.batch[held.job]).astype(np.float64)
        unknown = batch <= 0
        batch[unknown] = found.usual_batch * jobs.gpus[held.job][unknown]
        unset = np.full(len(held), np.nan)
        return Settings(
            gpus=wide,
            nodes=np.minimum(np.maximum(held.nodes, fewest_nodes(wide)), wide),
            batch=batch,
            cap_w=np.where(held.cap_w > 0, held.cap_w, np.nan),
            clock_mhz=unset,
            cpus=unset,
            mem_gib=unset,
            fuse=np.ones(len(held)),
        )


def plain(name: str) -> str:
    """*name* without what spellings differ in."""
    return "".join(c for c in name.casefold() if c.isalnum() or c in "/.+")
