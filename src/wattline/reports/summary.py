"""How did the run go: one number for each thing that people ask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wattline.core.actions import ACTION_WORDS, POWER_ON, RETUNE, START, STOP
from wattline.core.events import LOST
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.models.array_speed import keyed
from wattline.reports.bill import money
from wattline.reports.data.energy import energy
from wattline.reports.data.job_outcomes import Fates, fates
from wattline.reports.data.lease_intervals import Spans, spans
from wattline.reports.data.node_states import Turns, turns
from wattline.reports.data.timeline import Timeline, fragmentation, timeline


@dataclass(frozen=True)
class Report:
    """The figures of one run; nan where there is nothing to measure (null in JSON).

    JCT, waiting and fairness are of the jobs that finished. Waiting is all the time between
    submission and end without GPUs. Finish-time fairness is JCT over the run time as asked.
    *gpu_utilisation* is of all GPUs, also of nodes that are off or down, so that switching nodes off
    does not make a run look busier; *fragmentation* is of GPUs that somebody could be given.
    """

    policy: str
    place: str
    seed: int
    trace: str
    cluster: str
    backend: str
    nodes: int
    gpus: int

    jobs: int  # that arrived
    finished: int
    failed: int
    unfinished: int  # neither finished nor failed when the log ends
    never_started: int  # of those, how many never held GPUs

    jct_mean_s: float
    jct_p50_s: float
    jct_p90_s: float
    jct_p99_s: float
    jct_max_s: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    start_delay_mean_s: float  # submission to first start, of all who started

    makespan_s: float  # first submission to last end
    offered_load: float  # GPU time asked for, of what the cluster has while jobs come in
    gpu_utilisation: float  # GPU time held, of what the cluster has in the makespan
    gpu_hours: float  # held
    fragmentation: float  # mean share of free GPUs on nodes used in part, while some are free and jobs wait

    preemptions: int  # stops that were asked for
    restarts: int
    losses: int  # leases that ended unasked, and the job came back
    retunes: int  # caps that were changed while a job ran
    boots: int  # how often a node was switched on
    fused_jobs: int  # that were, at least for a while, trained as one array with others
    array_width_mean: float  # members of an array when it starts

    energy_j: float
    energy_kwh: float
    energy_lease_j: float
    energy_idle_gpu_j: float
    energy_base_j: float
    energy_boot_j: float
    energy_off_j: float
    energy_method: str

    deadline_jobs: int
    deadline_misses: int  # late, failed, or over their deadline when the log ends
    tardiness_mean_s: float  # over all jobs with a deadline; counts until the log's end for who is not over
    tardiness_total_s: float

    cost: float  # money for energy and for being late; nan: no price was given
    energy_cost: float
    tardiness_cost: float
    price: str

    gap_mean: float  # how far from the best decisions may be, where the policy looks for the best
    gap_max: float
    gap_unknown: int  # decisions of which nobody knows

    ftf_mean: float
    ftf_p99: float
    ftf_max: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON: finite numbers, words, or None."""
        return {field.name: finite(getattr(self, field.name)) for field in fields(self)}

    def __str__(self) -> str:
        from wattline.reports.text import block  # it needs this class

        return block(self)


@dataclass(frozen=True, eq=False)
class Course:
    """A log as tables: what reports and plots are made of."""

    spans: Spans
    fates: Fates
    turns: Turns
    timeline: Timeline
    last_s: float


def report(log: Log) -> Report:
    """The figures of the run that wrote *log*."""
    return measure(log, course(log))


def course(log: Log) -> Course:
    """The tables of *log*."""
    held = spans(log)
    jobs, turned = fates(log, held), turns(log)
    return Course(held, jobs, turned, timeline(log, held, jobs, turned), log.end_s)


def measure(log: Log, went: Course) -> Report:
    """The figures of *log*, whose tables are *went*."""
    return Report(
        **_who(log),
        **_counts(log, went.fates),
        **_arrays(log),
        **_times(went.fates),
        **_cluster(log, went),
        **_energy(log, went),
        **_deadlines(went),
        **_gaps(log),
    )


def finite(value: Any) -> Any:
    """*value*, or None where it is a number that JSON does not know."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _who(log: Log) -> dict[str, Any]:
    header = log.header
    trace = header.get("trace") or {}
    name = trace.get("name", "") if isinstance(trace, Mapping) else trace
    return {
        "policy": str(header.get("policy", "")),
        "place": str(header.get("place", "")),
        "seed": int(header.get("seed", 0)),
        "trace": str(name),
        "cluster": cluster_text(log.nodes),
        "backend": str(header.get("backend", "")),
        "nodes": len(log.nodes),
        "gpus": int(log.nodes.gpus.sum()),
    }


def cluster_text(nodes: Nodes) -> str:
    """A cluster as it is written on the command line: `16xv100:8+4xa100:4`."""
    parts = np.column_stack((nodes.kind.codes, nodes.gpus))
    distinct, first, count = np.unique(parts, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return "+".join(f"{count[i]}x{nodes.kind.names[distinct[i, 0]]}:{distinct[i, 1]}" for i in order)


def _counts(log: Log, jobs: Fates) -> dict[str, Any]:
    over = jobs.finished | jobs.failed
    done = np.bincount(log.actions[:, 0], minlength=len(ACTION_WORDS))
    return {
        "jobs": len(jobs),
        "finished": int(jobs.finished.sum()),
        "failed": int(jobs.failed.sum()),
        "unfinished": int((~over).sum()),
        "never_started": int((~over & (jobs.starts == 0)).sum()),
        "preemptions": int(done[STOP]),
        "restarts": int(np.maximum(jobs.starts - 1, 0).sum()),
        "losses": int((log.events[:, 0] == LOST).sum()),
        "retunes": int(done[RETUNE]),
        "boots": int(done[POWER_ON]),
    }


def _arrays(log: Log) -> dict[str, Any]:
    starts = log.actions[:, 0] == START
    round_, job, group = log.action_round[starts], log.actions[starts, 1], log.actions[starts, 2]
    key = log.jobs.fuse.codes
    joins = np.flatnonzero((job != group) & (key[job] == key[group]) & keyed(log.jobs)[job])
    joined = np.unique(np.stack((round_[joins], group[joins], job[joins])), axis=1)  # one row for each node
    _, members = np.unique(joined[:2], axis=1, return_counts=True)
    return {
        "fused_jobs": len(np.unique(joined[1:])),
        "array_width_mean": _mean(members + np.float64(1.0)),
    }


def _times(jobs: Fates) -> dict[str, Any]:
    done = jobs.take(jobs.finished)
    asked_s = done.duration_s > 0
    # A job that never waits has a JCT equal to its service, up to rounding.
    wait_s = np.maximum(0.0, done.jct_s - done.service_s)
    return {
        **_spread("jct", "_s", done.jct_s, mean=0, p50=50, p90=90, p99=99, max=100),
        **_spread("wait", "_s", wait_s, mean=0, p50=50, p90=90, p99=99),
        "start_delay_mean_s": _mean((jobs.first_s - jobs.submit_s)[jobs.starts > 0]),
        **_spread("ftf", "", done.jct_s[asked_s] / done.duration_s[asked_s], mean=0, p99=99, max=100),
    }


def _spread(name: str, unit: str, values: Floats, **percent: float) -> dict[str, Any]:
    """Mean and percentiles of *values* under the names a report has for them."""
    wanted = [q for key, q in percent.items() if key != "mean"]
    found = np.percentile(values, wanted).tolist() if len(values) else [math.nan] * len(wanted)
    return {f"{name}_mean{unit}": _mean(values)} | {
        f"{name}_{key}{unit}": value
        for key, value in zip((key for key in percent if key != "mean"), found, strict=True)
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _cluster(log: Log, went: Course) -> dict[str, Any]:
    jobs, held = went.fates, went.spans
    gpus = int(log.nodes.gpus.sum())
    leads = held.leads
    gpu_s = float((held.gpus * (held.end_s - held.start_s))[leads].sum())
    first_s = float(jobs.submit_s.min(initial=math.inf))
    end_s = float(np.nanmax(np.concatenate((jobs.end_s, held.end_s, [first_s]))))
    makespan_s = end_s - first_s if len(jobs) else 0.0
    span_s = float(np.ptp(jobs.submit_s)) if len(jobs) else 0.0
    asked_gpu_s = float(jobs.gpus @ jobs.duration_s)
    return {
        "makespan_s": makespan_s,
        "offered_load": asked_gpu_s / (gpus * span_s) if span_s > 0 else math.nan,
        "gpu_utilisation": gpu_s / (gpus * makespan_s) if makespan_s > 0 else 0.0,
        "gpu_hours": gpu_s / 3600,
        "fragmentation": fragmentation(went.timeline),
    }


def _energy(log: Log, went: Course) -> dict[str, Any]:
    used = energy(log, went.spans, went.turns)
    paid = money(log, went.fates, went.timeline, used.total_j)
    return {
        "cost": paid.total,
        "energy_cost": paid.energy,
        "tardiness_cost": paid.tardiness,
        "price": paid.price,
        "energy_j": used.total_j,
        "energy_kwh": used.total_j / 3.6e6,
        "energy_lease_j": used.lease_j,
        "energy_idle_gpu_j": used.idle_gpu_j,
        "energy_base_j": used.base_j,
        "energy_boot_j": used.boot_j,
        "energy_off_j": used.off_j,
        "energy_method": used.method,
    }


def _deadlines(went: Course) -> dict[str, Any]:
    due = went.fates.take(np.isfinite(went.fates.deadline_s))
    over_s = np.where(np.isnan(due.end_s), went.last_s, due.end_s)
    late_s = np.maximum(0.0, over_s - due.deadline_s)
    return {
        "deadline_jobs": len(due),
        "deadline_misses": int((due.failed | (late_s > 0)).sum()),
        "tardiness_mean_s": _mean(late_s),
        "tardiness_total_s": float(late_s.sum()),
    }


def _gaps(log: Log) -> dict[str, Any]:
    known = log.gap[np.isfinite(log.gap)]
    return {
        "gap_mean": _mean(known),
        "gap_max": float(known.max()) if len(known) else math.nan,
        "gap_unknown": int(np.isinf(log.gap).sum()),
    }
