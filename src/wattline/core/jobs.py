"""Jobs of a trace or a service, as read-only columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Bools, Floats, Ints, Labels, Table
from wattline.errors import InputError

PREEMPTIBLE_NEVER, PREEMPTIBLE_ALWAYS, PREEMPTIBLE_ONCE_SAVED = range(3)
"""Values of `Jobs.preemptible`: whether a running job may be stopped for others. The last one means: in
each attempt only after it has saved something, or if it saves at every stop."""


@dataclass(frozen=True, eq=False)
class Jobs(Table):
    """Training jobs as requested, one row each, in order of submission.

    A job is *steps* units of work; one takes *step_s* seconds with the requested resources. Where only the
    duration is known, a step is one second and *whole* is False: progress may then be fractional.
    """

    id: NDArray[np.object_]
    submit_s: Floats
    gpus: Ints
    steps: Floats
    step_s: Floats
    whole: Bools
    deadline_s: Floats  # inf: none
    late_per_h: Floats  # money per hour of delay after the deadline; 0: unset
    priority: Floats  # larger goes first
    batch: Ints  # 0: unknown
    min_gpus: Ints  # 0: unset
    max_gpus: Ints  # 0: unset
    max_batch: Ints  # 0: the batch size is fixed
    noise: Floats  # gradient noise scale in samples; 0: unknown
    cpus: Floats  # cores of the whole job with which a step takes step_s; 0: unset
    mem_gib: Floats  # likewise host memory
    team: Labels  # virtual cluster, account
    user: Labels
    model: Labels
    gpu_kind: Labels  # accepted kinds, separated by "|"; "": any
    key: Labels  # equal for recurrences of one job; "": unknown
    fuse: Labels  # fusion key, equal for jobs that may be fused; "": never
    always_fuse: Bools  # fuse whenever possible, even if the forecast shows no gain
    status: Labels  # outcome in the recorded trace; "": unknown
    preemptible: Ints  # PREEMPTIBLE_NEVER, PREEMPTIBLE_ALWAYS or PREEMPTIBLE_ONCE_SAVED
    checkpoint_s: Floats  # running time between checkpoints; 0: it saves at every stop, -1: it never saves
    min_runtime_s: Floats  # an attempt is not stopped for others before

    @classmethod
    def of(
        cls,
        *,
        submit_s: Sequence[float] | Floats,
        gpus: Sequence[int] | Ints,
        duration_s: Sequence[float] | Floats | None = None,
        steps: Sequence[float] | Floats | None = None,
        step_s: Sequence[float] | Floats | None = None,
        id: Sequence[str] | None = None,
        deadline_s: Sequence[float] | Floats | None = None,
        late_per_h: Sequence[float] | Floats | None = None,
        priority: Sequence[float] | Floats | None = None,
        batch: Sequence[int] | Ints | None = None,
        min_gpus: Sequence[int] | Ints | None = None,
        max_gpus: Sequence[int] | Ints | None = None,
        max_batch: Sequence[int] | Ints | None = None,
        noise: Sequence[float] | Floats | None = None,
        cpus: Sequence[float] | Floats | None = None,
        mem_gib: Sequence[float] | Floats | None = None,
        team: Sequence[str] | Labels | None = None,
        user: Sequence[str] | Labels | None = None,
        model: Sequence[str] | Labels | None = None,
        gpu_kind: Sequence[str] | Labels | None = None,
        key: Sequence[str] | Labels | None = None,
        fuse: Sequence[str] | Labels | None = None,
        always_fuse: Sequence[bool] | Bools | None = None,
        status: Sequence[str] | Labels | None = None,
        preemptible: Sequence[int] | Ints | None = None,
        checkpoint_s: Sequence[float] | Floats | None = None,
        min_runtime_s: Sequence[float] | Floats | None = None,
    ) -> Jobs:
        """Build jobs from columns; give either *duration_s*, or *steps* and *step_s*.

        Rows are sorted by submission time (stable). Raise `InputError` for impossible values.
        """
        count = len(submit_s)
        if (duration_s is None) == (steps is None or step_s is None):
            raise InputError("give either duration_s, or both steps and step_s")
        if duration_s is not None:
            whole = np.zeros(count, dtype=np.bool_)
            steps, step_s = duration_s, np.ones(count)
        else:
            whole = np.ones(count, dtype=np.bool_)

        def floats(values: Sequence[float] | Floats | None, missing: float) -> Floats:
            """Return a column of floats, filled with *missing* if it is not given."""
            return np.full(count, missing) if values is None else np.array(values, dtype=np.float64)

        def counts(values: Sequence[int] | Ints | None) -> Ints:
            return np.zeros(count, np.int64) if values is None else np.array(values, dtype=np.int64)

        def labels(words: Sequence[str] | Labels | None) -> Labels:
            if words is None:
                return Labels.repeat("", count)
            return words if isinstance(words, Labels) else Labels.of(words)

        ids = np.empty(count, dtype=np.object_)
        ids[:] = [str(row) for row in range(count)] if id is None else list(id)
        jobs = cls(
            id=ids,
            submit_s=floats(submit_s, 0.0),
            gpus=np.array(gpus, dtype=np.int64),
            steps=floats(steps, 0.0),
            step_s=floats(step_s, 1.0),
            whole=whole,
            deadline_s=floats(deadline_s, math.inf),
            late_per_h=floats(late_per_h, 0.0),
            priority=floats(priority, 0.0),
            batch=counts(batch),
            min_gpus=counts(min_gpus),
            max_gpus=counts(max_gpus),
            max_batch=counts(max_batch),
            noise=floats(noise, 0.0),
            cpus=floats(cpus, 0.0),
            mem_gib=floats(mem_gib, 0.0),
            team=labels(team),
            user=labels(user),
            model=labels(model),
            gpu_kind=labels(gpu_kind),
            key=labels(key),
            fuse=labels(fuse),
            always_fuse=np.asarray(np.zeros(count) if always_fuse is None else always_fuse, dtype=np.bool_),
            status=labels(status),
            preemptible=np.ones(count, np.int64) if preemptible is None else counts(preemptible),
            checkpoint_s=floats(checkpoint_s, 0.0),
            min_runtime_s=floats(min_runtime_s, 0.0),
        )
        jobs.validate()
        order = np.argsort(jobs.submit_s, kind="stable")
        return jobs if np.array_equal(order, np.arange(count)) else jobs.take(order)

    @cached_property
    def can_lose_work(self) -> bool:
        """True if a stop may lose work of at least one job."""
        return bool(self.checkpoint_s.any())

    @property
    def duration_s(self) -> Floats:
        """Runtime of each job with the requested resources."""
        return self.steps * self.step_s

    def validate(self) -> None:
        """Raise `InputError` for the first value that no job can have, and for ids that appear twice."""
        rules = (
            ("submit_s", np.isfinite(self.submit_s), "a finite number of seconds"),
            ("gpus", self.gpus > 0, "at least 1"),
            ("steps", np.isfinite(self.steps) & (self.steps >= 0), "a finite number, not negative"),
            ("step_s", np.isfinite(self.step_s) & (self.step_s > 0), "a finite number above 0"),
            ("deadline_s", self.deadline_s > -np.inf, "a number of seconds, or inf for none"),
            (
                "late_per_h",
                np.isfinite(self.late_per_h) & (self.late_per_h >= 0),
                "a finite number, not negative",
            ),
            ("priority", np.isfinite(self.priority), "a finite number"),
            ("min_gpus", (self.min_gpus >= 0) & (self.min_gpus <= self.gpus), "0, or at most gpus"),
            (
                "max_gpus",
                (self.max_gpus == 0) | (self.max_gpus >= self.gpus),
                "0, or at least gpus",
            ),
            ("max_batch", (self.max_batch == 0) | (self.max_batch >= self.batch), "0, or at least batch"),
            ("noise", np.isfinite(self.noise) & (self.noise >= 0), "a finite number, not negative"),
            ("cpus", np.isfinite(self.cpus) & (self.cpus >= 0), "a finite number, not negative"),
            ("mem_gib", np.isfinite(self.mem_gib) & (self.mem_gib >= 0), "a finite number, not negative"),
            ("preemptible", (self.preemptible >= 0) & (self.preemptible <= 2), "0, 1 or 2"),
            (
                "checkpoint_s",
                np.isfinite(self.checkpoint_s) & ((self.checkpoint_s >= 0) | (self.checkpoint_s == -1)),
                "a finite number of seconds, not negative, or -1 for never",
            ),
            (
                "min_runtime_s",
                np.isfinite(self.min_runtime_s) & (self.min_runtime_s >= 0),
                "a finite number, not negative",
            ),
        )
        for name, good, expected in rules:
            if not good.all():
                row = int(np.argmin(good))
                value = getattr(self, name)[row]
                raise InputError(f"job {self.id[row]}: {name} is {value}, expected {expected}")
        if len(set(self.id.tolist())) != len(self):
            seen: set[str] = set()
            twice = next(i for i in self.id.tolist() if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise InputError(f"job {twice}: the id appears twice, expected unique ids")
