"""`fusion.Session(array, configs)`: a training run in one process in which every member is a job.

    with fusion.Session(array, configs, optimiser) as run:
        for epoch in run.epochs(5):
            for x, y in run.steps(loader):
                losses = step(x, y)
            run.report(loss=losses)

A `wattline.Session` handles the process: steps, energy, caps and stop requests. Each member has its own
checkpoint, events, log and share of the energy, can be cancelled, and may finish before the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from wattline.errors import ConfigError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.checkpoints import ArrayCheckpoints, MemberStates
from wattline.fusion.member import CANCEL, Member, number_members, read_member_jobs
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.rng_state import RngState
from wattline.train import session as train
from wattline.train.checkpoint import Checkpoints, TrainingPosition
from wattline.train.progress_events import EventWriter

T = TypeVar("T")

_CANCEL_POLL_S = 1.0  # between two checks for cancelled members


class Session:
    """One training run of an array; `ids` and `configs` list the members still in it.

    *parts* are the objects to train with and to checkpoint: optimisers, schedules, scalers, more arrays, and
    anything with `state_dict` and `load_state_dict`. *options* are those of `wattline.Session`, except `save`
    and `load`. Members leave the array between two steps, when they are cancelled or done; optimisers,
    schedules and scalers shrink with it and the other members are unaffected. `process` is the session of
    the process.

    Members resume together from the newest step of which all have a checkpoint. If there is none, because
    they are at different steps, they cannot form one array and `NotFusible` is raised.
    """

    def __init__(
        self, array: FusedArray, configs: Sequence[dict[str, Any]], *parts: Any, **options: Any
    ) -> None:
        size = len(array)
        if len(configs) != size:
            raise ConfigError(
                f"got {len(configs)} configs, expected {size}: one for each member of the array"
            )
        if unsupported := {"save", "load"} & set(options):
            raise ConfigError(
                f"{min(unsupported)} is not supported for arrays",
                "pass the objects to save after the configs",
            )
        if options.get("batch_sizes") and size > 1:
            raise ConfigError(f"batch_sizes work for one member only, the array has {size}")
        self.array = array
        self.process = _ProcessSession(self, options)
        if self.process.ranks.count > 1:
            raise NotFusible(f"an array runs in one process, got {self.process.ranks.count} ranks")
        environment, warn_once = self.process.environment, self.process._warn_once
        self._arrays = [array, *(part for part in parts if isinstance(part, FusedArray))]
        for part in parts:
            if isinstance(part, Scaler):
                array.follow(part)
        jobs = read_member_jobs(size)
        self.process._attempt.watch(*(job.folder for job in jobs))
        self._has_service = bool(jobs)
        self.members: list[Member] = (
            [job.member(config, job is jobs[0], warn_once) for job, config in zip(jobs, configs, strict=True)]
            if jobs
            else number_members(configs, environment.events, environment.job_id, warn_once)
        )
        events = None if jobs or size == 1 else environment.events
        self._job_events = EventWriter(
            events, environment.job_id, warn_once
        )  # of the job that all members form
        folder = environment.checkpoints or (
            Path(options["checkpoints"]) if options.get("checkpoints") else None
        )
        folders = {job.id: job.checkpoint for job in jobs}
        if folder is not None and not jobs:
            folders = {m.id: folder if size == 1 else folder / f"member{m.id}" for m in self.members}
        self._rng = RngState()
        states = MemberStates([array, *parts], self._rng)
        self._checkpoints = (
            ArrayCheckpoints(self.members, folders, states, self._positions, bool(self.process.group))
            if folders
            else None
        )
        self.process._checkpoints = cast(Checkpoints | None, self._checkpoints)
        if size > 1:
            self.process.group = ""  # the energy of an array is no measure of one job
        self._distributed_j = 0.0
        self._polled_s = -math.inf
        self._sums: dict[str, tuple[Tensor, int]] = {}

    @property
    def ids(self) -> list[str]:
        """Ids of the members in the array: job ids, or numbers without a service."""
        return [member.id for member in self.members]

    @property
    def configs(self) -> list[dict[str, Any]]:
        """Configs of the members in the array."""
        return [member.config for member in self.members]

    @property
    def resumed(self) -> bool:
        """True if the run resumed from checkpoints."""
        return self.process.resumed

    @property
    def energy_j(self) -> list[float | None]:
        """Energy of each member so far in joules; None if unmetered."""
        self._distribute_energy()
        return [member.joules for member in self.members]

    # -- context manager
    def __enter__(self) -> Session:
        self.process.__enter__()
        try:
            self._remove_members(self._finished_members())
        except BaseException as error:
            self.process.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)

    # -- training loop
    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs, from the checkpoints' epoch to *count* or until all are done."""
        for epoch in self.process.epochs(count):
            self._sums.clear()
            self._rng.begin_epoch()
            yield epoch

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """Return the batches of *loader* without those before the checkpoints' step.

        Members may leave before a batch is yielded. Only the first loop of an epoch is counted.
        """
        return self.process.steps(loader)

    def add(self, **values: Any) -> None:
        """Add values of one step; `report` reports their means over the epoch.

        A sum kept by the script would have the wrong length after a member leaves in the middle of an epoch.
        """
        for name, value in values.items():
            row = self._member_values(name, value)
            total, count = self._sums.get(name, (torch.zeros_like(row), 0))
            self._sums[name] = total + row, count + 1

    def report(self, **metrics: Any) -> list[bool]:
        """Report metrics, one value per member or one for all; return which members reached the target.

        Members that reached it leave before the next step.
        """
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums.clear()
        rows = means | {name: self._member_values(name, value) for name, value in metrics.items()}
        values = {name: row.tolist() for name, row in rows.items()}
        target = self.process.target
        if target is not None and target.metric not in values:
            raise ConfigError(
                f"report got {', '.join(values) or 'no metric'}, "
                f"expected {target.metric}, which has the target"
            )
        self._distribute_energy()
        fraction = self.process._completed_fraction()
        for index, (member, position) in enumerate(zip(self.members, self._positions(), strict=True)):
            own = {name: row[index] for name, row in values.items()}
            member.update_best(target, own)
            position.best, position.reached = member.best, member.reached
            member.write_event("report", position, {"fraction": fraction, "metrics": own})
            member.log("  ".join([f"epoch {position.epoch}", *(f"{n} {v:.4g}" for n, v in own.items())]))
            for name in [name for name, value in own.items() if not math.isfinite(value)]:
                self._warn_nonfinite(member, name, own[name])
        each = {f"{name}.{m.id}": row[i] for name, row in values.items() for i, m in enumerate(self.members)}
        self._job_events.write(
            "report", {**asdict(self.process.position), "fraction": fraction, "metrics": each}
        )
        return [member.reached for member in self.members]

    def finish(self, index: int) -> None:
        """Mark a member as done: it is checkpointed and leaves before the next step."""
        if not -len(self.members) <= index < len(self.members):
            raise NotFusible(f"no member {index}, the array has {len(self.members)} members")
        self.members[index].reached = True

    # -- internals
    def _update_members(self, inside: bool) -> None:
        """Remove cancelled and finished members between two steps, or two epochs if *inside* is false."""
        self._poll_cancellations()
        cancelled = [member for member in self.members if member.cancelled]
        if len(cancelled) == len(self.members):
            self._remove_members(cancelled)
            self.process.stopped = "cancelled"
            raise SystemExit(0)
        self._remove_members(
            [*cancelled, *(member for member in self._finished_members() if not member.cancelled)]
        )
        if all(member.reached for member in self.members):
            self.process.reached = True
            if inside:
                self.process.stopped = self.process.stopped or "reached"

    def _finished_members(self) -> list[Member]:
        """Return the members that are done while others are not; the last ones end with the session."""
        finished = [member for member in self.members if member.reached]
        unfinished = [member for member in self.members if not member.reached and not member.cancelled]
        return finished if unfinished else []

    def _poll_cancellations(self) -> None:
        now_s = time.monotonic()
        if now_s - self._polled_s < _CANCEL_POLL_S:
            return
        self._polled_s = now_s
        for member in self.members:
            member.cancelled = member.folder is not None and (member.folder / CANCEL).exists()

    def _remove_members(self, leaving: Sequence[Member]) -> None:
        """Checkpoint the *leaving* members, write their end events, and drop them from the array."""
        if not leaving:
            return
        self.process._leave_if_superseded()
        self._distribute_energy()
        if self._checkpoints is not None:
            self._checkpoints.write_members(leaving)
        positions = dict(zip(self.members, self._positions(), strict=True))
        for member in leaving:
            how = "cancelled" if member.cancelled else "reached"
            values = {"fraction": self.process._completed_fraction(), "how": how}
            member.write_event("ended", positions[member], values)
            member.log(_format_end(how, positions[member], self.process.energy_method))
            self._job_events.write("left", {"member": member.id, **values})
        removed = [index for index, member in enumerate(self.members) if member in leaving]
        rows = [index for index, member in enumerate(self.members) if member not in leaving]
        if rows:
            for array in self._arrays:
                array.drop(removed)
        self._sums = {name: (total[rows], count) for name, (total, count) in self._sums.items()}
        self.members[:] = [self.members[row] for row in rows]
        if self._checkpoints is not None:
            self._checkpoints.release_members(leaving)

    def _distribute_energy(self) -> None:
        """Divide the energy used since the last call evenly among the members in the array."""
        own_j = None if self.process._closed else self.process._process_energy_j()
        if own_j is None or not self.members:
            return
        each_j = (own_j - self._distributed_j) / len(self.members)
        self._distributed_j = own_j
        for member in self.members:
            member.joules = (member.joules or 0.0) + each_j

    def _positions(self) -> list[TrainingPosition]:
        """Return the position of each member."""
        process = self.process
        return [member.position(process.position, process._start_position) for member in self.members]

    def _write_events(self, event: str, more: dict[str, Any]) -> None:
        """Write an event of the process's session as an event of every member."""
        self._distribute_energy()
        values = {"fraction": self.process._completed_fraction(), **more}
        self._job_events.write(event, {**asdict(self.process.position), **values})
        failed = more.get("how") == "failed"
        for index, (member, position) in enumerate(zip(self.members, self._positions(), strict=True)):
            ends_reached = "how" in values and member.reached and not failed
            own = {**values, "how": "reached"} if ends_reached else values
            # A failed array does not end its members: the service retries them one by one.
            member.write_event("failed" if failed and self._has_service else event, position, own)
            if event == "began":
                of = f", member {index} of {len(self.members)}" if len(self.members) > 1 else ""
                start = f"resumes at {_format_position(position)}" if self.resumed else "starts"
                member.log(f"{start}{of}")
            elif event == "yielded":
                member.log(f"stopped on request, checkpoint at {_format_position(position)}")
            elif event == "ended":
                member.log(_format_end(own["how"], position, self.process.energy_method))

    def _warn_nonfinite(self, member: Member, name: str, value: float) -> None:
        if name in member.nonfinite:
            return
        member.nonfinite.add(name)
        text = f"{name} is {value}: training continues"
        if self._has_service or self.process.environment.events is not None:
            member.log(text)
        else:
            self.process._warn(f"member {member.id}: {text}")

    def _member_values(self, name: str, value: Any) -> Tensor:
        """Return a vector with one number for each member."""
        row = torch.as_tensor(value).detach().to("cpu", torch.float64)
        size = len(self.members)
        if row.ndim == 0:
            return row.expand(size)
        if row.shape != (size,):
            raise ConfigError(
                f"{name} has the shape {list(row.shape)}, expected one value or {size} (one per member)"
            )
        return row


class _ProcessSession(train.Session):
    """The session of the process; it writes events and checkpoints by member."""

    def __init__(self, array_session: Session, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._array_session = array_session

    def _write_event(self, event: str, **fields: Any) -> None:
        self._array_session._write_events(event, fields)

    def _save_or_yield(self) -> None:
        self._array_session._rng.resume_step()
        self._array_session._update_members(inside=True)
        if not self.stopped:
            super()._save_or_yield()

    def _end_epoch(self) -> None:
        if not self._epoch_interrupted:
            self._array_session._rng.end_epoch()
        super()._end_epoch()

    def _synchronize_ranks(self) -> None:
        super()._synchronize_ranks()
        self._array_session._update_members(inside=False)


def _format_position(position: TrainingPosition) -> str:
    return f"epoch {position.epoch}, step {position.step}"


def _format_end(how: str, position: TrainingPosition, method: str) -> str:
    energy = "unmetered" if position.joules is None else f"{position.joules:.4g} J ({method})"
    outcome = "reached its target" if how == "reached" else how
    return (
        f"{outcome} at {_format_position(position)}: {position.steps} steps, "
        f"{position.seconds:.4g} s, {energy}"
    )
