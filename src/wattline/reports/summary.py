"""Metrics of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wattline.core.actions import (
    ACTION_GROUP,
    ACTION_JOB,
    ACTION_VERB,
    ACTION_WORDS,
    POWER_ON,
    RETUNE,
    START,
    STOP,
)
from wattline.core.events import EVENT_VERB, LOST
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.models.array_speed import has_fusion_key
from wattline.models.durations.errors import measure_errors
from wattline.reports.bill import compute_bill
from wattline.reports.data.energy import break_down_energy
from wattline.reports.data.job_outcomes import JobOutcomes, collect_job_outcomes
from wattline.reports.data.lease_intervals import LeaseIntervals, collect_lease_intervals
from wattline.reports.data.node_states import NodeStateChanges, collect_state_changes
from wattline.reports.data.prices import collect_prices, describe_bottlenecks, find_bottlenecks
from wattline.reports.data.timeline import Timeline, build_timeline, compute_fragmentation


@dataclass(frozen=True)
class Report:
    """Metrics of one run; nan where there is nothing to measure (null in JSON).

    JCT, waiting time and fairness are of finished jobs. Waiting time is all the time between submission
    and end without GPUs. Finish-time fairness is JCT over the requested run time. *gpu_utilisation* counts
    all GPUs, including those of nodes that are off or down, so that switching nodes off does not raise it;
    *fragmentation* counts only GPUs of nodes that are up.
    """

    policy: str
    place: str
    seed: int
    trace: str
    cluster: str
    backend: str
    nodes: int
    gpus: int

    jobs: int  # arrived
    finished: int
    failed: int
    unfinished: int  # neither finished nor failed when the log ends
    never_started: int  # unfinished jobs that never held GPUs

    jct_mean_s: float
    jct_p50_s: float
    jct_p90_s: float
    jct_p99_s: float
    jct_max_s: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    start_delay_mean_s: float  # submission to first start, of all started jobs

    makespan_s: float  # first submission to last end
    offered_load: float  # requested GPU time over the GPU time of the cluster while jobs arrive
    gpu_utilisation: float  # leased GPU time over the GPU time of the cluster in the makespan
    gpu_hours: float  # leased
    fragmentation: float  # mean share of free GPUs on partly used nodes, while GPUs are free and jobs wait

    preemptions: int  # stop actions
    restarts: int
    losses: int  # leases that ended without a stop action; the job was requeued
    retunes: int  # changes of the power cap or host share of a running job
    boots: int  # nodes switched on
    fused_jobs: int  # jobs trained in an array with others, at least for a while
    array_width_mean: float  # members of an array at its start

    energy_j: float
    energy_kwh: float
    energy_lease_j: float
    energy_idle_gpu_j: float
    energy_base_j: float
    energy_boot_j: float
    energy_off_j: float
    energy_method: str

    deadline_jobs: int
    deadline_misses: int  # late, failed, or past their deadline when the log ends
    tardiness_mean_s: float  # of jobs with a deadline; unfinished ones count until the log ends
    tardiness_total_s: float

    cost: float  # of energy and tardiness; nan = no price given
    energy_cost: float
    tardiness_cost: float
    price: str

    gap_mean: float  # optimality gap of decisions, of policies that compute one
    gap_max: float
    gap_unknown: int  # decisions with an unknown gap

    ftf_mean: float
    ftf_p99: float
    ftf_max: float

    team: str = ""  # the only team of the trace that was simulated; "" = all
    assumptions: tuple[Mapping[str, Any], ...] = ()  # name, value, says, effect; see `reports.assumptions`
    estimate_error: str = ""  # of durations, where the policy had estimates; "" = it knew them
    bound_jct_mean_s: float = math.nan  # no policy has a lower mean JCT on this trace; nan = no bound
    gap_to_bound: float = math.nan  # mean JCT over the bound, minus 1; nan where jobs did not finish
    bound_energy_j: float = math.nan  # no policy uses less energy
    bound_none: str = ""  # why there is no bound
    bottlenecks: tuple[Mapping[str, Any], ...] = ()  # resource, begin_s, end_s; of policies that log prices
    bottleneck_text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; numbers that are not finite are None."""
        return {field.name: finite_or_none(getattr(self, field.name)) for field in fields(self)}

    def __str__(self) -> str:
        from wattline.reports.text import format_report  # imports this module

        return format_report(self)


@dataclass(frozen=True, eq=False)
class RunTables:
    """A run log as tables, the source of reports and plots."""

    lease_intervals: LeaseIntervals
    outcomes: JobOutcomes
    node_changes: NodeStateChanges
    timeline: Timeline
    end_s: float  # of the log


def report(log: Log) -> Report:
    """Return the metrics of the run that wrote *log*."""
    return compute_report(log, build_run_tables(log))


def build_run_tables(log: Log) -> RunTables:
    """Return the tables of *log*."""
    intervals = collect_lease_intervals(log)
    outcomes, node_changes = collect_job_outcomes(log, intervals), collect_state_changes(log)
    timeline = build_timeline(log, intervals, outcomes, node_changes)
    return RunTables(intervals, outcomes, node_changes, timeline, log.end_s)


def compute_report(log: Log, tables: RunTables) -> Report:
    """Return the metrics of *log* from its *tables*."""
    return Report(
        **_describe_run(log),
        **_count_jobs(log, tables.outcomes),
        **_measure_arrays(log),
        **_measure_times(tables.outcomes),
        **_measure_cluster(log, tables),
        **_measure_energy(log, tables),
        **_measure_deadlines(tables),
        **_measure_gaps(log),
        **_measure_bound(log, tables.outcomes),
        **_name_bottlenecks(log),
    )


def finite_or_none(value: Any) -> Any:
    """Return *value*, or None for nan and infinity, which JSON has not."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe_run(log: Log) -> dict[str, Any]:
    header = log.header
    trace = header.get("trace") or {}
    name = trace.get("name", "") if isinstance(trace, Mapping) else trace
    return {
        "policy": str(header.get("policy", "")),
        "place": str(header.get("place", "")),
        "seed": int(header.get("seed", 0)),
        "trace": str(name),
        "cluster": format_cluster(log.nodes),
        "backend": str(header.get("backend", "")),
        "nodes": len(log.nodes),
        "gpus": int(log.nodes.gpus.sum()),
        "team": str((trace.get("team") if isinstance(trace, Mapping) else "") or ""),
        "assumptions": tuple(header.get("assumptions") or ()),
        "estimate_error": _describe_estimates(log),
    }


def _describe_estimates(log: Log) -> str:
    durations = log.header.get("durations")
    if durations is None:
        return ""
    estimate_s = np.array(durations["estimate_s"][: len(log.jobs)], dtype=np.float64)  # None becomes nan
    return f"{durations['name']}, {measure_errors(estimate_s, log.jobs.duration_s[: len(estimate_s)])}"


def format_cluster(nodes: Nodes) -> str:
    """Return *nodes* in the syntax of the command line: `16xv100:8+4xa100:4`."""
    parts = np.column_stack((nodes.kind.codes, nodes.gpus))
    distinct, first, count = np.unique(parts, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return "+".join(f"{count[i]}x{nodes.kind.names[distinct[i, 0]]}:{distinct[i, 1]}" for i in order)


def _count_jobs(log: Log, outcomes: JobOutcomes) -> dict[str, Any]:
    ended = outcomes.finished | outcomes.failed
    actions = np.bincount(log.actions[:, ACTION_VERB], minlength=len(ACTION_WORDS))
    return {
        "jobs": len(outcomes),
        "finished": int(outcomes.finished.sum()),
        "failed": int(outcomes.failed.sum()),
        "unfinished": int((~ended).sum()),
        "never_started": int((~ended & (outcomes.start_count == 0)).sum()),
        "preemptions": int(actions[STOP]),
        "restarts": int(np.maximum(outcomes.start_count - 1, 0).sum()),
        "losses": int((log.events[:, EVENT_VERB] == LOST).sum()),
        "retunes": int(actions[RETUNE]),
        "boots": int(actions[POWER_ON]),
    }


def _measure_arrays(log: Log) -> dict[str, Any]:
    starts = log.actions[:, ACTION_VERB] == START
    round_ = log.action_round[starts]
    job, group = log.actions[starts, ACTION_JOB], log.actions[starts, ACTION_GROUP]
    key = log.jobs.fuse.codes
    joins = np.flatnonzero((job != group) & (key[job] == key[group]) & has_fusion_key(log.jobs)[job])
    joined = np.unique(
        np.stack((round_[joins], group[joins], job[joins])), axis=1
    )  # a job has one start row per node
    _, members = np.unique(joined[:2], axis=1, return_counts=True)
    return {
        "fused_jobs": len(np.unique(joined[1:])),
        "array_width_mean": _mean(members + np.float64(1.0)),
    }


def _measure_times(outcomes: JobOutcomes) -> dict[str, Any]:
    finished = outcomes.take(outcomes.finished)
    has_duration = finished.duration_s > 0
    fairness = finished.jct_s[has_duration] / finished.duration_s[has_duration]
    # A job that never waits has a JCT equal to its service time, up to rounding.
    wait_s = np.maximum(0.0, finished.jct_s - finished.service_s)
    start_delay_s = (outcomes.first_start_s - outcomes.submit_s)[outcomes.start_count > 0]
    return {
        **_mean_and_percentiles("jct", "_s", finished.jct_s, p50=50, p90=90, p99=99, max=100),
        **_mean_and_percentiles("wait", "_s", wait_s, p50=50, p90=90, p99=99),
        "start_delay_mean_s": _mean(start_delay_s),
        **_mean_and_percentiles("ftf", "", fairness, p99=99, max=100),
    }


def _mean_and_percentiles(name: str, unit: str, values: Floats, **percent: float) -> dict[str, Any]:
    """Return mean and percentiles of *values* under their field names in `Report`."""
    wanted = list(percent.values())
    percentiles = np.percentile(values, wanted).tolist() if len(values) else [math.nan] * len(wanted)
    return {f"{name}_mean{unit}": _mean(values)} | {
        f"{name}_{key}{unit}": value for key, value in zip(percent, percentiles, strict=True)
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _measure_cluster(log: Log, tables: RunTables) -> dict[str, Any]:
    outcomes, intervals = tables.outcomes, tables.lease_intervals
    gpus = int(log.nodes.gpus.sum())
    gpu_s = float((intervals.gpus * (intervals.end_s - intervals.start_s))[intervals.is_leader].sum())
    first_s = float(outcomes.submit_s.min(initial=math.inf))
    end_s = float(np.nanmax(np.concatenate((outcomes.end_s, intervals.end_s, [first_s]))))
    makespan_s = end_s - first_s if len(outcomes) else 0.0
    arrivals_s = float(np.ptp(outcomes.submit_s)) if len(outcomes) else 0.0
    requested_gpu_s = float(outcomes.gpus @ outcomes.duration_s)
    return {
        "makespan_s": makespan_s,
        "offered_load": requested_gpu_s / (gpus * arrivals_s) if arrivals_s > 0 else math.nan,
        "gpu_utilisation": gpu_s / (gpus * makespan_s) if makespan_s > 0 else 0.0,
        "gpu_hours": gpu_s / 3600,
        "fragmentation": compute_fragmentation(tables.timeline),
    }


def _measure_energy(log: Log, tables: RunTables) -> dict[str, Any]:
    used = break_down_energy(log, tables.lease_intervals, tables.node_changes)
    bill = compute_bill(log, tables.outcomes, tables.timeline, used.total_j)
    return {
        "cost": bill.total,
        "energy_cost": bill.energy,
        "tardiness_cost": bill.tardiness,
        "price": bill.price,
        "energy_j": used.total_j,
        "energy_kwh": used.total_j / 3.6e6,
        "energy_lease_j": used.lease_j,
        "energy_idle_gpu_j": used.idle_gpu_j,
        "energy_base_j": used.base_j,
        "energy_boot_j": used.boot_j,
        "energy_off_j": used.off_j,
        "energy_method": used.method,
    }


def _measure_deadlines(tables: RunTables) -> dict[str, Any]:
    due = tables.outcomes.take(np.isfinite(tables.outcomes.deadline_s))
    end_s = np.where(np.isnan(due.end_s), tables.end_s, due.end_s)
    late_s = np.maximum(0.0, end_s - due.deadline_s)
    return {
        "deadline_jobs": len(due),
        "deadline_misses": int((due.failed | (late_s > 0)).sum()),
        "tardiness_mean_s": _mean(late_s),
        "tardiness_total_s": float(late_s.sum()),
    }


def _measure_gaps(log: Log) -> dict[str, Any]:
    known = log.gap[np.isfinite(log.gap)]
    return {
        "gap_mean": _mean(known),
        "gap_max": float(known.max()) if len(known) else math.nan,
        "gap_unknown": int(np.isinf(log.gap).sum()),
    }


def _measure_bound(log: Log, outcomes: JobOutcomes) -> dict[str, Any]:
    """Return the bounds that the log's header has; they hold for runs in which all jobs finish."""
    bound = log.header.get("bound") or {}
    jct_mean_s, energy_j = (
        math.nan if bound.get(name) is None else float(bound[name]) for name in ("jct_mean_s", "energy_j")
    )
    comparable = len(outcomes) == len(log.jobs) and bool(outcomes.finished.all()) and jct_mean_s > 0
    return {
        "bound_jct_mean_s": jct_mean_s,
        "gap_to_bound": _mean(outcomes.jct_s) / jct_mean_s - 1.0 if comparable else math.nan,
        "bound_energy_j": energy_j,
        "bound_none": str(bound.get("none", "")),
    }


def _name_bottlenecks(log: Log) -> dict[str, Any]:
    """Return the resources with the highest logged price, from the first submission to the end."""
    since_s = float(log.jobs.submit_s.min()) if len(log.jobs) else 0.0
    found = find_bottlenecks(collect_prices(log), log.end_s - since_s)
    return {
        "bottlenecks": tuple(bottleneck._asdict() for bottleneck in found),
        "bottleneck_text": describe_bottlenecks(found),
    }
