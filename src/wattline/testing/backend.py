"""Contract of backends."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.actions import ACTION_CAP_W, ACTION_COLUMNS, START, STOP
from wattline.core.events import ARRIVED, EVENT_VERB, FAILED, FINISHED, METERED, RAN, STOPPED, Event, each
from wattline.core.protocols import Backend


class BackendContract:
    """Tests of a backend; a subclass defines `make`, which returns one with two one-GPU jobs and a GPU.

    The contract starts the first job on node 0, stops it, starts it again and runs both to their ends, one
    after the other.
    """

    def make(self) -> Backend:
        """Return a new backend."""
        raise AssertionError("a subclass of BackendContract must define make()")

    def test_jobs_arrive_start_stop_restart_and_finish(self) -> None:
        """Check the events of two jobs, and that time never goes back."""
        backend = self.make()
        driver = _Driver(backend)
        driver.wait_for(ARRIVED, 0)
        driver.apply(START, 0)
        driver.wait_for(RAN, 0)
        driver.apply(STOP, 0)
        driver.apply(START, 0)
        first = driver.wait_for(FINISHED, 0)
        assert STOPPED in [event.verb for event in driver.events if event.job == 0]
        driver.wait_for(ARRIVED, 1)
        driver.apply(START, 1)
        second = driver.wait_for(FINISHED, 1)
        assert second.at_s >= first.at_s
        assert backend.idle()
        readings = each(backend.close())
        assert not readings or readings[-1].verb == METERED

    def test_the_description_is_plain_data(self) -> None:
        """Check that the header of a log can be written as JSON."""
        import json

        json.dumps(self.make().describe(), allow_nan=False)


class _Driver:
    """Applies single actions to a backend and collects its events."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.events: list[Event] = []
        self.now_s = -math.inf
        self.next_s = 0.0

    def wait_for(self, verb: int, job: int) -> Event:
        """Wait for an event and return it."""
        for _ in range(10_000):
            for event in self.events:
                if (event.verb, event.job) == (verb, job):
                    return event
            now_s, events = self.backend.wait(self.next_s)
            assert now_s >= self.now_s, "time went back"
            self.now_s = now_s
            self.next_s = now_s + 60.0
            self.events += each(events)
            assert FAILED not in events[:, EVENT_VERB]
        raise AssertionError(f"event {verb} of job {job} did not occur; last events: {self.events[-5:]}")

    def apply(self, verb: int, job: int) -> None:
        """Start or stop a job on one GPU of node 0."""
        node, gpus = (0, 1) if verb == START else (-1, 0)
        row = np.zeros((1, ACTION_COLUMNS), dtype=np.int64)
        row[0, :ACTION_CAP_W] = verb, job, job, node, gpus
        self.backend.apply(row)
