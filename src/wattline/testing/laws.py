"""Invariants of every run: each function checks a log and raises `AssertionError`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wattline.core.actions import (
    ACTION_CAP_W,
    ACTION_JOB,
    ACTION_NODE,
    ACTION_VERB,
    POWER_OFF,
    POWER_ON,
    START,
    STOP,
    Actions,
)
from wattline.core.events import (
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LEASE_END_EVENTS,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    PROTECTED,
    RAN,
    STOPPED,
    Event,
)
from wattline.core.nodes import Nodes
from wattline.core.quotas import WEEK_S, QuotaRule, Quotas
from wattline.core.table import Floats
from wattline.core.usage import BUCKET_S
from wattline.loop.runlog import Log


class _ClusterState:
    """Leases and node states, updated round by round from a log."""

    def __init__(self, nodes: Nodes) -> None:
        self.busy = np.zeros(len(nodes), dtype=np.int64)
        self.up = np.ones(len(nodes), dtype=np.bool_)
        self.off = np.zeros(len(nodes), dtype=np.bool_)
        self.booting = np.zeros(len(nodes), dtype=np.bool_)
        self.boot_done_s = np.zeros(len(nodes))  # earliest end of booting
        self.spans: dict[int, list[tuple[int, int]]] = {}
        self.groups: dict[int, list[int]] = {}

    def apply_event(self, event: Event) -> None:
        """Apply one event."""
        if event.verb in (FINISHED, FAILED, LOST):
            self._release(event.job)
        elif event.verb in (NODE_LOST, NODE_BACK):
            node = event.job
            back = event.verb == NODE_BACK
            assert self.up[node] != back, f"node {node} is {'back' if back else 'lost'} twice in a row"
            assert not self.off[node], f"node {node} failed or came back while it was switched off"
            early = back and self.booting[node] and event.at_s < self.boot_done_s[node] - 1e-6
            assert not early, f"node {node} was back at {event.at_s} s, before it had booted"
            self.up[node], self.booting[node] = back, False

    def apply_actions(self, actions: Actions, now_s: float, boot_s: Floats) -> None:
        """Apply the actions of one round."""
        for job in actions[actions[:, ACTION_VERB] == STOP, ACTION_JOB].tolist():
            self._release(job)
        for node in actions[actions[:, ACTION_VERB] == POWER_OFF, ACTION_NODE].tolist():
            assert self.busy[node] == 0, f"node {node} was switched off with {self.busy[node]} GPUs held"
            assert self.up[node], f"node {node} was switched off while it was down"
            self.up[node], self.off[node] = False, True
        for node in actions[actions[:, ACTION_VERB] == POWER_ON, ACTION_NODE].tolist():
            assert self.off[node], f"node {node} was switched on while it was on"
            self.off[node], self.booting[node], self.boot_done_s[node] = False, True, now_s + boot_s[node]
        starts = actions[actions[:, ACTION_VERB] == START]
        for _, job, group, node, gpus in starts[:, :ACTION_CAP_W].tolist():
            if job not in self.spans:
                self.groups.setdefault(group, []).append(job)
                self.spans[job] = []
            self.spans[job].append((node, gpus))
            assert self.up[node], f"job {job} was started on node {node}, which is down"
            if self.groups[group][0] == job:
                self.busy[node] += gpus

    def _release(self, job: int) -> None:
        group = next(leader for leader, members in self.groups.items() if job in members)
        rest = [member for member in self.groups.pop(group) if member != job]
        spans = self.spans.pop(job)
        if rest:
            self.groups[min(rest) if group == job else group] = rest
        else:
            for node, gpus in spans:
                self.busy[node] -= gpus


def check_no_oversubscription(log: Log) -> None:
    """Check that leases never exceed the GPUs of a node nor use a node that is down."""
    cluster = _ClusterState(log.nodes)
    for step in log:
        for event in step.events:
            cluster.apply_event(event)
        cluster.apply_actions(step.actions, step.now_s, log.nodes.boot_s)
        over = cluster.busy > log.nodes.gpus
        assert not over.any(), f"at {step.now_s} s node {int(np.argmax(over))} is oversubscribed"
    assert not cluster.spans, f"jobs {sorted(cluster.spans)} hold GPUs after the end"


def check_quotas(log: Log, quotas: Quotas) -> None:
    """Check that no start exceeds a quota of GPUs, and that none comes when the GPU hours are used up.

    Jobs of one owner that share GPUs hold them once.
    """
    cluster = _ClusterState(log.nodes)
    spans: dict[QuotaRule, list[tuple[float, float, float]]] = {rule: [] for rule in quotas.limits}
    last_s = 0.0

    def charge_until(at_s: float) -> None:
        nonlocal last_s
        for rule in spans:
            spans[rule].append((last_s, at_s, _count_gpus(cluster, log, rule)[1]))
        last_s = max(last_s, at_s)

    for step in log:
        before = {rule: _count_gpus(cluster, log, rule)[0] for rule in spans}
        for event in step.events:
            charge_until(event.at_s)
            cluster.apply_event(event)
        charge_until(step.now_s)
        cluster.apply_actions(step.actions, step.now_s, log.nodes.boot_s)
        for rule in spans:
            held = _count_gpus(cluster, log, rule)[0]
            if held <= before[rule]:
                continue
            over = rule.gpus is not None and held > rule.gpus
            assert not over, f"at {last_s} s {rule} holds {held} GPUs, its quota allows {rule.gpus}"
            if rule.gpu_hours_per_week is not None:
                from_s = last_s - WEEK_S + BUCKET_S  # the hour that leaves the window is counted in part
                used = sum(g * max(0.0, b - max(a, from_s)) for a, b, g in spans[rule]) / 3600.0
                assert used < rule.gpu_hours_per_week + 1e-6, f"at {last_s} s {rule} has used {used} h"


def _count_gpus(cluster: _ClusterState, log: Log, rule: QuotaRule) -> tuple[int, float]:
    """Return the GPUs that jobs of a user or team hold, those of a group once, and its part of them."""
    labels = log.jobs.team if rule.owner == "team" else log.jobs.user
    held, part = 0, 0.0
    for members in cluster.groups.values():
        own = [job for job in members if labels.word(job) == rule.name]
        if own:
            gpus = sum(gpus for _, gpus in cluster.spans[own[0]])
            held, part = held + gpus, part + gpus * len(own) / len(members)
    return held, part


def check_steps_counted_once(log: Log) -> None:
    """Check that a job does each step once, and repeats only those that a failure has lost."""
    saved = dict.fromkeys(range(len(log.jobs)), 0.0)
    runs: dict[int, tuple[float, float, float]] = {}
    ended: set[int] = set()
    for step in log:
        for event in step.events:
            job = event.job
            if event.verb not in (RAN, *LEASE_END_EVENTS):
                continue
            assert job not in ended, f"job {job} has events after its end"
            total = float(log.jobs.steps[job])
            slack = 1e-6 * max(1.0, total)
            reached = saved[job]
            if job in runs:
                steps, since_s, rate = runs[job]
                reached = max(saved[job], steps + rate * max(0.0, event.at_s - since_s))
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


def check_protection(log: Log) -> None:
    """Check that no job was stopped for others before the time until which it was protected.

    Logs of policies that hold budgets are exempt: a budget may stop a job that has not saved.
    """
    until_s: dict[int, float] = {}
    for step in log:
        for event in step.events:
            if event.verb == PROTECTED:
                until_s[event.job] = event.rate
            elif event.verb in LEASE_END_EVENTS:
                until_s.pop(event.job, None)
        for job in step.actions[step.actions[:, ACTION_VERB] == STOP, ACTION_JOB].tolist():
            end_s = until_s.pop(job, -math.inf)
            assert end_s <= step.now_s, (
                f"job {job} was stopped at {step.now_s} s, although it was protected until {end_s} s"
            )


def check_energy_totals(log: Log) -> None:
    """Check that the energies of leases, idle GPUs and nodes (up, off or booting) add up to the cluster's.

    Every reading on the way is checked too: the cluster's against the sum, a team's against its jobs.
    """
    meter = _EnergyMeter(log)
    for reading in meter.iterate_readings(log):
        team = reading.job
        drawn_j = meter.idle_j + meter.team_j.sum() if team < 0 else meter.team_j[team]
        assert math.isclose(reading.energy_j, drawn_j, rel_tol=1e-9, abs_tol=1e-6), (reading, drawn_j)
    events = log.events
    leases_j = math.fsum(events[np.isin(events[:, EVENT_VERB], LEASE_END_EVENTS), EVENT_ENERGY_J])
    last = events[-1]
    assert (last[EVENT_VERB], last[EVENT_JOB]) == (METERED, -1), (
        "a log must end with a reading of the cluster"
    )
    assert math.isclose(leases_j + meter.idle_j, last[EVENT_ENERGY_J], rel_tol=1e-9, abs_tol=1e-6), (
        leases_j,
        meter.idle_j,
        last[EVENT_ENERGY_J],
    )


class _EnergyMeter:
    """Energy drawn, integrated round by round from a log."""

    def __init__(self, log: Log) -> None:
        self.nodes, self.cluster = log.nodes, _ClusterState(log.nodes)
        self.team = log.jobs.team.codes
        self.since_s = math.nan  # nan: before the first arrival, when the meter starts
        self.idle_j = 0.0  # nodes, and GPUs without a lease
        self.team_j = np.zeros(len(log.jobs.team.names))
        self.watts: dict[int, float] = {}

    def iterate_readings(self, log: Log) -> Iterator[Event]:
        """Yield the readings of *log*, each after the energy up to its time is integrated."""
        for step in log:
            for event in step.events:
                if event.verb == RAN:  # the new draw holds since the event before
                    self.watts[event.job] = event.energy_j
                    continue
                self._integrate(event.at_s)
                if event.verb == METERED:
                    yield event
                self.cluster.apply_event(event)
                self._drop_ended()
            self._integrate(step.now_s)
            self.cluster.apply_actions(step.actions, step.now_s, self.nodes.boot_s)
            self._drop_ended()

    def _integrate(self, at_s: float) -> None:
        if math.isnan(self.since_s):
            self.since_s = at_s
        nodes, cluster, seconds = self.nodes, self.cluster, at_s - self.since_s
        if seconds > 0:
            idle_w = nodes.base_w + (nodes.gpus - cluster.busy) * nodes.idle_w
            states = (cluster.up, cluster.off, cluster.booting)
            self.idle_j += float(np.select(states, (idle_w, nodes.off_w, nodes.boot_w), 0.0).sum()) * seconds
            for job, watts in self.watts.items():
                self.team_j[self.team[job]] += watts * seconds
            self.since_s = at_s

    def _drop_ended(self) -> None:
        self.watts = {job: watts for job, watts in self.watts.items() if job in self.cluster.spans}
