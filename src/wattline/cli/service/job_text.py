"""A job of the service as people read it: its time, its energy with the method, how far it is."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattline.grid import grid
from wattline.units import show_seconds

Job = Mapping[str, Any]
LIVE = ("PENDING", "RUNNING")
_NAME = 32  # letters of a name in a table
_HEAD = ("job", "name", "state", "gpus", "time", "progress", "energy", "why")


def table(jobs: Sequence[Job], now_s: float) -> list[str]:
    """A line for each job, under a head."""
    rows = [_HEAD, *(_row(job, now_s) for job in jobs)]
    lines = grid(rows, lambda column: ">" if column in (0, 3) else "<")
    if not sys.stdout.isatty():
        return lines
    wide = shutil.get_terminal_size().columns
    return [line if len(line) <= wide else line[: wide - 1] + "…" for line in lines]


def _row(job: Job, now_s: float) -> tuple[str, ...]:
    return (
        job["id"],
        cut(clean(job["name"]), _NAME),
        job["state"] + (" (held)" if job["held"] and job["state"] == "PENDING" else ""),
        str(len(job["given"]["gpus"]) or job["gpus_asked"])
        if job["state"] != "PENDING"
        else str(job["gpus_asked"]),
        lasts(job, now_s),
        done(job),
        energy(job),
        why(job),
    )


def why(job: Job) -> str:
    """Why it is where it is; where nobody says, its exit code if that says something."""
    said = clean(job["reason"])
    return said or (f"Its exit code was {job['exit_code']}." if job["exit_code"] else "")


def lasts(job: Job, now_s: float) -> str:
    """`waits 5 min`, `runs 3.2 h`, `ran 3.2 h`."""
    if job["state"] == "RUNNING":
        return f"runs {_time(now_s - (job['start_s'] or now_s))}"
    if job["state"] == "PENDING":
        return f"waits {_time(now_s - job['submit_s'])}"
    if job["start_s"] is None or job["end_s"] is None:
        return "never ran"
    return f"ran {_time(job['end_s'] - job['start_s'])}"


def _time(value_s: float) -> str:
    return show_seconds(round(max(value_s, 0.0), 1))


def done(job: Job) -> str:
    """`####------ 42 %`, or `-` where it does not say."""
    share = 1.0 if job["state"] == "SUCCEEDED" else job["progress"]
    return "-" if share is None else f"{bar_of(share)} {100 * share:3.0f} %"


def bar_of(share: float, wide: int = 10) -> str:
    """A bar in plain letters."""
    full = round(min(max(share, 0.0), 1.0) * wide)
    return "#" * full + "-" * (wide - full)


def energy(job: Job) -> str:
    """`1.2 kWh (nvml energy counter)`, `unmetered`, or `-` of who never ran."""
    if not job["starts"]:
        return "-"
    return joules(job["energy_j"], job["energy_method"])


def joules(value_j: float | None, method: str) -> str:
    """An energy, and how it is known."""
    if value_j is None or method == "unmetered":
        return "unmetered"
    return f"{show_joules(value_j)} ({clean(method)})"


def show_joules(value_j: float) -> str:
    """An energy as bills have it: `850 J`, `12.3 Wh`, `4.56 kWh`."""
    for limit_j, unit_j, unit in ((3.6e3, 1.0, "J"), (3.6e6, 3.6e3, "Wh"), (3.6e9, 3.6e6, "kWh")):
        if abs(value_j) < limit_j:
            value = value_j / unit_j
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{value_j / 3.6e9:,.3g} MWh"


def clock(at_s: float | None) -> str:
    """A time of day; with the date if that is another."""
    if at_s is None:
        return "-"
    then = time.localtime(at_s)
    return time.strftime("%H:%M:%S" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", then)


def totals(jobs: Sequence[Job]) -> str:
    """One line about all of them: how many in which state, and what they used, by method."""
    if not jobs:
        return "no jobs"
    states = counted(job["state"] for job in jobs)
    ran = [job for job in jobs if job["starts"]]
    used: dict[str, float] = {}
    for job in ran:
        if job["energy_j"] is not None and job["energy_method"] != "unmetered":
            used[job["energy_method"]] = used.get(job["energy_method"], 0.0) + job["energy_j"]
    unmetered = sum(job["energy_j"] is None or job["energy_method"] == "unmetered" for job in ran)
    parts = [f"{joules(value, method)}" for method, value in used.items()]
    parts += [f"{unmetered} unmetered"] if unmetered else []
    return f"{count(len(jobs), 'job')}: {states}" + (f"; {', '.join(parts)}" if parts else "")


def counted(words: Iterable[str]) -> str:
    """`3 RUNNING, 9 PENDING`."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())


def count(number: int, what: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def clean(text: str) -> str:
    """A text of somebody else, without what moves a cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def cut(text: str, most: int) -> str:
    """Its beginning, if it is long."""
    return text if len(text) <= most else text[: most - 1] + "…"
