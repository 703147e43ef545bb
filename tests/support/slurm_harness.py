"""A Slurm backend that a test drives by hand, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.actions import ACTION_COLUMNS, START
from wattline.core.events import Event, list_events

DEADLINE_S = 90.0


class Harness:
    """A backend on two nodes, the events it returned, and those it passed to its callback."""

    def __init__(self, root: Path, cluster: SlurmCluster, **options: Any) -> None:
        self.root, self.cluster = root, cluster
        self.events: list[Event] = []
        self.reported: list[tuple[str, str, dict[str, Any]]] = []
        values = {"meter": "none", "heartbeat_s": 0.5, **options}
        self.backend = Slurm(
            root,
            SlurmOptions("two", **values),
            on_event=lambda *event: self.reported.append(event),
            stay_open=True,
        )

    def submit(self, name: str, *command: str, **more: Any) -> None:
        words = command if len(command) > 1 else ("sh", "-c", *command)
        self.backend.submit([JobRecord(JobSpec(name, words, **more), JOB_REQUEST, time.time())])
        self.until(lambda: name in self.backend.records and self.backend.records[name].row >= 0)

    def start(self, name: str, *allocation: tuple[int, int]) -> None:
        row = self.backend.records[name].row
        self.apply(*((START, row, row, node, gpus) for node, gpus in allocation or ((0, 1),)))

    def apply(self, *actions: tuple[int, ...]) -> None:
        block = np.zeros((len(actions), ACTION_COLUMNS), dtype=np.int64)
        for row, action in zip(block, actions, strict=True):
            row[: len(action)] = action
        self.backend.apply(block)

    def until(self, condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            self.poll()
            assert time.monotonic() < end_s, (self.events, self.reported)

    def poll(self) -> None:
        self.events += list_events(self.backend.wait(time.time() + 0.1)[1])

    def until_event(self, verb: int) -> None:
        self.until(lambda: any(event.verb == verb for event in self.events))

    def state(self, name: str) -> str:
        attempts = self.backend._attempts.of_job(name)
        return attempts[-1].state if attempts else ""

    def count(self, verb: int) -> int:
        return [event.verb for event in self.events].count(verb)

    def job_id(self, name: str) -> str:
        """Return Slurm's id of the latest attempt at a job."""
        attempt = self.backend._attempts.of_job(name)[-1]
        return self.backend.engine._tracker.tracked[attempt].job_id

    def slurm_jobs(self) -> dict[str, str]:
        rows = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%k %T").splitlines()
        return dict(row.split() for row in rows if len(row.split()) == 2)

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [data for event, _, data in self.reported if event == kind]
