"""Batch size and cap of jobs that run again and again: chosen when one starts, learnt from when it ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattline.backend.engine.job_spec import Given, Work
from wattline.backend.engine.local.machine import Machine
from wattline.backend.engine.progress import Progress
from wattline.batch_size.history import Memory
from wattline.errors import WattlineError
from wattline.train.recurrence import Recurrence

_MOST_EPOCHS = 1000
_ETA = 0.5


class Recurrences:
    """The memory of recurring jobs on this machine; what cannot be remembered is told and does no harm."""

    def __init__(self, path: Path, machine: Machine, tell: Callable[[str], None]) -> None:
        self._machine, self._tell = machine, tell
        self._memory = Memory.open(path)
        self._caps: dict[tuple[str, int], int] = {}  # the best that a job of a group found, by batch

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()

    def chosen(self, work: Work, given: Given) -> Given:
        """What a job is given, with the batch size that is worth trying now and the best known cap.

        What a policy has decided stays.
        """
        if not work.group:
            return given
        batch = given.batch
        if work.batch_sizes and not batch:
            try:
                default = work.batch if work.batch in work.batch_sizes else work.batch_sizes[0]
                batch = self._recurrence(work, given).choose(
                    work.batch_sizes, default, _MOST_EPOCHS, self._tell
                )
            except (WattlineError, sqlite3.Error) as error:
                self._tell(f"{work.group}: no batch size was chosen: {error}")
        known_w = self._caps.get((work.group, batch or work.batch), 0)
        return replace(given, batch=batch, cap_w=given.cap_w or known_w)

    def ended(self, work: Work, told: Progress, succeeded: bool) -> None:
        """A run is over: remember what came of it, if its session told."""
        batch = told.batch or work.batch
        if not batch or not told.kind:
            return
        if told.cap_w and succeeded:
            self._caps[work.group, batch] = round(told.cap_w)
        memory = self._memory
        try:
            if not succeeded or told.ended == "failed":
                memory.forget_trial(work.group, told.kind, batch)
                return
            memory.add(
                work.group,
                told.kind,
                batch=batch,
                reached=told.ended == "reached" or (told.ended == "ended" and not work.target),
                seconds=told.seconds,
                joules=told.joules,
                epochs=told.epochs,
            )
        except (sqlite3.Error, OverflowError) as error:
            self._tell(f"{work.group}: what came of job {work.id} is not remembered: {error}")

    def _recurrence(self, work: Work, given: Given) -> Recurrence:
        gpus = [self._machine.meter.gpus[number] for number in given.gpus]
        most_w = sum(gpu.cap_range_w()[1] for gpu in gpus)
        return Recurrence(self._memory, work.group, gpus[0].kind or gpus[0].name, most_w or 1.0, _ETA)
