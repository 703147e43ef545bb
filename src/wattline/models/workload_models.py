"""Models of measured jobs, backed by a set of fitted workloads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from wattline.core.events import EVENT_JOB, EVENT_RATE, EVENT_VERB, RAN, Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import ConfigError, NotFitted, did_you_mean
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings, fewest_nodes
from wattline.models.job_classes import classify_jobs
from wattline.models.power.curves import EXTRAPOLATION_FACTOR
from wattline.models.trace_model import TraceModels, batch_efficiency, host_limited_rate
from wattline.models.workload import LEARNING_THRESHOLD, Prediction, Workload

_CACHED_ROWS = 512  # up to this many rows are looked up in a cache one by one


@dataclass(frozen=True, eq=False)
class WorkloadModels:
    """Models that predict measured jobs from *workloads* and all others from *fallback*.

    A workload is found by its model's name in any spelling ("ResNet-50" is "resnet50"), or by "source/name"
    if several sources measured it; earlier entries of *workloads* take precedence.

    *timed_on* is the GPU kind on which jobs take the time of their trace. A job is then faster or slower on
    another kind by the ratio that the same source measured. "": unknown, all kinds are equally fast.
    """

    workloads: tuple[Workload, ...]
    fallback: TraceModels = field(default_factory=TraceModels)
    timed_on: str = ""

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def __str__(self) -> str:
        sources = sorted({w.source.name for w in self.workloads} - {""})
        return (
            f"WorkloadModels({len(self.workloads)} workloads{' of ' if sources else ''}{', '.join(sources)})"
        )

    __repr__ = __str__

    @cached_property
    def _index_by_name(self) -> dict[tuple[str, str], int]:
        """Indices by (name, GPU kind), "" for any kind; exact names take precedence over normalised ones."""
        indices: dict[tuple[str, str], int] = {}
        for normalize in (str, str.casefold, normalize_name):
            for index, w in enumerate(self.workloads):
                for name in (normalize(w.model), normalize(f"{w.source.name}/{w.model}")):
                    for gpu in (w.gpu.casefold(), ""):
                        indices.setdefault((name, gpu), index)
        return indices

    def _find_index(self, model: str, gpu: str) -> int | None:
        for name in (model, model.casefold(), normalize_name(model)):
            index = self._index_by_name.get((name, gpu.casefold())) if name else None
            if index is not None:
                return index
        return None

    def find(self, model: str, gpu: str) -> Workload:
        """Return the workload of that name on that kind of GPU; raises `NotFitted` if there is none."""
        index = self._find_index(model, gpu) if gpu else None
        if index is not None:
            return self.workloads[index]
        kinds = sorted({kind for name, kind in self._index_by_name if name == normalize_name(model) and kind})
        if kinds:
            raise NotFitted(f"{model} was not measured on {gpu!r}, only on {', '.join(kinds)}")
        known = dict.fromkeys(w.model for w in self.workloads)
        raise NotFitted(f"nothing was measured of {model!r}", did_you_mean(model, known))

    def knows(self, model: str) -> bool:
        """Return True if a workload of that name was measured on some kind of GPU."""
        return self._find_index(model.partition("(")[0].strip(), "") is not None

    def has_host_profile(self, model: str, gpu: str) -> bool:
        """Return True if the demand of this model for host resources was measured."""
        index = self._find_index(model.partition("(")[0].strip(), gpu) if model else None
        return index is not None and "cpus" in self.workloads[index].measured

    def predict(
        self, model: str | Labels, gpu: str | Labels, settings: Settings | None = None, **knobs: Any
    ) -> Prediction:
        """Predict samples per second and watts of *model* on *gpu*, one row per setting.

        Pass *settings*, or knobs as `Settings.of` takes them: `predict("resnet50", "a100", gpus=8)`.
        *model* and *gpu* may be columns of the same length as the settings.
        """
        rows = Settings.of(**knobs) if settings is None else settings
        if isinstance(model, str) and isinstance(gpu, str):
            return self.find(model, gpu).predict(rows)
        models = Labels.repeat(model, len(rows)) if isinstance(model, str) else model
        gpus = Labels.repeat(gpu, len(rows)) if isinstance(gpu, str) else gpu
        if not len(models) == len(gpus) == len(rows):
            raise ConfigError(
                f"got {len(models)} models and {len(gpus)} GPU kinds for {len(rows)} settings,"
                f" expected {len(rows)} of each"
            )
        kinds = models.codes * len(gpus.names) + gpus.codes
        # A stable sort of small integers takes linear time.
        order = np.argsort(kinds.astype(np.min_scalar_type(int(kinds.max(initial=0)))), kind="stable")
        rows, kinds = rows.take(order), kinds[order]
        starts = np.flatnonzero(np.diff(kinds, prepend=-1)).tolist()
        sorted_s, sorted_w = np.empty(len(rows)), np.empty(len(rows))
        for first, last in zip(starts, [*starts[1:], len(rows)], strict=True):
            name, on = divmod(int(kinds[first]), len(gpus.names))
            workload = self.find(models.names[name], gpus.names[on])
            sorted_s[first:last], sorted_w[first:last] = workload.predict(rows.take(slice(first, last)))
        samples_s, watts = np.empty(len(rows)), np.empty(len(rows))
        samples_s[order], watts[order] = sorted_s, sorted_w
        return Prediction(samples_s, watts)

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the speed of each grant relative to the job's request on the fewest nodes.

        Beyond the predictable range more GPUs make a job no faster.
        """
        if len(grants) > _CACHED_ROWS:
            return self._speed(jobs, grants)
        # In a cluster the same few settings recur, so a few rows are looked up in a cache.
        keys, known = grants.keys(classify_jobs(jobs)[0]), self._speed_cache.setdefault(jobs, {})
        new = [at for at, key in enumerate(keys) if key not in known]
        if new:
            rows = np.array(new, dtype=np.int64)
            speeds = self._speed(jobs, grants.take(rows)).tolist()
            known.update(zip((keys[at] for at in new), speeds, strict=True))
        return np.array([known[key] for key in keys], dtype=np.float64)

    def _speed(self, jobs: Jobs, grants: Grants) -> Floats:
        here, granted = self._take_measured(jobs, grants)
        speed = np.empty(len(grants))
        if len(here) < len(grants):
            speed[:] = self.fallback.speed(jobs, grants)
        if len(here):
            requested = self._build_requested_rows(jobs, granted)
            gain = self._predict_rows(granted)[0] / self._predict_rows(requested)[0]
            if grants.batch.any():
                gain = gain * batch_efficiency(jobs.noise[granted.job], requested.batch, granted.batch)
            if grants.members.max(initial=1) > 1:
                # An array was measured as a whole; the interference of packed jobs was not.
                packed = self.fallback.sharing_speed(
                    grants.members[here], np.zeros(len(here), dtype=np.bool_)
                )
                gain = gain * np.where(grants.fused[here], 1.0 / granted.fuse, packed)
            speed[here] = gain
            if grants.host.any():
                speed[here] *= host_limited_rate(jobs, grants.take(here), self._least_host[:, granted.index])
        return speed

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the watts of one GPU of each grant; nan if the model was only measured on other kinds."""
        here, granted = self._take_measured(jobs, grants)
        kinds = np.array([self._kinds.get(name.casefold(), -1) for name in grants.kind.names])
        on = kinds[grants.kind.codes[here]]
        its_own = (on == self._workload_kind[granted.index]) | (on == self._kinds[""])
        if len(here) == len(grants) and its_own.all():
            return self._predict_rows(granted)[1]
        watts = self.fallback.watts(jobs, grants)
        watts[here[its_own]] = self._predict_rows(granted)[1][its_own]
        return watts

    def widest(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the largest array width of each grant; inf if the job's or the GPU's memory is unknown."""
        here, granted = self._take_measured(jobs, grants)
        most = np.full(len(grants), np.inf)
        for at, index in zip(here.tolist(), granted.index.tolist(), strict=True):
            workload = self.workloads[index]
            on = DEVICES.get(grants.kind.word(at).casefold() or workload.gpu.casefold())
            if on is not None and not np.isnan(workload.array.member_gib):
                most[at] = workload.array.max_width(on.mem_gib)
        return most

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> WorkloadModels:
        """Return the models updated with *events* that happened under *leases* on *nodes*.

        Only a job that runs alone, in another configuration than requested, at another rate than predicted
        updates its workload; all others cost one prediction.
        """
        if not len(events) or not len(leases):
            return self
        ran = events[(events[:, EVENT_VERB] == RAN) & (events[:, EVENT_RATE] > 0)]
        job = ran[:, EVENT_JOB].astype(np.int64)
        # Leases are sorted by job, one row per node.
        first = np.searchsorted(leases.job, job)
        alone = leases.job[np.minimum(first, len(leases) - 1)] == job
        together = leases.job != leases.group
        if together.any():
            alone &= ~np.isin(job, np.append(leases.job[together], leases.group[together]))
        job, rate, first = job[alone], ran[alone, EVENT_RATE], first[alone]
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
        if (np.abs(rate * jobs.step_s[job] / self.speed(jobs, grants) - 1.0) <= LEARNING_THRESHOLD).all():
            return self
        here, granted = self._take_measured(jobs, grants)
        requested = self._build_requested_rows(jobs, granted)
        # The trace gives the step time as requested; the ratio of other configurations to it is learnt.
        useful = rate[here] * jobs.step_s[granted.job]
        useful = useful / batch_efficiency(jobs.noise[granted.job], requested.batch, granted.batch)
        observed = self._predict_rows(requested)[0] * useful
        mispredicted = np.abs(observed / self._predict_rows(granted)[0] - 1.0) > LEARNING_THRESHOLD
        mispredicted &= ~granted.equals(requested)
        updated = {}
        for index in np.unique(granted.index[mispredicted]).tolist():
            rows = np.flatnonzero(mispredicted & (granted.index == index))
            workload = self.workloads[index]
            now, then = granted.take(rows).settings(), requested.take(rows).settings()
            after = workload.observe(now, observed[rows], keep=then)
            if after is not workload:
                updated[index] = after
        if not updated:
            return self
        return replace(self, workloads=tuple(updated.get(p, w) for p, w in enumerate(self.workloads)))

    def _take_measured(self, jobs: Jobs, grants: Grants) -> tuple[Ints, _ConfigurationRows]:
        """Return the positions of grants with a measured model, and their rows."""
        index = find_workload_indices(self, jobs, grants.kind.names)[grants.job, grants.kind.codes]
        here = np.flatnonzero(index >= 0)
        if len(here) < len(index):
            grants = grants.take(here)
        return here, self._build_rows(jobs, grants.job, index[here], grants.gpus, grants)

    def _build_requested_rows(self, jobs: Jobs, granted: _ConfigurationRows) -> _ConfigurationRows:
        """Build the rows in which jobs take the time of their trace."""
        index = granted.index
        if self.timed_on:
            index = find_workload_indices(self, jobs, (self.timed_on,))[granted.job, 0]
        return self._build_rows(jobs, granted.job, index, granted.requested_gpus, None)

    def _build_rows(
        self, jobs: Jobs, job: Ints, index: Ints, gpus: Ints, grants: Grants | None
    ) -> _ConfigurationRows:
        """Build rows as in *grants*, or on *gpus* GPUs on the fewest nodes where *grants* is None."""
        wide = np.clip(gpus, 1, self._most_gpus[index]).astype(np.int64)
        requested_gpus = jobs.gpus[job]
        batch = jobs.batch[job].astype(np.float64)
        if grants is not None and grants.batch.any():
            batch = np.where(grants.batch > 0, grants.batch, batch)
        batch = np.where(batch > 0, batch, self._usual_batch[index] * requested_gpus)
        nodes = np.ones_like(wide) if grants is None else grants.nodes
        nodes = np.minimum(np.maximum(nodes, fewest_nodes(wide)), wide).astype(np.int64)
        cap_w = np.zeros_like(wide) if grants is None else grants.cap_w
        # The request holds the host resources of the traced run; nan, unlimited, if the trace has none.
        cpus, mem_gib = (np.where(a > 0, a, np.nan)[job] / requested_gpus for a in (jobs.cpus, jobs.mem_gib))
        read_mib_s = np.full(len(job), np.nan)
        if grants is not None and grants.host.any():
            host = np.where(grants.host > 0, grants.host, np.nan)
            cpus = np.where(np.isnan(host[0]), cpus, host[0] / 1000)
            mem_gib = np.where(np.isnan(host[1]), mem_gib, host[1] / 1024)
            read_mib_s = host[2]
        fuse = np.ones(len(job)) if grants is None else np.where(grants.fused, grants.members, 1.0)
        return _ConfigurationRows(
            job, index, wide, nodes, batch, cap_w, requested_gpus, cpus, mem_gib, read_mib_s, fuse
        )

    def _predict_rows(self, rows: _ConfigurationRows) -> tuple[Floats, Floats]:
        """Return samples per second of all GPUs, and watts of one.

        In a cluster the same few settings recur, so up to `_CACHED_ROWS` rows are looked up in a cache.
        """
        if len(rows) > _CACHED_ROWS:
            return self._extrapolate_rows(rows)
        keys = list(
            zip(
                rows.index.tolist(),
                rows.gpus.tolist(),
                rows.nodes.tolist(),
                rows.batch.tolist(),
                rows.cap_w.tolist(),
                rows.fuse.tolist(),
                *(np.nan_to_num(a, nan=-1.0).tolist() for a in (rows.cpus, rows.mem_gib, rows.read_mib_s)),
                strict=True,
            )
        )
        cached = self._prediction_cache
        new = [at for at, key in enumerate(keys) if key not in cached]
        if new:
            samples_s, watts = self._extrapolate_rows(rows.take(np.array(new, dtype=np.int64)))
            for at, one_s, one_w in zip(new, samples_s.tolist(), watts.tolist(), strict=True):
                cached[keys[at]] = (one_s, one_w)
        both = np.array([cached[key] for key in keys], dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _extrapolate_rows(self, rows: _ConfigurationRows) -> tuple[Floats, Floats]:
        samples_s, watts = np.empty(len(rows)), np.empty(len(rows))
        for index in np.unique(rows.index).tolist():
            here = np.flatnonzero(rows.index == index)
            settings = rows.take(here).settings()
            samples_s[here], watts[here] = self.workloads[index].extrapolate(settings)
            watts[here] /= settings.gpus
        return samples_s, watts

    @cached_property
    def _speed_cache(self) -> WeakKeyDictionary[Jobs, dict[tuple[object, ...], float]]:
        return WeakKeyDictionary()

    @cached_property
    def _prediction_cache(self) -> dict[tuple[float, ...], tuple[float, float]]:
        return {}

    @cached_property
    def _most_gpus(self) -> Floats:
        return np.array(
            [w.measured.get("gpus", (1.0, np.inf))[1] * EXTRAPOLATION_FACTOR for w in self.workloads]
        )

    @cached_property
    def _least_host(self) -> Floats:
        """Smallest measured cores and GiB per GPU; nan: not varied."""
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
    def _workload_kind(self) -> Ints:
        return np.array([self._kinds[w.gpu] for w in self.workloads], dtype=np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class _ConfigurationRows:
    """Configurations of jobs with a measured workload."""

    job: Ints
    index: Ints  # index in `WorkloadModels.workloads`
    gpus: Ints
    nodes: Ints
    batch: Floats
    cap_w: Ints
    requested_gpus: Ints
    cpus: Floats  # host resources per GPU; nan: unlimited
    mem_gib: Floats
    read_mib_s: Floats
    fuse: Floats  # members of its fused array

    def __len__(self) -> int:
        return len(self.job)

    def take(self, rows: Ints) -> _ConfigurationRows:
        return _ConfigurationRows(*(getattr(self, name)[rows] for name in self.__slots__))

    def equals(self, other: _ConfigurationRows) -> Bools:
        """Return a mask of the rows with the same configuration in *other*."""
        names = ("index", "gpus", "nodes", "batch", "cap_w", "cpus", "mem_gib", "read_mib_s", "fuse")
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
def find_workload_indices(models: WorkloadModels, jobs: Jobs, kinds: tuple[str, ...]) -> Ints:
    """Return the workload index of each job on each of *kinds*, or else on a kind it accepts; -1: none."""
    width = len(jobs.gpu_kind.names)
    pairs, code = np.unique(jobs.model.codes * width + jobs.gpu_kind.codes, return_inverse=True)
    table = np.full((len(pairs), len(kinds)), -1, dtype=np.int64)
    for row, pair in enumerate(pairs.tolist()):
        name, accepts = divmod(pair, width)
        model = jobs.model.names[name].partition("(")[0].strip()
        timed = models._find_index(model, models.timed_on) if model and models.timed_on else None
        for column, kind in enumerate(kinds):
            if timed is not None:
                # Ratios between kinds are those of one source; without one the kinds are equally fast.
                own = models.workloads[timed]
                same = models._find_index(f"{own.source.name}/{own.model}", kind) if kind else timed
                table[row, column] = timed if same is None else same
                continue
            for gpu in (*filter(None, (kind, *jobs.gpu_kind.names[accepts].split("|"))), ""):
                index = models._find_index(model, gpu.strip()) if model else None
                if index is not None:
                    table[row, column] = index
                    break
    return table[code]


def normalize_name(name: str) -> str:
    """Return *name* case-folded, without punctuation and spaces."""
    return "".join(c for c in name.casefold() if c.isalnum() or c in "/.+")
