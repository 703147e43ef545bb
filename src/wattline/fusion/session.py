"""The lines in a script's `train(array, configs)`: one process, and every member a job of its own.

    with fusion.Session(array, configs, optimiser) as run:
        for epoch in run.epochs(5):
            for x, y in run.steps(loader):
                losses = step(x, y)
            run.report(loss=losses)

What concerns the process (steps, energy, caps, being asked to stop) is done by a `wattline.Session`. Each
member has its own checkpoint, events, log and share of the energy, may be cancelled, and may be done first.
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
from wattline.fusion.checkpoints import Kept, States
from wattline.fusion.member import CANCEL, Member, numbered, served
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.rng_state import Chance
from wattline.train import session as train
from wattline.train.checkpoint import Checkpoints, Where
from wattline.train.progress_events import Events

T = TypeVar("T")

_LOOK_S = 1.0  # between two looks for members that are cancelled


class Session:
    """One training run of an array; `ids` and `configs` are those of the members that are still in it.

    *parts* are what is trained with, and kept: optimisers, schedules, scalers, more arrays, and anything with
    `state_dict` and `load_state_dict`. *options* are those of `wattline.Session`, except `save` and `load`.
    Members leave the array between two steps, when they are cancelled or done; all that belongs to the array
    follows, and the others go on as if nothing had been. `process` is the session of the process.

    Members go on together from the newest step of which all have a checkpoint. If there is none, because they
    have come to different steps, they cannot be one array: that is `NotFusible`.
    """

    def __init__(
        self, array: FusedArray, configs: Sequence[dict[str, Any]], *parts: Any, **options: Any
    ) -> None:
        size = len(array)
        if len(configs) != size:
            raise ConfigError(f"there are {len(configs)} configs, the array has {size} members")
        if wrong := {"save", "load"} & set(options):
            raise ConfigError(f"{min(wrong)} is not for arrays", "give what is to be kept after the configs")
        if options.get("batch_sizes") and size > 1:
            raise ConfigError("batch_sizes are for one job, and this is an array of several")
        self.array = array
        self.process = _Process(self, options)
        if self.process.ranks.count > 1:
            raise NotFusible(f"an array is trained by one process, not by {self.process.ranks.count} ranks")
        told, tell = self.process.told, self.process._tell_once
        self._arrays = [array, *(part for part in parts if isinstance(part, FusedArray))]
        for part in parts:
            if isinstance(part, Scaler):
                array.follow(part)
        jobs = served(size)
        self._served = bool(jobs)
        self.members: list[Member] = (
            [job.member(config, job is jobs[0], tell) for job, config in zip(jobs, configs, strict=True)]
            if jobs
            else numbered(configs, told.events, told.job, tell)
        )
        self._job = Events(None if jobs or size == 1 else told.events, told.job, tell)  # of all together
        folder = told.checkpoints or (Path(options["checkpoints"]) if options.get("checkpoints") else None)
        folders = {job.id: job.checkpoint for job in jobs}
        if folder is not None and not jobs:
            folders = {m.id: folder if size == 1 else folder / f"member{m.id}" for m in self.members}
        self._chance = Chance()
        states = States([array, *parts], self._chance)
        self._kept = (
            Kept(self.members, folders, states, self._wheres, bool(self.process.group)) if folders else None
        )
        self.process._checkpoints = cast(Checkpoints | None, self._kept)
        if size > 1:
            self.process.group = ""  # what an array has used says nothing of one job
        self._counted_j = 0.0
        self._looked_s = -math.inf
        self._sums: dict[str, tuple[Tensor, int]] = {}

    @property
    def ids(self) -> list[str]:
        """Who is in the array: the ids of their jobs, or numbers."""
        return [member.id for member in self.members]

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configs of those who are in the array."""
        return [member.config for member in self.members]

    @property
    def resumed(self) -> bool:
        """Whether it goes on from checkpoints."""
        return self.process.resumed

    @property
    def energy_j(self) -> list[float | None]:
        """The joules of each member so far; None: unmetered."""
        self._share()
        return [member.joules for member in self.members]

    # -- the block

    def __enter__(self) -> Session:
        self.process.__enter__()
        try:
            self._part(self._done())
        except BaseException as error:
            self.process.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)

    # -- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs still to do: from where the checkpoints were, until *count* or until all are done."""
        for epoch in self.process.epochs(count):
            self._sums.clear()
            self._chance.begin()
            yield epoch

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of *loader*; those that the checkpoints have behind them are left out.

        Before a batch is given, members may leave. The first loop of an epoch counts, not others.
        """
        return self.process.steps(loader)

    def add(self, **values: Any) -> None:
        """Values of one step, whose means over the epoch are reported with the rest; see `report`.

        A sum of one's own would have the wrong length when a member leaves in the middle of an epoch.
        """
        for name, value in values.items():
            row = self._row(name, value)
            total, count = self._sums.get(name, (torch.zeros_like(row), 0))
            self._sums[name] = total + row, count + 1

    def report(self, **metrics: Any) -> list[bool]:
        """Tell how good the members are, by one value for each or one for all; who has reached the target.

        Those leave before the next step.
        """
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums.clear()
        rows = means | {name: self._row(name, value) for name, value in metrics.items()}
        values = {name: row.tolist() for name, row in rows.items()}
        target = self.process.target
        if target is not None and target.metric not in values:
            raise ConfigError(
                f"report has {', '.join(values) or 'nothing'}, expected {target.metric}: it has the target"
            )
        self._share()
        fraction = self.process._fraction()
        for index, (member, where) in enumerate(zip(self.members, self._wheres(), strict=True)):
            own = {name: row[index] for name, row in values.items()}
            member.judge(target, own)
            where.best, where.reached = member.best, member.reached
            member.say("report", where, {"fraction": fraction, "metrics": own})
            member.tell("  ".join([f"epoch {where.epoch}", *(f"{n} {v:.4g}" for n, v in own.items())]))
            for name in [name for name, value in own.items() if not math.isfinite(value)]:
                self._note_odd(member, name, own[name])
        each = {f"{name}.{m.id}": row[i] for name, row in values.items() for i, m in enumerate(self.members)}
        self._job.say("report", {**asdict(self.process.where), "fraction": fraction, "metrics": each})
        return [member.reached for member in self.members]

    def finish(self, index: int) -> None:
        """A member is done: it is kept and leaves before the next step."""
        if not -len(self.members) <= index < len(self.members):
            raise NotFusible(f"there is no member {index}, the array has {len(self.members)}")
        self.members[index].reached = True

    # -- inside

    def _between(self, inside: bool) -> None:
        """Between two steps, or with *inside* false two epochs: who is cancelled or done leaves."""
        self._look_for_cancelled()
        cancelled = [member for member in self.members if member.cancelled]
        if len(cancelled) == len(self.members):
            self._part(cancelled)
            self.process.stopped = "cancelled"
            raise SystemExit(0)
        self._part([*cancelled, *(member for member in self._done() if not member.cancelled)])
        if all(member.reached for member in self.members):
            self.process.reached = True
            if inside:
                self.process.stopped = self.process.stopped or "reached"

    def _done(self) -> list[Member]:
        """Who is done, while others are not; the last ones end with the session."""
        done = [member for member in self.members if member.reached]
        going = [member for member in self.members if not member.reached and not member.cancelled]
        return done if going else []

    def _look_for_cancelled(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for member in self.members:
            member.cancelled = member.folder is not None and (member.folder / CANCEL).exists()

    def _part(self, leaving: Sequence[Member]) -> None:
        """Members leave: they are kept, their owners are told, and the array closes up."""
        if not leaving:
            return
        self._share()
        if self._kept is not None:
            self._kept.write_of(leaving)
        wheres = dict(zip(self.members, self._wheres(), strict=True))
        for member in leaving:
            how = "cancelled" if member.cancelled else "reached"
            words = {"fraction": self.process._fraction(), "how": how}
            member.say("ended", wheres[member], words)
            member.tell(_ended(how, wheres[member]))
            self._job.say("left", {"member": member.id, **words})
        gone = [index for index, member in enumerate(self.members) if member in leaving]
        rows = [index for index, member in enumerate(self.members) if member not in leaving]
        if rows:
            for array in self._arrays:
                array.drop(gone)
        self._sums = {name: (total[rows], count) for name, (total, count) in self._sums.items()}
        self.members[:] = [self.members[row] for row in rows]
        if self._kept is not None:
            self._kept.let_go(leaving)

    def _share(self) -> None:
        """What the process has used since the last look is shared by those who are in the array."""
        own_j = None if self.process._over else self.process._own_j()
        if own_j is None or not self.members:
            return
        each_j = (own_j - self._counted_j) / len(self.members)
        self._counted_j = own_j
        for member in self.members:
            member.joules = (member.joules or 0.0) + each_j

    def _wheres(self) -> list[Where]:
        """Where each member is."""
        process = self.process
        return [member.where(process.where, process._base) for member in self.members]

    def _say(self, event: str, more: dict[str, Any]) -> None:
        """What the session of the process says, said of every member."""
        self._share()
        words = {"fraction": self.process._fraction(), **more}
        self._job.say(event, {**asdict(self.process.where), **words})
        failed = more.get("how") == "failed"
        for index, (member, where) in enumerate(zip(self.members, self._wheres(), strict=True)):
            own = {**words, "how": "reached"} if "how" in words and member.reached and not failed else words
            # An array that fails is no verdict on its members: the service tries them one by one.
            member.say("failed" if failed and self._served else event, where, own)
            if event == "began":
                of = f", member {index} of {len(self.members)}" if len(self.members) > 1 else ""
                begins = f"goes on at {_at(where)}" if self.resumed else "begins"
                member.tell(f"{begins}{of}")
            elif event == "yielded":
                member.tell(f"was asked to stop, and is kept at {_at(where)}")
            elif event == "ended":
                member.tell(_ended(own["how"], where))

    def _note_odd(self, member: Member, name: str, value: float) -> None:
        if name in member.odd:
            return
        member.odd.add(name)
        text = f"{name} is {value}: it goes on, and the others with it"
        if self._served or self.process.told.events is not None:
            member.tell(text)
        else:
            self.process._tell(f"member {member.id}: {text}")

    def _row(self, name: str, value: Any) -> Tensor:
        """One number for each member."""
        row = torch.as_tensor(value).detach().to("cpu", torch.float64)
        size = len(self.members)
        if row.ndim == 0:
            return row.expand(size)
        if row.shape != (size,):
            raise ConfigError(f"{name} has {list(row.shape)} values, expected one or {size} (one per member)")
        return row


class _Process(train.Session):
    """The session of the process, which says and keeps things by member."""

    def __init__(self, team: Session, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._team = team

    def _say(self, event: str, **more: Any) -> None:
        self._team._say(event, more)

    def _save_or_leave(self) -> None:
        self._team._chance.arrive()
        self._team._between(inside=True)
        if not self.stopped:
            super()._save_or_leave()

    def _epoch_ended(self, count: int) -> None:
        if not self._cut:
            self._team._chance.end()
        super()._epoch_ended(count)

    def _agree(self) -> None:
        super()._agree()
        self._team._between(inside=False)


def _at(where: Where) -> str:
    return f"epoch {where.epoch}, step {where.step}"


def _ended(how: str, where: Where) -> str:
    used = "" if where.joules is None else f", {where.joules:.4g} J"
    return f"is over ({how}) at {_at(where)}: {where.steps} steps, {where.seconds:.4g} s{used}"
