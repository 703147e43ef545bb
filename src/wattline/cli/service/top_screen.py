"""The screen of `wattline top`: bars and sparklines, cut to the size of the terminal, and its keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wattline.cli.service.job_text import (
    format_bar,
    format_clock,
    format_duration,
    format_energies,
    pluralize,
    sanitize,
)

Frame = dict[str, Any]
HISTORY = 60
"""Values of a sparkline."""
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "._-=+*#@"
_HELP = "q quit  ↑↓ scroll  / filter  Esc clear"
_MOST_REASONS = 4


def format_sparkline(values: Sequence[float | None], top: float, ascii_only: bool = False) -> str:
    """Return a character for each value from 0 to *top*; an unknown value is a blank."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    last = len(blocks) - 1
    return "".join(
        " "
        if value is None
        else blocks[min(last, max(0, round(value / top * last)))]
        if top > 0
        else blocks[0]
        for value in values
    )


@dataclass
class TopScreen:
    """State of the screen: the history of power, the filter, and the position in the list."""

    ascii_only: bool = False
    filter: str = ""
    is_typing: bool = False  # a filter
    offset: int = 0  # running jobs above the first that is shown
    power_w: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _of_jobs: dict[str, deque[float | None]] = field(default_factory=dict)

    def update(self, frame: Frame) -> None:
        """Add a frame to the history of power."""
        known = [job["power_w"] for job in frame["running"]]
        total_w = frame.get("power_w")
        if total_w is None and known and None not in known:
            total_w = sum(known)
        self.power_w.append(total_w)
        self._of_jobs = {job["id"]: self._of_jobs.get(job["id"], deque(maxlen=8)) for job in frame["running"]}
        for job in frame["running"]:
            self._of_jobs[job["id"]].append(job["power_w"])

    def press(self, keys: bytes) -> bool:
        """Handle what was typed; return False if the user wants to quit."""
        for key in _split_keys(keys):
            if self.is_typing:
                self._type(key)
            elif key in (b"q", b"Q", b"\x03"):
                return False
            elif key == b"/":
                self.is_typing, self.filter = True, ""
            elif key == b"\x1b":
                self.filter, self.offset = "", 0
            elif key in (b"\x1b[A", b"\x1bOA", b"k"):
                self.offset -= 1
            elif key in (b"\x1b[B", b"\x1bOB", b"j"):
                self.offset += 1
            elif key in (b"\x1b[5~", b"\x1b[6~"):
                self.offset += 10 if key == b"\x1b[6~" else -10
        self.offset = max(self.offset, 0)
        return True

    def _type(self, key: bytes) -> None:
        if key in (b"\r", b"\n"):
            self.is_typing = False
        elif key in (b"\x1b", b"\x03"):
            self.is_typing, self.filter = False, ""
        elif key in (b"\x7f", b"\b"):
            self.filter = self.filter[:-1]
        elif not key.startswith(b"\x1b"):
            self.filter += key.decode("utf-8", "ignore") if key >= b" " else ""
        self.offset = 0

    def format(self, frame: Frame, width: int, height: int, problem: str = "") -> list[str]:
        """Return at most *height* lines of at most *width* characters."""
        head = self._format_head(frame, width)
        if problem or frame["cluster"]["problem"]:
            head.append(f"PROBLEM: {sanitize(problem or frame['cluster']['problem'])}")
        tail = self._format_waiting(frame)
        running = [job for job in frame["running"] if self._matches(job)]
        room = max(height - len(head) - len(tail) - 4, 1)
        self.offset = min(self.offset, max(len(running) - room, 0))
        shown = running[self.offset : self.offset + room]
        body = (
            self._format_jobs(shown, width)
            if running
            else ["no running job" + (" matches" if self.filter else "")]
        )
        hidden = len(running) - len(shown)
        count = len(frame["running"])
        more = f"{len(running)} of {pluralize(count, 'job')} running" if self.filter else ""
        more = (more or f"{pluralize(count, 'job')} running") + (f", {hidden} not shown" if hidden else "")
        search = f"/{self.filter}{'_' if self.is_typing else ''}" if self.filter or self.is_typing else ""
        lines = [*head, "", *body, "", *tail, f"{more}  {search or _HELP}"]
        return [line[:width] for line in lines][:height]

    def _matches(self, job: dict[str, Any]) -> bool:
        text = " ".join((job["id"], job["name"], job["user"], job["team"])).casefold()
        return self.filter.casefold() in text

    def _format_head(self, frame: Frame, width: int) -> list[str]:
        cluster = frame["cluster"]
        total = sum(node["gpus"] for node in cluster["nodes"])
        busy = total - cluster["gpus_free"] if cluster["gpus_free"] is not None else 0
        simulated = " SIMULATED" if cluster["simulated"] else ""
        counts = ", ".join(f"{number} {state}" for state, number in sorted(cluster["jobs"].items()))
        lines = [
            f"{format_clock(frame['at_s'])}  wattline{simulated}  {counts or 'no jobs'}",
            f"GPUs   [{format_bar(busy / total if total else 0.0, 20)}] {busy}/{total} busy",
        ]
        now_w = self.power_w[-1] if self.power_w else None
        budget_w = frame.get("budget_w")
        top_w = budget_w or max((value for value in self.power_w if value), default=0.0)
        text = "unknown" if now_w is None else f"{now_w:.0f} W"
        text += f" of {budget_w:.0f} W" if budget_w else ""
        bar = format_bar(now_w / top_w if now_w and top_w else 0.0, 20)
        room = max(width - len(f"power  [{bar}] {text}  "), 0)
        spark = format_sparkline(list(self.power_w)[-room:] if room else [], top_w, self.ascii_only)
        lines.append(f"power  [{bar}] {text}  {spark}")
        budgets = ", ".join(cluster["budgets"]) or "none"
        lines.append(f"budget {budgets}; energy {sanitize(cluster['energy_method'])}")
        return lines

    def _format_waiting(self, frame: Frame) -> list[str]:
        waiting = frame["waiting"]
        lines = [f"{pluralize(sum(waiting.values()), 'job')} waiting"]
        reasons = list(waiting.items())
        lines += [f"{number:>6}  {sanitize(reason) or '-'}" for reason, number in reasons[:_MOST_REASONS]]
        rest = sum(number for _, number in reasons[_MOST_REASONS:])
        return [*lines, f"{rest:>6}  for other reasons"] if rest else lines

    def _format_jobs(self, jobs: Sequence[dict[str, Any]], width: int) -> list[str]:
        energies = [text.partition(" (")[0] for text in format_energies(jobs)]
        most_w = max((job["power_w"] or 0.0 for job in jobs), default=0.0)
        name_width = max(8, min(24, width - 66))
        head = f"{'job':>6} {'name':<{name_width}} {'gpus':>4} {'time':>8} {'progress':<15} {'watts':>7}"
        lines = [f"{head} {'':<8} energy"]
        for job, energy in zip(jobs, energies, strict=True):
            progress, power_w = job["progress"], job["power_w"]
            done = "-" if progress is None else f"{format_bar(progress)} {100 * progress:.0f}%"
            spark = format_sparkline(list(self._of_jobs.get(job["id"], ())), most_w, self.ascii_only)
            lines.append(
                f"{job['id']:>6} {_shorten_inside(sanitize(job['name']), name_width):<{name_width}}"
                f" {len(job['allocation']['gpus']):>4} {format_duration(job['run_s']):>8} {done:<15}"
                f" {'-' if power_w is None else f'{power_w:.0f} W':>7} {spark:<8} {energy}"
            )
        return lines


def _shorten_inside(text: str, width: int) -> str:
    """Return *text* with a gap inside if it is too long: names of jobs often differ at their ends only."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def _split_keys(keys: bytes) -> list[bytes]:
    """Return the keys of one read: escape sequences whole, a lone Esc, and characters."""
    found: list[bytes] = []
    while keys:
        if keys[:2] in (b"\x1b[", b"\x1bO"):
            end = 2
            while end < len(keys) and not 0x40 <= keys[end] <= 0x7E:
                end += 1
            found.append(keys[: end + 1])
            keys = keys[end + 1 :]
            continue
        length = 1 if keys[0] < 0xC0 else 2 if keys[0] < 0xE0 else 3 if keys[0] < 0xF0 else 4
        found.append(keys[:length])
        keys = keys[length:]
    return found
