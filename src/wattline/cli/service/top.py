"""`wattline top`: show GPUs, running jobs and budgets, refreshed continuously."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wattline.cli.arguments import with_unit
from wattline.cli.output import format_columns, print_json
from wattline.cli.service.connect import add_connection_arguments, connect
from wattline.cli.service.job_text import (
    LIVE,
    format_clock,
    format_energies,
    format_progress,
    format_time,
    pluralize,
    sanitize,
    shorten,
)
from wattline.cli.service.top_screen import HISTORY, TopScreen
from wattline.errors import Unreachable
from wattline.service.client import Client
from wattline.units import parse_seconds

_MOST_JOBS = 40  # running jobs that are listed
_WINDOW_S = 10.0  # power is the energy of this time
_COLUMNS = ("job", "name", "gpus", "time", "progress", "watts", "energy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline top`."""
    parser.add_argument(
        "--once", action="store_true", help="print once and exit (default if stdout is not a terminal)"
    )
    parser.add_argument(
        "--every",
        type=with_unit(parse_seconds),
        default=2.0,
        metavar="T",
        help="refresh every T (default 2s)",
    )
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print one frame, or refresh it until `q` or Ctrl-C."""
    client = connect(args)
    if args.json or args.once or not sys.stdout.isatty():
        frame = fetch_frame(client)
        if args.json:
            print_json(frame)
        else:
            print(format_frame(frame))
        return 0
    return _refresh(client, max(args.every, 0.2))


def fetch_frame(client: Client, power: PowerEstimator | None = None) -> dict[str, Any]:
    """Return the cluster, the running jobs, and the number of pending jobs by reason."""
    cluster = client.get("/cluster")
    jobs = client.jobs({"state": list(LIVE)})
    running = [job for job in jobs if job["state"] == "RUNNING"]
    pending = Counter(job["reason"] for job in jobs if job["state"] == "PENDING")
    now_s = time.time()
    power_w = {} if power is None else power.estimate(running, time.monotonic())
    return {
        "at_s": now_s,
        "cluster": cluster,
        "running": [{**job, "power_w": job.get("power_w", power_w.get(job["id"]))} for job in running],
        "waiting": dict(pending.most_common()),
    }


@dataclass
class PowerEstimator:
    """Power of jobs, from the growth of their energy over the last seconds."""

    _readings: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def estimate(self, running: list[dict[str, Any]], now_s: float) -> dict[str, float]:
        """Return the watts of each job that was running at an earlier call, too."""
        metered = [job for job in running if job["energy_method"] != "unmetered"]
        energy_j = {job["id"]: job["energy_j"] for job in metered if job["energy_j"] is not None}
        self._readings = {job: old for job, old in self._readings.items() if job in energy_j}
        power_w = {}
        for job, used_j in energy_j.items():
            readings = self._readings.setdefault(job, [])
            readings.append((now_s, used_j))
            while len(readings) > 2 and now_s - readings[1][0] >= _WINDOW_S:
                del readings[0]
            elapsed_s = now_s - readings[0][0]
            if elapsed_s > 0:
                power_w[job] = max(used_j - readings[0][1], 0.0) / elapsed_s
        return power_w


def format_frame(frame: dict[str, Any]) -> str:
    """Return a frame as text."""
    cluster, running, now_s = frame["cluster"], frame["running"], frame["at_s"]
    parts = [_format_head(cluster, now_s), _format_gpus(cluster, running)]
    if cluster["problem"]:
        parts.append(f"PROBLEM: {sanitize(cluster['problem'])}")
    if running:
        shown = running[:_MOST_JOBS]
        energies = format_energies(shown)
        rows = [_build_row(job, energy) for job, energy in zip(shown, energies, strict=True)]
        more = [f"and {len(running) - _MOST_JOBS} more"] if len(running) > _MOST_JOBS else []
        parts.append("\n".join([*format_columns(_COLUMNS, rows, right=("job", "gpus", "watts")), *more]))
    pending = frame["waiting"]
    lines = [f"{number:>6}  {sanitize(reason) or '-'}" for reason, number in pending.items()]
    parts.append("\n".join([f"{pluralize(sum(pending.values()), 'job')} waiting", *lines]))
    return "\n\n".join(parts)


def _format_head(cluster: dict[str, Any], now_s: float) -> str:
    simulated = " (SIMULATED)" if cluster["simulated"] else ""
    total = sum(node["gpus"] for node in cluster["nodes"])
    free = "" if cluster["gpus_free"] is None else f", {cluster['gpus_free']} free"
    budgets = ", ".join(cluster["budgets"]) or "none"
    return (
        f"{format_clock(now_s)}  {pluralize(total, 'GPU')}{simulated}{free}; jobs: "
        f"{_format_states(cluster['jobs']) or 'none'}\n"
        f"policy {sanitize(cluster['policy'])}; budget {budgets}; energy {cluster['energy_method']}; "
        f"last decision took {1000 * cluster['decision_s']:.0f} ms"
    )


def _format_states(jobs: dict[str, int]) -> str:
    """Return `9 PENDING, 3 RUNNING, 1 FAILED`, with jobs that have ended last."""
    return ", ".join(f"{jobs[state]} {state}" for state in sorted(jobs, key=lambda s: (s not in LIVE, s)))


def _format_gpus(cluster: dict[str, Any], running: list[dict[str, Any]]) -> str:
    """Return a line for each node with a character for each GPU: # is allocated, . is free."""
    rows = []
    for node in cluster["nodes"]:
        of_kind = (job["allocation"]["gpus"] for job in running if job["allocation"]["kind"] == node["kind"])
        used, total = len(set().union(*of_kind)), node["gpus"]
        rows.append((node["name"], node["kind"], f"[{'#' * used}{'.' * (total - used)}]", f"{used}/{total}"))
    return "\n".join(format_columns((), rows)) if rows else "no GPUs"


def _build_row(job: dict[str, Any], energy: str) -> tuple[str, ...]:
    power_w = job["power_w"]
    return (
        job["id"],
        shorten(sanitize(job["name"]), 24),
        str(len(job["allocation"]["gpus"])),
        format_time(job),
        format_progress(job),
        "-" if power_w is None else f"{power_w:.0f} W",
        energy,
    )


def _refresh(client: Client, every_s: float) -> int:
    """Show frame after frame until `q` or Ctrl-C; keep the last one while the service is unreachable."""
    screen = TopScreen(ascii_only="utf" not in (sys.stdout.encoding or "").lower())
    power, frame = PowerEstimator(), fetch_frame(client)
    frame |= _fetch_power(client)
    screen.power_w.extend(frame["history_w"])
    with _full_screen() as read_keys:
        try:
            while True:
                problem = ""
                try:
                    frame = fetch_frame(client, power) | _fetch_power(client)
                    screen.update(frame)
                except Unreachable as error:
                    problem = error.message
                next_s = time.monotonic() + every_s
                while True:
                    _draw(screen.format(frame, *shutil.get_terminal_size(), problem))
                    keys = read_keys(max(next_s - time.monotonic(), 0.0))
                    if not keys:
                        break
                    if not screen.press(keys):
                        return 0
        except KeyboardInterrupt:
            return 0


def _fetch_power(client: Client) -> dict[str, Any]:
    """Return the power of all GPUs, that of the last ten minutes, and the lowest power budget."""
    samples = client.get("/power", {"since": time.time() - 10 * HISTORY, "step": 10})["samples"]
    history_w = [point["power_w"] for point in samples]
    usage = client.get("/budgets")["usage"]
    budgets_w = [one["limit"] for one in usage if one["unit"] == "W" and not one["team"]]
    return {
        "history_w": history_w,
        "power_w": history_w[-1] if history_w else None,
        "budget_w": min(budgets_w, default=None),
    }


def _draw(lines: list[str]) -> None:
    """Write lines over the screen, and clear what is left of earlier ones."""
    text = "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[K\x1b[J"
    sys.stdout.write(f"\x1b[H{text}")
    sys.stdout.flush()


@contextmanager
def _full_screen() -> Iterator[Callable[[float], bytes]]:
    """Use the whole terminal for the block; yields a function that waits for keys, empty: none came."""
    has_keys = sys.stdin.isatty()
    descriptor = sys.stdin.fileno() if has_keys else -1
    before = termios.tcgetattr(descriptor) if has_keys else None

    def read_keys(timeout_s: float) -> bytes:
        if not has_keys:
            time.sleep(timeout_s)
            return b""
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        return os.read(descriptor, 1024) if ready else b""

    try:
        if has_keys:
            tty.setcbreak(descriptor)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        yield read_keys
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
