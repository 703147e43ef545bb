"""The answer of a what-if study as text of at most 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from wattline.reports.assumptions import Assumption
from wattline.reports.text import (
    format_energy,
    format_number,
    format_percent,
    format_ratio,
    format_seconds,
)
from wattline.text_table import format_narrow_table
from wattline.whatif.metrics import ScheduleMetrics
from wattline.whatif.owners import OwnerChange
from wattline.whatif.recurrence import Potential
from wattline.whatif.reproduction import ReproductionError
from wattline.whatif.result import Reproduction, WhatIf, World

WIDTH = 80

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows."""


def format_answer(answer: WhatIf) -> str:
    """Return all parts of *answer*, separated by empty lines."""
    parts = [_format_title(answer), _format_recorded(answer)]
    parts += [_format_world(world, answer) for world in answer.worlds]
    parts += [_format_owners(answer), "\n".join(map(wrap, describe_potential(answer.potential)))]
    parts += [_format_assumptions(answer), "\n".join(wrap(note) for note in answer.notes)]
    return "\n\n".join(part for part in parts if part)


def wrap(text: str, indent: str = "  ") -> str:
    """Return *text* in lines of at most 80 columns."""
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False))


def _format_title(answer: WhatIf) -> str:
    counted = "" if answer.counted == answer.jobs else f", {answer.counted:,} of them counted"
    return wrap(f"{answer.trace}: {answer.jobs:,} jobs in {format_seconds(answer.span_s)}{counted}")


SCHEDULE_COLUMNS = (
    *("schedule", "mean wait", "median", "p99", "mean JCT", "median JCT", "p99 JCT"),
    *("held", "GPU-hours", "energy"),
)


def list_schedule_rows(answer: WhatIf) -> Table:
    """Return the recorded schedule and its reproduction as a table."""
    rows = []
    for name, metrics in (
        ("as recorded", answer.recorded),
        ("reproduced", None if answer.reproduction is None else answer.reproduction.metrics),
    ):
        if metrics is not None:
            rows.append((name, *_format_schedule(metrics)))
    return SCHEDULE_COLUMNS, rows


def _format_schedule(m: ScheduleMetrics) -> tuple[str, ...]:
    times = (m.wait_mean_s, m.wait_p50_s, m.wait_p99_s, m.jct_mean_s, m.jct_p50_s, m.jct_p99_s)
    use = (format_percent(m.gpu_utilisation), format_number(m.gpu_hours), format_energy(m.energy_j))
    return (*map(format_seconds, times), *use)


def _format_recorded(answer: WhatIf) -> str:
    header, rows = list_schedule_rows(answer)
    if not rows:
        return ""
    lines = format_narrow_table(header, rows, right=range(1, len(header)))
    if answer.reproduction is not None:
        lines += [wrap(line) for line in describe_reproduction(answer.reproduction)]
    return "\n".join(("The recorded schedule", *lines))


def describe_reproduction(reproduction: Reproduction) -> list[str]:
    """Return sentences about how the reproduction was found and how far it is from the records."""
    tried = len(reproduction.candidates)
    delay = reproduction.start_delay_s
    starts = f"; each start takes {format_seconds(delay)}, as fitted there" if delay > 0 else ""
    lines = [
        f"reproduced by {reproduction.scheduler}: the best of {tried} on the first half of the jobs{starts}",
        f"error on the second half: {describe_error(reproduction.second)}",
        f"error on the first half, by which it was chosen: {describe_error(reproduction.first)}",
    ]
    if draws := reproduction.draws:
        lines.append(
            f"records are in whole seconds: these are means over {len(draws)} draws of the fractions, with"
            f" mean waits of {format_seconds(min(draws))} to {format_seconds(max(draws))} in the second half"
        )
    return lines


def describe_error(error: ReproductionError) -> str:
    """Return the error of a reproduction as words."""
    if not error.jobs:
        return "no job has recorded times"
    wait = f"mean wait {format_seconds(error.wait_s)} for {format_seconds(error.wait_recorded_s)}"
    use = f"GPUs held {format_percent(error.utilisation)} for {format_percent(error.utilisation_recorded)}"
    return (
        f"{wait} ({format_change(error.wait_error)}), {use} ({format_change(error.utilisation_error)}),"
        f" a job's wait off by {format_seconds(error.wait_off_s)} on average,"
        f" {100 * error.order:.1f} % of pairs start in another order"
    )


def format_change(share: float) -> str:
    """Return a relative change as `+3.2 %`; `-` for nan."""
    if not math.isfinite(share):
        return "-"
    return f"{100 * share:+.1f} %" if abs(share) >= 0.0005 else "0.0 %"


def list_policy_rows(world: World) -> Table:
    """Return the policies of one world as a table."""
    late = any(row.metrics.deadline_misses for row in world.rows)
    left = any(row.metrics.unfinished for row in world.rows)
    over = any(row.metrics.over_limit for row in world.rows)
    header = (
        *("policy", "mean JCT", "x", "energy", "x", "", "mean wait", "p99 wait", "held", "stops"),
        *(("late",) if late else ()),
        *(("unfinished",) if left else ()),
        *(("over limit",) if over else ()),
    )
    rows = []
    for row, on_front in zip(world.rows, world.front, strict=True):
        m = row.metrics
        rows.append(
            (
                row.policy,
                format_seconds(m.jct_mean_s),
                format_ratio(row.jct),
                format_energy(m.energy_j),
                format_ratio(row.energy),
                "*" if on_front else "",
                format_seconds(m.wait_mean_s),
                format_seconds(m.wait_p99_s),
                format_percent(m.gpu_utilisation),
                f"{m.stops:,}",
                *((f"{m.deadline_misses:,}",) if late else ()),
                *((f"{m.unfinished:,}",) if left else ()),
                *((f"{m.over_limit:,}",) if over else ()),
            )
        )
    return header, rows


def describe_world(world: World, answer: WhatIf) -> list[str]:
    """Return sentences that explain the table of a world."""
    intervals = "no interval: the time is too short for blocks"
    if any(row.jct.has_interval for row in world.rows):
        over = f"{answer.seeds} seeds" if answer.seeds > 1 else f"blocks of {answer.block}"
        intervals = f"95 % intervals over {over}"
    notes = [
        f"x: compared with {world.rows[0].policy} in the same world, less is better; {intervals}",
        "*: no other is better in both energy and mean JCT",
    ]
    if any(row.metrics.over_limit for row in world.rows):
        notes.append("over limit: jobs that ran longer than their time limit; --kill-at-limit kills them")
    estimates = {row.estimates for row in world.rows if row.estimates}
    return [*notes, *(f"durations known to policies: {text}" for text in sorted(estimates)[:1])]


def name_world(world: World) -> str:
    """Return the title of a world."""
    load = "" if world.load == 1 else f", load {world.load:g} of the recorded one"
    return f"{world.cluster}, {world.gpus:,} GPUs{load}"


def _format_world(world: World, answer: WhatIf) -> str:
    header, rows = list_policy_rows(world)
    lines = format_narrow_table(header, rows, right=range(1, len(header)))
    return "\n".join((wrap(name_world(world)), *lines, *map(wrap, describe_world(world, answer))))


def list_owner_rows(changes: Sequence[OwnerChange], policies: Sequence[str], title: str) -> Table:
    """Return the changes for teams or a user as a table: the mean JCT of each policy over the baseline's."""
    header = (title, "jobs", "GPU-hours", "mean JCT", *(f"x {policy}" for policy in policies))
    rows = [
        (
            change.name,
            f"{change.jobs:,}",
            format_number(change.gpu_hours),
            format_seconds(change.jct_mean_s),
            *("-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in change.ratios),
        )
        for change in changes
    ]
    return header, rows


def describe_user(change: OwnerChange, policies: Sequence[str]) -> list[str]:
    """Return for each policy how many jobs of a user would end earlier and later."""
    columns = zip(policies, change.ratios, change.earlier, change.later, strict=True)
    return [
        f"{policy}: mean JCT x {ratio:.2f}; {100 * early:.0f} % of the jobs end earlier,"
        f" {100 * late:.0f} % later (by more than 5 % of their JCT)"
        for policy, ratio, early, late in columns
    ]


def _format_owners(answer: WhatIf) -> str:
    policies = [row.policy for row in answer.worlds[0].rows[1:]]
    parts = []
    if answer.teams and policies:
        header, rows = list_owner_rows(answer.teams, policies, "team")
        parts.append("\n".join(format_narrow_table(header, rows, right=range(1, len(header)))))
    if answer.user is not None and policies:
        jobs, mean = f"{answer.user.jobs:,} jobs", format_seconds(answer.user.jct_mean_s)
        title = f"jobs of {answer.user.name}: {jobs}, mean JCT {mean} in the baseline"
        parts.append("\n".join((title, *map(wrap, describe_user(answer.user, policies)))))
    return "\n\n".join(parts)


def describe_potential(p: Potential) -> list[str]:
    """Return what fusion and tuning could save, or that the trace does not say which jobs belong together."""
    if not p.known:
        return ["sweeps and recurring jobs: unknown, the trace has neither SubmitLine nor JobName nor arrays"]
    fusion = (
        f"sweeps: {p.sweep_jobs:,} jobs in {p.sweeps:,} sweeps, {format_percent(p.sweep_share)} of the GPU"
        f" hours; fused they would save 0 to {format_percent(p.fusion_saves)} of all GPU hours (assumed:"
        " 8 jobs as one array take 5.55 times as long as one; nothing is known of these models)"
    )
    tuning = (
        f"recurring: {p.recurring:,} jobs ran at least 5 times, {p.recurring_runs:,} runs,"
        f" {format_percent(p.recurring_share)} of the GPU hours; a power limit that costs at most 10 % of"
        f" speed would save 0 to {format_percent(p.tuning_saves)} of the energy of all GPUs (default law)"
    )
    return [fusion, tuning]


def describe_effect(assumption: Assumption) -> str:
    """Return what the pessimistic value of an assumption would change."""
    if assumption.name == "start":
        return "fitted to the records, not assumed"
    if not assumption.pessimistic:
        return "this is the pessimistic value"
    if assumption.effect is None:
        return f"not checked against {assumption.pessimistic}"
    changes = [
        f"{policy} JCT {_format_effect(change['jct'])}, energy {_format_effect(change['energy'])}"
        for policy, change in assumption.effect["policies"].items()
    ]
    return f"with {assumption.pessimistic}: {'; '.join(changes)}"


def _format_effect(ratio: float | None) -> str:
    return "-" if ratio is None else format_change(ratio - 1)


def _format_assumptions(answer: WhatIf) -> str:
    lines = ["Assumptions, and what a pessimistic value changes"]
    for assumption in answer.assumptions:
        lines.append(wrap(f"{assumption.name} {assumption.value}: {assumption.says}"))
        lines.append("\n".join(textwrap.wrap(
            describe_effect(assumption), WIDTH, initial_indent="    ", subsequent_indent="    "
        )))  # fmt: skip
    lines += [wrap(f"energy: {method}") for method in answer.energy_methods]
    return "\n".join(lines)
