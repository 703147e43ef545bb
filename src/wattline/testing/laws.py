"""What must hold of every run, whoever decided: each law reads a log and raises `AssertionError`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wattline.core.actions import POWER_OFF, POWER_ON, START, STOP, Actions
from wattline.core.events import (
    ARRIVED,
    ENDS,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    STOPPED,
    Event,
)
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.loop.runlog import Log


class _World:
    """Who holds what, as one walks through a log."""

    def __init__(self, nodes: Nodes) -> None:
        self.busy = np.zeros(len(nodes), dtype=np.int64)
        self.up = np.ones(len(nodes), dtype=np.bool_)
        self.off = np.zeros(len(nodes), dtype=np.bool_)
        self.booting = np.zeros(len(nodes), dtype=np.bool_)
        self.boots_s = np.zeros(len(nodes))  # when each has booted at the earliest
        self.spans: dict[int, list[tuple[int, int]]] = {}
        self.groups: dict[int, list[int]] = {}

    def see(self, event: Event) -> None:
        """Something happened."""
        if event.verb in (FINISHED, FAILED, LOST):
            self._give_back(event.job)
        elif event.verb in (NODE_LOST, NODE_BACK):
            node = event.job
            back = event.verb == NODE_BACK
            assert self.up[node] != back, f"node {node} is {'back' if back else 'lost'}, and was already"
            assert not self.off[node], f"node {node} turned while it was off"
            early = back and self.booting[node] and event.at_s < self.boots_s[node] - 1e-6
            assert not early, f"node {node} was back at {event.at_s} s, before it had booted"
            self.up[node], self.booting[node] = back, False

    def do(self, actions: Actions, now_s: float, boot_s: Floats) -> None:
        """Something was done."""
        for job in actions[actions[:, 0] == STOP, 1].tolist():
            self._give_back(job)
        for node in actions[actions[:, 0] == POWER_OFF, 3].tolist():
            assert self.busy[node] == 0, f"node {node} was switched off with {self.busy[node]} GPUs held"
            assert self.up[node], f"node {node} was switched off while it was not up"
            self.up[node], self.off[node] = False, True
        for node in actions[actions[:, 0] == POWER_ON, 3].tolist():
            assert self.off[node], f"node {node} was switched on while it was not off"
            self.off[node], self.booting[node], self.boots_s[node] = False, True, now_s + boot_s[node]
        starts = actions[actions[:, 0] == START]
        for _, job, group, node, gpus in starts[:, :5].tolist():
            if job not in self.spans:
                self.groups.setdefault(group, []).append(job)
                self.spans[job] = []
            self.spans[job].append((node, gpus))
            assert self.up[node], f"job {job} was started on node {node}, which is down"
            if self.groups[group][0] == job:
                self.busy[node] += gpus

    def _give_back(self, job: int) -> None:
        group = next(leader for leader, members in self.groups.items() if job in members)
        rest = [member for member in self.groups.pop(group) if member != job]
        spans = self.spans.pop(job)
        if rest:
            self.groups[min(rest) if group == job else group] = rest
        else:
            for node, gpus in spans:
                self.busy[node] -= gpus


def no_node_is_oversubscribed(log: Log) -> None:
    """At no time do leases on a node add up to more GPUs than it has, nor use a node that is down."""
    world = _World(log.nodes)
    for now in log:
        for event in now.events:
            world.see(event)
        world.do(now.actions, now.now_s, log.nodes.boot_s)
        over = world.busy > log.nodes.gpus
        assert not over.any(), f"at {now.now_s} s node {int(np.argmax(over))} is oversubscribed"
    assert not world.spans, f"jobs {sorted(world.spans)} hold GPUs after the end"


def every_step_is_counted_once(log: Log) -> None:
    """A job does each of its steps once, and again only those that a failure took from it."""
    saved = dict.fromkeys(range(len(log.jobs)), 0.0)
    runs: dict[int, tuple[float, float, float]] = {}
    ended: set[int] = set()
    for now in log:
        for event in now.events:
            job = event.job
            if event.verb == ARRIVED or event.verb in (NODE_LOST, NODE_BACK, METERED):
                continue
            assert job not in ended, f"job {job} goes on after its end"
            total = float(log.jobs.steps[job])
            slack = 1e-6 * max(1.0, total)
            reached = saved[job]
            if job in runs:
                steps, mark_s, rate = runs[job]
                reached = max(saved[job], steps + rate * max(0.0, event.at_s - mark_s))
            if event.verb in (STOPPED, LOST, FAILED):
                assert saved[job] - slack <= event.steps <= reached + slack, (
                    f"job {job} stopped at {event.steps}"
                )
                saved[job] = event.steps
            elif event.verb == FINISHED:
                assert event.steps == total, f"job {job} finished after {event.steps} of {total} steps"
                assert reached >= total - slack, f"job {job} finished at {reached} of {total} steps"
            if event.verb in (FINISHED, FAILED):
                ended.add(job)
            runs.pop(job, None)
            if event.verb == RAN:
                runs[job] = (event.steps, event.at_s, event.rate)


def energies_add_up(log: Log) -> None:
    """What leases used, plus idle GPUs and nodes, off or booting too, is what the whole cluster used.

    So is every reading on the way: of the cluster all that was drawn by then, of a team what its jobs drew.
    """
    read = _Meters(log)
    for reading in read.along(log):
        team = reading.job
        drawn_j = read.rest_j + read.team_j.sum() if team < 0 else read.team_j[team]
        assert math.isclose(reading.energy_j, drawn_j, rel_tol=1e-9, abs_tol=1e-6), (reading, drawn_j)
    events = log.events
    leases_j = math.fsum(events[np.isin(events[:, 0], ENDS), 5])
    last = events[-1]
    assert (last[0], last[1]) == (METERED, -1), "a log ends with what the cluster used"
    assert math.isclose(leases_j + read.rest_j, last[5], rel_tol=1e-9, abs_tol=1e-6), (
        leases_j,
        read.rest_j,
        last[5],
    )


class _Meters:
    """What was drawn, as one walks through a log."""

    def __init__(self, log: Log) -> None:
        self.nodes, self.world = log.nodes, _World(log.nodes)
        self.team = log.jobs.team.codes
        self.since_s = math.nan  # the meter starts with the first arrival
        self.rest_j = 0.0  # nodes, and GPUs that nobody holds
        self.team_j = np.zeros(len(log.jobs.team.names))
        self.watts: dict[int, float] = {}

    def along(self, log: Log) -> Iterator[Event]:
        """The readings of *log*, each at its moment."""
        for now in log:
            for event in now.events:
                if event.verb == RAN:  # what draws otherwise does so since what happened last
                    self.watts[event.job] = event.energy_j
                    continue
                self._until(event.at_s)
                if event.verb == METERED:
                    yield event
                self.world.see(event)
                self._forget()
            self._until(now.now_s)
            self.world.do(now.actions, now.now_s, self.nodes.boot_s)
            self._forget()

    def _until(self, at_s: float) -> None:
        if math.isnan(self.since_s):
            self.since_s = at_s
        nodes, world, seconds = self.nodes, self.world, at_s - self.since_s
        if seconds > 0:
            idle_w = nodes.base_w + (nodes.gpus - world.busy) * nodes.idle_w
            states = (world.up, world.off, world.booting)
            self.rest_j += float(np.select(states, (idle_w, nodes.off_w, nodes.boot_w), 0.0).sum()) * seconds
            for job, watts in self.watts.items():
                self.team_j[self.team[job]] += watts * seconds
            self.since_s = at_s

    def _forget(self) -> None:
        self.watts = {job: watts for job, watts in self.watts.items() if job in self.world.spans}
