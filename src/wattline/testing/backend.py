"""What every backend owes."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.actions import ACTION_COLUMNS, START, STOP
from wattline.core.events import ARRIVED, FAILED, FINISHED, METERED, RAN, STOPPED, Event, each
from wattline.core.protocols import Backend


class BackendContract:
    """Inherit and say in `make` how to get a backend with two one-GPU jobs and one GPU or more.

    The contract starts the first job on node 0, stops it, starts it again and lets both run to
    their ends, one after the other.
    """

    def make(self) -> Backend:
        """A fresh backend."""
        raise AssertionError("a contract needs make()")

    def test_jobs_arrive_start_stop_go_on_and_end(self) -> None:
        """Events tell the whole story of two jobs, and time never goes back."""
        backend = self.make()
        story = _Story(backend)
        story.until(ARRIVED, 0)
        story.do(START, 0)
        story.until(RAN, 0)
        story.do(STOP, 0)
        story.do(START, 0)
        first = story.until(FINISHED, 0)
        assert STOPPED in [event.verb for event in story.seen if event.job == 0]
        story.until(ARRIVED, 1)
        story.do(START, 1)
        second = story.until(FINISHED, 1)
        assert second.at_s >= first.at_s
        assert backend.idle()
        readings = each(backend.close())
        assert not readings or readings[-1].verb == METERED

    def test_what_it_describes_is_plain_data(self) -> None:
        """The header of a log can be written as JSON."""
        import json

        json.dumps(self.make().describe(), allow_nan=False)


class _Story:
    """Tells a backend what to do and remembers what it says."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seen: list[Event] = []
        self.now_s = -math.inf
        self.tick_s = 0.0

    def until(self, verb: int, job: int) -> Event:
        """Wait for one event."""
        for _ in range(10_000):
            for event in self.seen:
                if (event.verb, event.job) == (verb, job):
                    return event
            now_s, events = self.backend.wait(self.tick_s)
            assert now_s >= self.now_s, "time went back"
            self.now_s = now_s
            self.tick_s = now_s + 60.0
            self.seen += each(events)
            assert FAILED not in events[:, 0]
        raise AssertionError(f"event {verb} of job {job} never came; seen: {self.seen[-5:]}")

    def do(self, verb: int, job: int) -> None:
        """Act on one job, on one GPU of node 0."""
        node, gpus = (0, 1) if verb == START else (-1, 0)
        row = np.zeros((1, ACTION_COLUMNS), dtype=np.int64)
        row[0, :5] = verb, job, job, node, gpus
        self.backend.apply(row)
