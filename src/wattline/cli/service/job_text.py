"""Text of a job of the service: its times, progress, and energy with the method."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattline.cli.output import format_columns, print_table
from wattline.units import format_joules, format_joules_alike, format_seconds
from wattline.units import pluralize as pluralize

Job = Mapping[str, Any]
LIVE = ("PENDING", "RUNNING")
_NAME_CHARACTERS = 32  # of a name in a table
_WIDE = 120  # columns of a terminal in which all columns of a table fit
_COLUMNS = ("job", "name", "state", "gpus", "time", "progress", "energy", "why")


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print a table with a line for each job, cut off at the width of a terminal.

    In a narrow terminal the reason of a job stands on a line below it.
    """
    energies = format_energies(jobs)
    rows = [_build_row(job, energy) for job, energy in zip(jobs, energies, strict=True)]
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and width < _WIDE:
        print("\n".join(_format_narrow(rows, width)))
    else:
        print_table(_COLUMNS, rows, right=("job", "gpus"), wrap=False)


def _format_narrow(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return lines of at most *width* characters: short names, no bars, and reasons on their own lines."""
    short = [
        (job, shorten(name, 16), state, gpus, time, progress.rpartition("- ")[2].rpartition("# ")[2].strip(),
         energy.partition(" (")[0])
        for job, name, state, gpus, time, progress, energy, _ in rows
    ]  # fmt: skip
    head, *lines = format_columns(_COLUMNS[:-1], short, right=("job", "gpus"))
    found = [head]
    for line, row in zip(lines, rows, strict=True):
        found += [line, *([f"       {row[-1]}"] if row[-1] else [])]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in found]


def _build_row(job: Job, energy: str) -> tuple[str, ...]:
    pending = job["state"] == "PENDING"
    gpus = job["gpus_asked"] if pending else len(job["allocation"]["gpus"]) or job["gpus_asked"]
    return (
        job["id"],
        shorten(sanitize(job["name"]), _NAME_CHARACTERS),
        job["state"] + (" (held)" if job["held"] and pending else ""),
        str(gpus),
        format_time(job),
        format_progress(job),
        energy,
        format_reason(job),
    )


def format_reason(job: Job) -> str:
    """Return the reason of a job's state, else its exit code if that is not 0."""
    reason = sanitize(job["reason"])
    return reason or (f"exit code {job['exit_code']}" if job["exit_code"] else "")


def format_time(job: Job) -> str:
    """Return `waits 5 min`, `runs 3.2 h` or `ran 3.2 h`: the time of all attempts, as is the energy."""
    if job["state"] == "PENDING":
        return f"waits {format_duration(job['wait_s'])}"
    if not job["starts"]:
        return "never ran"
    verb = "runs" if job["state"] == "RUNNING" else "ran"
    return f"{verb} {format_duration(job['run_s'])}"


def format_duration(value_s: float) -> str:
    """Return a time to a tenth of a second: `3.2 h`, `4.5 s`."""
    return format_seconds(round(max(value_s, 0.0), 1))


def format_progress(job: Job) -> str:
    """Return `####------ 42 %`, or `-` if the job does not report progress."""
    progress = 1.0 if job["state"] == "SUCCEEDED" else job["progress"]
    return "-" if progress is None else f"{format_bar(progress)} {100 * progress:3.0f} %"


def format_bar(completed: float, width: int = 10) -> str:
    """Return a bar in ASCII; *completed* is from 0 to 1."""
    full = round(min(max(completed, 0.0), 1.0) * width)
    return "#" * full + "-" * (width - full)


def format_energy(job: Job) -> str:
    """Return `1.2 kWh (nvml energy counter)`, `unmetered`, `unknown (…)`, or `-` if the job never ran."""
    if not job["starts"]:
        return "-"
    return format_metered(job["energy_j"], job["energy_method"])


def format_energies(jobs: Sequence[Job]) -> list[str]:
    """Return the energy of each job as `format_energy` does, all in one unit."""
    metered = [job for job in jobs if job["starts"] and _is_metered(job)]
    texts = dict(zip(map(id, metered), format_joules_alike([j["energy_j"] for j in metered]), strict=True))
    return [
        f"{texts[id(job)]} ({sanitize(job['energy_method'])})" if id(job) in texts else format_energy(job)
        for job in jobs
    ]


def _is_metered(job: Job) -> bool:
    return job["energy_j"] is not None and job["energy_method"] != "unmetered"


def format_metered(value_j: float | None, method: str) -> str:
    """Return an energy with its method; `unmetered` without a meter, `unknown` if some was not counted."""
    if method in ("", "unmetered"):
        return "unmetered"
    if value_j is None:
        return f"unknown ({sanitize(method)})"
    return f"{format_joules(value_j)} ({sanitize(method)})"


def format_clock(at_s: float | None) -> str:
    """Return the local time of day, with the date unless it is today; `-` for None."""
    if at_s is None:
        return "-"
    then = time.localtime(at_s)
    return time.strftime("%H:%M:%S" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", then)


def format_totals(jobs: Sequence[Job]) -> str:
    """Return one line about all *jobs*: their number by state, and their energy by method."""
    if not jobs:
        return "no jobs"
    states = format_counts(job["state"] for job in jobs)
    started = [job for job in jobs if job["starts"]]
    energy_j: dict[str, float] = {}
    for job in started:
        if job["energy_j"] is not None and job["energy_method"] != "unmetered":
            energy_j[job["energy_method"]] = energy_j.get(job["energy_method"], 0.0) + job["energy_j"]
    unmetered = sum(job["energy_method"] == "unmetered" for job in started)
    unknown = sum(job["energy_j"] is None for job in started if job["energy_method"] != "unmetered")
    parts = [format_metered(value_j, method) for method, value_j in energy_j.items()]
    parts += [f"{unmetered} unmetered"] if unmetered else []
    parts += [f"{unknown} unknown"] if unknown else []
    return f"{pluralize(len(jobs), 'job')}: {states}" + (f"; {', '.join(parts)}" if parts else "")


def format_gpus(allocation: Mapping[str, Any]) -> str:
    """Return `GPUs 0, 1, a100, cap 250 W, batch 64, 4 cores` of a job's attempt."""
    gpus, fused = allocation.get("gpus", ()), allocation.get("fused_with", ())
    parts = [f"GPU{'s' if len(gpus) != 1 else ''} {', '.join(map(str, gpus))}", allocation.get("kind", "")]
    parts += [f"cap {allocation['cap_w']:g} W"] if allocation.get("cap_w") else []
    parts += [f"batch {allocation['batch']}"] if allocation.get("batch") else []
    parts += [pluralize(allocation["cpus"], "core")] if allocation.get("cpus") else []
    parts += [f"fused with jobs {', '.join(fused)}"] if fused else []
    return ", ".join(filter(None, parts))


def format_counts(words: Iterable[str]) -> str:
    """Return `3 RUNNING, 9 PENDING`."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())


def sanitize(text: str) -> str:
    """Replace control characters in text from outside, which could move the cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def shorten(text: str, limit: int) -> str:
    """Return *text*, cut off with `…` if it has more than *limit* characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
