"""Metrics of the service in the data model of Prometheus, computed when they are scraped.

Names and units follow Prometheus' conventions. Series with a job id are few: running jobs and those that
ended in the last hour, at most `MOST_JOBS`. A value that is unknown has no sample; it is never 0.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

import wattline
from wattline.core.reasons import REASONS, Reason
from wattline.energy.budgets import parse_budget
from wattline.service.budget_usage import read_budget_usage
from wattline.service.controller import Controller
from wattline.service.metrics.counters import WAIT_BOUNDS_S, EventCounters
from wattline.service.metrics.labels import clean_label, merge_teams
from wattline.service.states import FINAL_STATES, STATES
from wattline.service.view import ControllerView

MOST_JOBS = 1000
"""Jobs with series of their own."""
_MOST_DEADLINES = 200
_ENDED_S = 3600.0  # time after its end in which a job still has a series
_FRESH_S = 60.0  # age up to which a power sample is the present power
_WAITING = ("held", "withheld", "not_yet_scheduled")  # besides the reasons of the policy


class ServiceCollector:
    """Collector of one service; the registry of `prometheus_client` calls `collect`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._counters = EventCounters(controller)
        self._backend = str(controller.backend.describe()["backend"])
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names are not registered ahead, so that registering does not read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, one scrape at a time."""
        with self._lock:
            view = self._controller.view()
            yield from self._collect_state(view)
            yield from self._collect_queue(view)
            yield from self._collect_energy()
            yield from self._collect_power()
            yield from self._collect_budgets(view)

    def _collect_state(self, view: ControllerView) -> Iterator[Metric]:
        yield InfoMetricFamily("wattline_build", "Version.", value={"version": wattline.__version__})
        ready = GaugeMetricFamily("wattline_ready", "1: the scheduler decides and can write its state.")
        ready.add_metric([], 0.0 if self._controller.problem else 1.0)
        yield ready
        if self._controller.notifier is not None:
            text = "Messages of webhooks that are not delivered."
            pending = GaugeMetricFamily("wattline_webhook_pending_messages", text)
            pending.add_metric([], self._controller.notifier.outbox.count())
            yield pending
        decision = GaugeMetricFamily("wattline_decision_seconds", "Duration of the last decision.")
        decision.add_metric([], view.decision_s)
        yield decision
        gpus = GaugeMetricFamily("wattline_gpus", "GPUs of the cluster by kind.", labels=["kind"])
        counts: Counter[str] = Counter()
        for node in range(len(view.nodes)):
            counts[view.nodes.kind.word(node)] += int(view.nodes.gpus[node])
        for kind, count in counts.items():
            gpus.add_metric([clean_label(kind)], count)
        yield gpus
        if view.step is not None:
            free = GaugeMetricFamily("wattline_gpus_free", "GPUs without a job.")
            free.add_metric([], int(view.step.state.free_gpus.sum()))
            yield free
        jobs = GaugeMetricFamily("wattline_jobs", "Jobs that are stored, by state.", labels=["state"])
        by_state = self._controller.store.count_by_state()
        for state in STATES:
            jobs.add_metric([state], by_state.get(state, 0))
        yield jobs

    def _collect_queue(self, view: ControllerView) -> Iterator[Metric]:
        held, withheld, pending = self._controller.store.read_rows(
            "SELECT coalesce(sum(held), 0), coalesce(sum(withheld AND NOT held), 0), count(*)"
            " FROM job WHERE state = 'PENDING'"
        )[0]
        counts = dict.fromkeys(
            (*(_name_reason(one) for one in REASONS if one is not Reason.NONE), *_WAITING), 0
        )
        counts |= {"held": held, "withheld": withheld}
        if view.step is not None:
            waiting = ~view.step.state.queue.running
            codes = np.bincount(view.step.placement.reason[waiting].astype(np.int64), minlength=len(REASONS))
            for reason, count in zip(REASONS, codes.tolist(), strict=True):
                if reason is not Reason.NONE:
                    counts[_name_reason(reason)] += count
        counts["not_yet_scheduled"] = max(pending - sum(counts.values()), 0)
        queue = GaugeMetricFamily(
            "wattline_queue_pending_jobs", "Jobs that wait, by reason.", labels=["reason"]
        )
        for name, count in counts.items():
            queue.add_metric([name], count)
        yield queue
        yield from self._collect_deadlines(view)

    def _collect_deadlines(self, view: ControllerView) -> Iterator[Metric]:
        slack = GaugeMetricFamily(
            "wattline_job_deadline_slack_seconds",
            "Time to the deadline minus the assumed remaining run time, of the live jobs with the least.",
            labels=["job", "team"],
        )
        if view.step is not None:
            state = view.step.state
            rows = state.queue.job
            remaining_s = state.steps_left * state.jobs.step_s[rows]
            slack_s = state.jobs.deadline_s[rows] - view.clock() - remaining_s
            due = np.flatnonzero(np.isfinite(slack_s))
            for position in due[np.argsort(slack_s[due], kind="stable")][:_MOST_DEADLINES].tolist():
                job = int(rows[position])
                labels = [clean_label(str(state.jobs.id[job])), clean_label(state.jobs.team.word(job))]
                slack.add_metric(labels, float(slack_s[position]))
        yield slack

    def _collect_energy(self) -> Iterator[Metric]:
        controller, store = self._controller, self._controller.store
        now_s = controller.clock()
        self._counters.update(self._read_running)
        rows = store.read_rows(
            "SELECT id, team, energy_j, energy_method, state FROM job WHERE starts > 0"
            " AND (end_s IS NULL OR end_s > ?) ORDER BY number DESC LIMIT ?",
            (now_s - _ENDED_S, MOST_JOBS + 1),
        )
        energy = CounterMetricFamily(
            "wattline_job_energy_joules",
            "Joules of a job's GPUs, of running jobs and of those that ended in the last hour.",
            labels=["job", "team", "backend"],
        )
        for job, team, energy_j, method, _ in rows[:MOST_JOBS]:
            live = controller.live_status(job)
            joules = live.get("energy_j", energy_j) if live else energy_j
            if joules is not None and (live.get("energy_method") or method) not in ("", "unmetered"):
                energy.add_metric([job, clean_label(team), self._backend], joules)
        yield energy
        cut = GaugeMetricFamily("wattline_job_series_limited", "1: not every job has a series of its own.")
        cut.add_metric([], float(len(rows) > MOST_JOBS))
        yield cut
        teams = CounterMetricFamily(
            "wattline_team_energy_joules",
            "Joules of GPUs by team since the service started.",
            labels=["team"],
        )
        for team, joules in merge_teams(self._counters.team_j).items():
            teams.add_metric([team], joules)
        yield teams
        ended = CounterMetricFamily(
            "wattline_jobs_ended", "Jobs that ended since the service started, by state.", labels=["state"]
        )
        for state in FINAL_STATES:
            ended.add_metric([state], self._counters.ended[state])
        yield ended
        yield self._build_wait_histogram()

    def _read_running(self) -> Iterator[tuple[str, str, float]]:
        rows = self._controller.store.read_rows("SELECT id, team FROM job WHERE state = 'RUNNING'")
        for job, team in rows:
            live = self._controller.live_status(job)
            if live.get("energy_j") is not None and live.get("energy_method") != "unmetered":
                yield job, team, float(live["energy_j"])

    def _build_wait_histogram(self) -> HistogramMetricFamily:
        buckets, total = [], 0
        bounds = (*(f"{bound:g}" for bound in WAIT_BOUNDS_S), "+Inf")
        for bound, count in zip(bounds, self._counters.wait_buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        text = "Time from the submission to the first start, of jobs that started since the service did."
        return HistogramMetricFamily(
            "wattline_job_wait_seconds", text, buckets=buckets, sum_value=self._counters.wait_sum_s
        )

    def _collect_power(self) -> Iterator[Metric]:
        since_s = self._controller.clock() - _FRESH_S
        rows = self._controller.store.read_rows(
            "SELECT node, gpu, power_w, cap_w FROM power_sample"
            " WHERE at_s = (SELECT max(at_s) FROM power_sample) AND at_s >= ? ORDER BY node, gpu",
            (since_s,),
        )
        labels = ["node", "gpu"]
        power = GaugeMetricFamily("wattline_gpu_power_watts", "Mean power of a GPU over 10 s.", labels=labels)
        limit = GaugeMetricFamily("wattline_gpu_power_limit_watts", "Power cap of a GPU.", labels=labels)
        for node, gpu, power_w, cap_w in rows:
            for family, value in ((power, power_w), (limit, cap_w)):
                if value is not None:
                    family.add_metric([clean_label(node), str(gpu)], value)
        yield power
        yield limit
        total = GaugeMetricFamily(
            "wattline_cluster_power_watts", "Power of all GPUs; the host is not metered."
        )
        if rows and all(power_w is not None for _, _, power_w, _ in rows):
            total.add_metric([], sum(power_w for _, _, power_w, _ in rows))
        yield total

    def _collect_budgets(self, view: ControllerView) -> Iterator[Metric]:
        cluster = GaugeMetricFamily("wattline_cluster_power_budget_watts", "Power budget of the cluster.")
        teams = GaugeMetricFamily(
            "wattline_team_power_budget_watts", "Power budget of a team.", labels=["team"]
        )
        ratios = GaugeMetricFamily(
            "wattline_budget_used_ratio",
            "Used share of the budget that is used most, of a team; an empty team is the cluster.",
            labels=["team"],
        )
        limits: dict[str, float] = {}
        used: dict[str, float] = {}
        for usage in read_budget_usage(self._controller.store, view):
            team = clean_label(usage.team)
            if parse_budget(usage.budget).is_power:
                limits[team] = min(usage.limit, limits.get(team, usage.limit))
            if usage.ratio is not None:
                used[team] = max(usage.ratio, used.get(team, 0.0))
        for team, watts in limits.items():
            if team:
                teams.add_metric([team], watts)
            else:
                cluster.add_metric([], watts)
        for team, ratio in used.items():
            ratios.add_metric([team], ratio)
        yield cluster
        yield teams
        yield ratios


def _name_reason(reason: Reason) -> str:
    """Return the label of a reason; `held` is for jobs that users or operators hold."""
    return "held_by_policy" if reason is Reason.HELD else reason.name.lower()
