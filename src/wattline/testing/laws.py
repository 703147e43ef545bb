"""What must hold of every run, whoever decided: each law reads a log and raises `AssertionError`."""

from __future__ import annotations

import math

import numpy as np

from wattline.log import Log
from wattline.messages import (
    ARRIVED,
    ENDS,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    POWER_OFF,
    POWER_ON,
    RAN,
    START,
    STOP,
    STOPPED,
    Actions,
    Event,
)
from wattline.types import Nodes


class _World:
    """Who holds what, as one walks through a log."""

    def __init__(self, nodes: Nodes) -> None:
        self.busy = np.zeros(len(nodes), dtype=np.int64)
        self.up = np.ones(len(nodes), dtype=np.bool_)
        self.off = np.zeros(len(nodes), dtype=np.bool_)
        self.booting = np.zeros(len(nodes), dtype=np.bool_)
        self.spans: dict[int, list[tuple[int, int]]] = {}
        self.groups: dict[int, list[int]] = {}

    def see(self, event: Event) -> None:
        """Something happened."""
        if event.verb in (FINISHED, FAILED, LOST):
            self._give_back(event.job)
        elif event.verb in (NODE_LOST, NODE_BACK):
            self.up[event.job] = event.verb == NODE_BACK
            self.off[event.job] = self.booting[event.job] = False

    def do(self, actions: Actions) -> None:
        """Something was done."""
        for job in actions[actions[:, 0] == STOP, 1].tolist():
            self._give_back(job)
        for node in actions[actions[:, 0] == POWER_OFF, 3].tolist():
            assert self.busy[node] == 0, f"node {node} was switched off with {self.busy[node]} GPUs held"
            self.up[node], self.off[node] = False, True
        for node in actions[actions[:, 0] == POWER_ON, 3].tolist():
            assert self.off[node], f"node {node} was switched on while it was not off"
            self.off[node], self.booting[node] = False, True
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
        world.do(now.actions)
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
    """What leases used, plus idle GPUs and nodes, off or booting too, is what the whole cluster used."""
    events = log.events
    leases_j = math.fsum(events[np.isin(events[:, 0], ENDS), 5])
    cluster_j = float(events[-1, 5])
    assert events[-1, 0] == METERED
    rest_j = _idle_j(log)
    assert math.isclose(leases_j + rest_j, cluster_j, rel_tol=1e-9, abs_tol=1e-6), (
        leases_j,
        rest_j,
        cluster_j,
    )


def _idle_j(log: Log) -> float:
    """Joules of nodes and of GPUs that nobody holds, by walking through the log."""
    nodes, world = log.nodes, _World(log.nodes)
    since_s, parts = math.nan, []

    def until(at_s: float) -> None:
        nonlocal since_s
        if since_s < at_s:
            idle_w = nodes.base_w + (nodes.gpus - world.busy) * nodes.idle_w
            states = (world.up, world.off, world.booting)
            drawn_w = np.select(states, (idle_w, nodes.off_w, nodes.boot_w), 0.0)
            parts.append(float(drawn_w.sum()) * (at_s - since_s))
            since_s = at_s

    for now in log:
        for event in now.events:
            if event.verb in (FINISHED, FAILED, LOST, NODE_LOST, NODE_BACK):
                until(event.at_s)
            elif event.verb == ARRIVED and math.isnan(since_s):
                since_s = event.at_s  # the meter starts with the first arrival
            world.see(event)
        until(now.now_s)
        world.do(now.actions)
    return math.fsum(parts)
