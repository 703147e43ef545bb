"""What is believed of jobs that were measured: a library of workloads, as `Models`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from wattline.core.events import RAN, Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import ConfigError, NotFitted, did_you_mean
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings, fewest_nodes
from wattline.models.job_classes import sorts
from wattline.models.power.curves import REACH
from wattline.models.trace_model import Asked, efficiency, starved
from wattline.models.workload import SURPRISE, Prediction, Workload

_FEW = 512  # rows that are looked up one by one


@dataclass(frozen=True, eq=False)
class Measured:
    """Jobs do what was measured of their model; others do what *otherwise* says.

    A model is found by its name in any spelling ("ResNet-50" is "resnet50"), or by "source/name"
    where several sources measured it; the first in *workloads* goes first.
    """

    workloads: tuple[Workload, ...]
    otherwise: Asked = field(default_factory=Asked)

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

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

    def knows_host(self, model: str, gpu: str) -> bool:
        """Whether anybody has measured what this model needs of the host."""
        place = self._place(model.partition("(")[0].strip(), gpu) if model else None
        return place is not None and "cpus" in self.workloads[place].measured

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
        """See `wattline.core.protocols.Models`: relative to what each job asked for, on as few nodes as it takes.

        Beyond the reach of the measurements more GPUs make a job no faster.
        """
        if len(grants) > _FEW:
            return self._speed(jobs, grants)
        # In a cluster the same few settings come again and again: few rows are looked up one by one.
        keys, known = grants.keys(sorts(jobs)[0]), self._speeds.setdefault(jobs, {})
        new = [at for at, key in enumerate(keys) if key not in known]
        if new:
            rows = np.array(new, dtype=np.int64)
            found = self._speed(jobs, grants.take(rows)).tolist()
            known.update(zip((keys[at] for at in new), found, strict=True))
        return np.array([known[key] for key in keys], dtype=np.float64)

    def _speed(self, jobs: Jobs, grants: Grants) -> Floats:
        here, held = self._known(jobs, grants)
        speed = np.empty(len(grants))
        if len(here) < len(grants):
            speed[:] = self.otherwise.speed(jobs, grants)
        if len(here):
            asked = self._rows(jobs, held.job, held.place, held.asked_gpus, None)
            gain = self._forecast(held)[0] / self._forecast(asked)[0]
            if grants.batch.any():
                gain = gain * efficiency(jobs.noise[held.job], asked.batch, held.batch)
            if grants.members.max(initial=1) > 1:
                # An array was measured as a whole; what packed jobs do to each other was not.
                packed = self.otherwise.company(grants.members[here], np.zeros(len(here), dtype=np.bool_))
                gain = gain * np.where(grants.fused[here], 1.0 / held.fuse, packed)
            speed[here] = gain
            if grants.host.any():
                speed[here] *= starved(jobs, grants.take(here), self._least_host[:, held.place])
        return speed

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`: unknown where a job's model was measured on other GPUs only."""
        here, held = self._known(jobs, grants)
        kinds = np.array([self._kinds.get(name.casefold(), -1) for name in grants.kind.names])
        on = kinds[grants.kind.codes[here]]
        its_own = (on == self._kind_of[held.place]) | (on == self._kinds[""])
        if len(here) == len(grants) and its_own.all():
            return self._forecast(held)[1]
        watts = self.otherwise.watts(jobs, grants)
        watts[here[its_own]] = self._forecast(held)[1][its_own]
        return watts

    def widest(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`: known where memory was measured, on a kind of GPU whose size is."""
        here, held = self._known(jobs, grants)
        most = np.full(len(grants), np.inf)
        for at, place in zip(here.tolist(), held.place.tolist(), strict=True):
            found = self.workloads[place]
            on = DEVICES.get(grants.kind.word(at).casefold() or found.gpu.casefold())
            if on is not None and not np.isnan(found.array.member_gib):
                most[at] = found.array.widest(on.mem_gib)
        return most

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Measured:
        """What is believed after *events* that happened under *leases* on *nodes*.

        A job that runs alone, on other GPUs than it asked for, at another rate than expected teaches
        the model of its workload; the rest cost one look.
        """
        if not len(events) or not len(leases):
            return self
        ran = events[(events[:, 0] == RAN) & (events[:, 4] > 0)]
        job = ran[:, 1].astype(np.int64)
        # Leases are sorted by job, one row per node.
        first = np.searchsorted(leases.job, job)
        alone = leases.job[np.minimum(first, len(leases) - 1)] == job
        together = leases.job != leases.group
        if together.any():
            alone &= ~np.isin(job, np.append(leases.job[together], leases.group[together]))
        job, rate, first = job[alone], ran[alone, 4], first[alone]
        if not len(job):
            return self
        last = np.searchsorted(leases.job, job, side="right")
        before = np.concatenate(([0], np.cumsum(leases.gpus)))
        grants = Grants.of(
            job,
            before[last] - before[first],
            last - first,
            cap_w=leases.cap_w[first],
            batch=leases.batch[first],
            host=leases.host[:, first],
            kind=nodes.kind[leases.node[first]],
        )
        if (np.abs(rate * jobs.step_s[job] / self.speed(jobs, grants) - 1.0) <= SURPRISE).all():
            return self
        here, held = self._known(jobs, grants)
        asked = self._rows(jobs, held.job, held.place, held.asked_gpus, None)
        # A trace says how long a step takes as asked; what is learnt is how others compare with it.
        useful = rate[here] * jobs.step_s[held.job]
        useful = useful / efficiency(jobs.noise[held.job], asked.batch, held.batch)
        seen = self._forecast(asked)[0] * useful
        surprise = np.abs(seen / self._forecast(held)[0] - 1.0) > SURPRISE
        surprise &= ~held.same_as(asked)
        learnt = {}
        for place in np.unique(held.place[surprise]).tolist():
            rows = np.flatnonzero(surprise & (held.place == place))
            found = self.workloads[place]
            now, then = held.take(rows).settings(), asked.take(rows).settings()
            after = found.observe(now, seen[rows], keep=then)
            if after is not found:
                learnt[place] = after
        if not learnt:
            return self
        return replace(self, workloads=tuple(learnt.get(p, w) for p, w in enumerate(self.workloads)))

    def _known(self, jobs: Jobs, grants: Grants) -> tuple[Ints, _Rows]:
        """Where the jobs are whose models were measured, and how they are run."""
        place = _places(self, jobs, grants.kind.names)[grants.job, grants.kind.codes]
        here = np.flatnonzero(place >= 0)
        if len(here) < len(place):
            grants = grants.take(here)
        return here, self._rows(jobs, grants.job, place[here], grants.gpus, grants)

    def _rows(self, jobs: Jobs, job: Ints, place: Ints, gpus: Ints, grants: Grants | None) -> _Rows:
        """What workloads are asked about: as granted, or on *gpus* on as few nodes as it takes."""
        wide = np.clip(gpus, 1, self._most_gpus[place]).astype(np.int64)
        asked_gpus = jobs.gpus[job]
        batch = jobs.batch[job].astype(np.float64)
        if grants is not None and grants.batch.any():
            batch = np.where(grants.batch > 0, grants.batch, batch)
        batch = np.where(batch > 0, batch, self._usual_batch[place] * asked_gpus)
        nodes = np.ones_like(wide) if grants is None else grants.nodes
        nodes = np.minimum(np.maximum(nodes, fewest_nodes(wide)), wide).astype(np.int64)
        cap_w = np.zeros_like(wide) if grants is None else grants.cap_w
        # As asked is with what its trace was timed with: nan, as much as it wants, if nobody said.
        cpus, mem_gib = (np.where(a > 0, a, np.nan)[job] / asked_gpus for a in (jobs.cpus, jobs.mem_gib))
        read_mib_s = np.full(len(job), np.nan)
        if grants is not None and grants.host.any():
            given = np.where(grants.host > 0, grants.host, np.nan)
            cpus = np.where(np.isnan(given[0]), cpus, given[0] / 1000)
            mem_gib = np.where(np.isnan(given[1]), mem_gib, given[1] / 1024)
            read_mib_s = given[2]
        fuse = np.ones(len(job)) if grants is None else np.where(grants.fused, grants.members, 1.0)
        return _Rows(job, place, wide, nodes, batch, cap_w, asked_gpus, cpus, mem_gib, read_mib_s, fuse)

    def _forecast(self, rows: _Rows) -> tuple[Floats, Floats]:
        """Samples per second of all GPUs, watts of one.

        In a cluster the same few settings come again and again: few rows are looked up one by one.
        """
        if len(rows) > _FEW:
            return self._compute(rows)
        keys = list(
            zip(
                rows.place.tolist(),
                rows.gpus.tolist(),
                rows.nodes.tolist(),
                rows.batch.tolist(),
                rows.cap_w.tolist(),
                rows.fuse.tolist(),
                *(np.nan_to_num(a, nan=-1.0).tolist() for a in (rows.cpus, rows.mem_gib, rows.read_mib_s)),
                strict=True,
            )
        )
        seen = self._seen
        new = [at for at, key in enumerate(keys) if key not in seen]
        if new:
            samples_s, watts = self._compute(rows.take(np.array(new, dtype=np.int64)))
            for at, one_s, one_w in zip(new, samples_s.tolist(), watts.tolist(), strict=True):
                seen[keys[at]] = (one_s, one_w)
        both = np.array([seen[key] for key in keys], dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _compute(self, rows: _Rows) -> tuple[Floats, Floats]:
        samples_s, watts = np.empty(len(rows)), np.empty(len(rows))
        for place in np.unique(rows.place).tolist():
            here = np.flatnonzero(rows.place == place)
            settings = rows.take(here).settings()
            samples_s[here], watts[here] = self.workloads[place].extrapolate(settings)
            watts[here] /= settings.gpus
        return samples_s, watts

    @cached_property
    def _speeds(self) -> WeakKeyDictionary[Jobs, dict[tuple[object, ...], float]]:
        return WeakKeyDictionary()

    @cached_property
    def _seen(self) -> dict[tuple[float, ...], tuple[float, float]]:
        return {}

    @cached_property
    def _most_gpus(self) -> Floats:
        return np.array([w.measured.get("gpus", (1.0, np.inf))[1] * REACH for w in self.workloads])

    @cached_property
    def _least_host(self) -> Floats:
        """Cores and GiB for each GPU below which nothing was measured; nan: it never was varied."""
        unknown = (np.nan, np.nan)
        names = ("cpus", "mem_gib")
        return np.array([[w.measured.get(name, unknown)[0] for w in self.workloads] for name in names])

    @cached_property
    def _usual_batch(self) -> Floats:
        return np.array([w.usual_batch for w in self.workloads])

    @cached_property
    def _kinds(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(dict.fromkeys(("", *(w.gpu for w in self.workloads))))}

    @cached_property
    def _kind_of(self) -> Ints:
        return np.array([self._kinds[w.gpu] for w in self.workloads], dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class _Rows:
    """Ways to run jobs of known workloads."""

    job: Ints
    place: Ints  # in `Measured.workloads`
    gpus: Ints
    nodes: Ints
    batch: Floats
    cap_w: Ints
    asked_gpus: Ints
    cpus: Floats  # of the host, for each GPU; nan: as much as it wants
    mem_gib: Floats
    read_mib_s: Floats
    fuse: Floats  # jobs of the array that it is in

    def __len__(self) -> int:
        return len(self.job)

    def take(self, rows: Ints) -> _Rows:
        return _Rows(*(getattr(self, name)[rows] for name in self.__slots__))

    def same_as(self, other: _Rows) -> Bools:
        """Which of these are run as those are."""
        names = ("gpus", "nodes", "batch", "cap_w", "cpus", "mem_gib", "read_mib_s", "fuse")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return np.asarray(np.logical_and.reduce([(a == b) | ((a != a) & (b != b)) for a, b in pairs]))

    def settings(self) -> Settings:
        unset = np.full(len(self), np.nan)
        return Settings(
            gpus=self.gpus.astype(np.float64),
            nodes=self.nodes.astype(np.float64),
            batch=self.batch,
            cap_w=np.where(self.cap_w > 0, self.cap_w, np.nan),
            clock_mhz=unset,
            cpus=self.cpus * self.gpus,
            mem_gib=self.mem_gib * self.gpus,
            read_mib_s=self.read_mib_s * self.gpus,
            fuse=self.fuse,
        )


@lru_cache(maxsize=16)
def _places(models: Measured, jobs: Jobs, kinds: tuple[str, ...]) -> Ints:
    """Which workload each of *jobs* is on GPUs of each of *kinds*, or else on those it accepts; -1: none."""
    width = len(jobs.gpu_kind.names)
    sorts, code = np.unique(jobs.model.codes * width + jobs.gpu_kind.codes, return_inverse=True)
    table = np.full((len(sorts), len(kinds)), -1, dtype=np.int64)
    for row, sort in enumerate(sorts.tolist()):
        name, accepts = divmod(sort, width)
        model = jobs.model.names[name].partition("(")[0].strip()
        for column, kind in enumerate(kinds):
            for gpu in (*filter(None, (kind, *jobs.gpu_kind.names[accepts].split("|"))), ""):
                place = models._place(model, gpu.strip()) if model else None
                if place is not None:
                    table[row, column] = place
                    break
    return table[code]


def plain(name: str) -> str:
    """*name* without what spellings differ in."""
    return "".join(c for c in name.casefold() if c.isalnum() or c in "/.+")
