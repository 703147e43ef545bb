"""Savings report of `wattline shadow`: recorded jobs as they ran, against the same jobs under a policy."""

from __future__ import annotations

import argparse
import math
import textwrap
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.recorded import simulate_policy, simulate_record
from wattline.cli.simulation.shadow_watch import ShadowCase
from wattline.core.actions import ACTION_VERB, STOP
from wattline.core.events import EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, LEASE_END_EVENTS
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.table import Bools, Floats
from wattline.loop.runlog import Log
from wattline.reports.data.job_outcomes import JobOutcomes, collect_job_outcomes
from wattline.reports.data.lease_intervals import LeaseIntervals, collect_lease_intervals
from wattline.reports.summary import finite_or_none
from wattline.reports.text import format_energy, format_number, format_percent, format_seconds
from wattline.text_table import format_table
from wattline.units import format_seconds as format_time
from wattline.units import pluralize

WIDTH = 80
ENERGY_METHOD = (
    "estimated, not metered: watts of a busy, idle or capped GPU and of its node by kind, times seconds"
)
_ROWS = (
    ("wait_mean_s", "mean wait", format_seconds),
    ("jct_mean_s", "mean time to completion", format_seconds),
    ("gpu_hours", "GPU-hours of these jobs", format_number),
    ("gpu_utilisation", "GPUs held, of all", format_percent),
    ("energy_gpus_j", "energy of their GPUs", format_energy),
    ("energy_cluster_j", "energy of the cluster", format_energy),
    ("stops", "stops for other jobs", format_number),
)


@dataclass(frozen=True)
class ShadowFigures:
    """Figures of the counted jobs in one schedule; those of the cluster are until the last of them ends."""

    wait_mean_s: float  # without GPUs, from the time at which a job could start
    jct_mean_s: float  # from that time to the end
    gpu_hours: float
    gpu_utilisation: float  # by all jobs
    energy_gpus_j: float
    energy_cluster_j: float
    stops: int  # of all jobs
    other_gpu_hours: float  # of jobs that are not counted, in the same time

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {name: finite_or_none(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Savings:
    """The report: figures as recorded and under the policy, jobs left out, and assumptions."""

    shadow: ShadowCase
    policy: str
    recorded: ShadowFigures
    simulated: ShadowFigures
    counted: int
    unfinished: int  # jobs that ended in reality and not under the policy
    until_s: float  # end of the comparison, after the beginning of the watch
    assumptions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        record, left = self.shadow.record, self.shadow.left_out
        return {
            "partition": record.node_list.partition,
            "gpus": int(record.node_list.nodes.gpus.sum()),
            "began_s": record.began_s,
            "ended_s": record.ended_s,
            "compared_s": self.until_s,
            "policy": self.policy,
            "jobs": self.counted,
            "left_out": {
                **{name: getattr(left, name) for name in _LEFT_OUT},
                "unfinished_under_policy": self.unfinished,
            },
            "recorded": self.recorded.as_dict(),
            "simulated": self.simulated.as_dict(),
            "change": {
                name: finite_or_none(self._find_change(name)) for name, *_ in _ROWS if name != "stops"
            },
            "energy_method": ENERGY_METHOD,
            "assumptions": list(self.assumptions),
            "notes": list(record.notes),
        }

    def _find_change(self, name: str) -> float:
        """Return the relative change of a figure by the policy; nan: it is undefined."""
        before, after = getattr(self.recorded, name), getattr(self.simulated, name)
        return after / before - 1 if before > 0 else math.nan

    def __str__(self) -> str:
        record = self.shadow.record
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.began_s))
        lines = [
            f"Slurm partition {record.node_list.partition}, watched for "
            f"{format_time(record.ended_s - record.began_s)} from {began}",
            f"{pluralize(self.counted, 'job')} started and ended meanwhile",
        ]
        if self.counted:
            lines += ["", *self._format_figures()]
        for title, texts in (
            ("left out", self._list_left_out()),
            ("beware", record.notes),
            ("assumed", self.assumptions),
        ):
            lines += ["", f"{title}:"] if texts else []
            for text in texts:
                lines += textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines)

    def _format_figures(self) -> list[str]:
        rows = []
        for name, title, format_value in _ROWS:
            cells = [format_value(float(getattr(one, name))) for one in (self.recorded, self.simulated)]
            change = math.nan if name == "stops" else self._find_change(name)
            rows.append((title, *cells, f"{100 * change:+.1f} %" if math.isfinite(change) else ""))
        policy = textwrap.shorten(self.policy, 24, placeholder="…")
        lines = format_table(("", "as recorded", policy, "change"), rows, right=(1, 2, 3))
        notes = (
            f"energy: {ENERGY_METHOD}",
            "energy of the cluster and GPUs held: of all jobs, also those left out, until the last counted "
            f"one has ended in both ({format_time(self.until_s)})",
        )
        return [*lines, *(line for note in notes for line in textwrap.wrap(note, WIDTH))]

    def _list_left_out(self) -> list[str]:
        left = self.shadow.left_out
        texts = [f"{count} {text}" for name, text in _LEFT_OUT.items() if (count := int(getattr(left, name)))]
        if self.unfinished:
            texts.append(f"{self.unfinished} that the policy would not have finished")
        if left.ran_before or left.running or left.waiting:
            hours = [format_number(one.other_gpu_hours) for one in (self.recorded, self.simulated)]
            texts.append(
                f"GPU-hours of jobs left out, until the last counted one ends: {hours[0]} as recorded, "
                f"{hours[1]} under the policy"
            )
        return texts


_LEFT_OUT = {
    "ran_before": "that ran already when the watch began; they keep their GPUs",
    "running": "still running; the simulation takes their time limits for their lengths",
    "waiting": "still waiting; likewise, unless they are held",
    "unknown_ends": "that Slurm has forgotten before their end was read",
    "cancelled": "cancelled before they started",
    "without_gpus": "without GPUs",
}


def compare_with_record(
    shadow: ShadowCase,
    policy: Policy,
    place: Placer,
    models: Models,
    overheads: Overheads,
    args: argparse.Namespace,
) -> tuple[Savings, Log]:
    """Simulate the record as it was and under *policy*; return the report and the log of the policy.

    Both are simulated until the last counted job has ended in both.
    """
    case, counted = shadow.case, shadow.left_out.counted

    def run_policy(until_s: float) -> Log:
        return simulate_policy(case, policy, models, place, overheads, until_s, args.seed)

    first = _Schedule(run_policy(math.inf))
    ended = counted & first.is_finished(len(counted))
    recorded_end_s = max(
        (start_s + case.jobs.duration_s[row] for start_s, row, _ in case.starts if counted[row]), default=0.0
    )
    until_s = float(max(recorded_end_s, np.nanmax(first.end_s(len(counted))[ended], initial=0.0)))
    if until_s <= 0:
        until_s = max(shadow.record.ended_s - shadow.record.began_s, 1.0)
    log = run_policy(until_s)
    recorded = _Schedule(simulate_record(case, models, until_s, args.seed))
    result = Savings(
        shadow,
        args.policy,
        recorded.measure(ended, until_s),
        _Schedule(log).measure(ended, until_s),
        int(ended.sum()),
        int((counted & ~ended).sum()),
        until_s,
        _list_assumptions(args),
    )
    return result, log


class _Schedule:
    """The leases and outcomes of a log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._intervals: LeaseIntervals = collect_lease_intervals(log)
        self._outcomes: JobOutcomes = collect_job_outcomes(log, self._intervals)

    def is_finished(self, count: int) -> Bools:
        """Return by row of the case whether a job has ended."""
        mask = np.zeros(count, dtype=np.bool_)
        mask[self._outcomes.job[self._outcomes.finished]] = True
        return mask

    def end_s(self, count: int) -> Floats:
        """Return by row of the case when a job has ended."""
        end_s = np.full(count, np.nan)
        end_s[self._outcomes.job] = self._outcomes.end_s
        return end_s

    def measure(self, counted: Bools, until_s: float) -> ShadowFigures:
        """Return the figures of the *counted* jobs."""
        log, intervals = self._log, self._intervals
        jobs = self._outcomes.take(counted[self._outcomes.job])
        gpu_s = intervals.gpus * (np.minimum(intervals.end_s, until_s) - intervals.start_s)
        gpu_s = np.where(intervals.is_leader, np.maximum(gpu_s, 0.0), 0.0)
        mine = counted[intervals.job]
        verb, job = log.events[:, EVENT_VERB], log.events[:, EVENT_JOB].astype(np.int64)
        ends = np.flatnonzero(np.isin(verb, LEASE_END_EVENTS))
        energy_j = log.events[ends, EVENT_ENERGY_J]
        return ShadowFigures(
            wait_mean_s=_mean(np.maximum(jobs.jct_s - jobs.service_s, 0.0)),
            jct_mean_s=_mean(jobs.jct_s),
            gpu_hours=float(gpu_s[mine].sum()) / 3600,
            gpu_utilisation=float(gpu_s.sum()) / (float(log.nodes.gpus.sum()) * until_s),
            energy_gpus_j=float(energy_j[counted[job[ends]]].sum()),
            energy_cluster_j=float(log.events[-1, EVENT_ENERGY_J]),
            stops=int((log.actions[:, ACTION_VERB] == STOP).sum()),
            other_gpu_hours=float(gpu_s[~mine].sum()) / 3600,
        )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _list_assumptions(args: argparse.Namespace) -> tuple[str, ...]:
    """Return what the simulation takes for granted about the jobs."""
    every_s = args.checkpoint_interval
    saves = (
        "a stop loses no work"
        if every_s is None
        else "a job that is stopped begins again"
        if every_s < 0
        else f"jobs save every {format_time(every_s)} and lose what they did since"
    )
    return (
        "jobs run on as many GPUs as they asked for, and as long as recorded on any of them: how they scale "
        "is not known",
        "a power cap slows a job down as the library has it for its GPU kind",
        f"{saves}; each restart costs {format_time(args.restart_cost)}",
        "the policy knows a job's time limit, an hour for one without; its length only when it has ended",
        "waits count from the time at which a job could start (EligibleTime); requested nodes, features, "
        "reservations, cores and memory are ignored",
    )
