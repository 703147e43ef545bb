"""`wattline top`: GPUs, who runs on them and who waits for them, as they are now."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from wattline.cli.output import show_json
from wattline.cli.service.connect import reach
from wattline.cli.service.job_text import LIVE, clean, clock, count, cut, done, energy, lasts
from wattline.errors import Unreachable
from wattline.grid import grid
from wattline.service.client import Client

_SHOWN = 40  # jobs that run, at most
_TOGETHER_S = 10.0  # watts are the energy of so long


def run(args: argparse.Namespace) -> int:
    """One frame, or one after the other."""
    client = reach(args)
    if args.json or args.once or not sys.stdout.isatty():
        frame = look(client)
        if args.json:
            show_json(frame)
        else:
            print(text(frame))
        return 0
    return _live(client, max(args.every, 0.2))


def look(client: Client, watts: Watts | None = None) -> dict[str, Any]:
    """What a frame tells: the cluster, who runs, and how many wait for which reason."""
    cluster = client.get("/cluster")
    jobs = client.jobs({"state": list(LIVE)})
    running = [job for job in jobs if job["state"] == "RUNNING"]
    waiting = Counter(job["reason"] for job in jobs if job["state"] == "PENDING")
    now_s = time.time()
    drawn = {} if watts is None else watts.look(running, time.monotonic())
    return {
        "at_s": now_s,
        "cluster": cluster,
        "running": [{**job, "power_w": job.get("power_w", drawn.get(job["id"]))} for job in running],
        "waiting": dict(waiting.most_common()),
    }


@dataclass
class Watts:
    """What jobs draw, from what they had used a moment ago."""

    _seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def look(self, running: list[dict[str, Any]], now_s: float) -> dict[str, float]:
        """Watts by job, of those who were seen before."""
        metered = [job for job in running if job["energy_method"] != "unmetered"]
        known = {job["id"]: job["energy_j"] for job in metered if job["energy_j"] is not None}
        self._seen = {job: seen for job, seen in self._seen.items() if job in known}
        found = {}
        for job, energy_j in known.items():
            seen = self._seen.setdefault(job, [])
            seen.append((now_s, energy_j))
            while len(seen) > 2 and now_s - seen[1][0] >= _TOGETHER_S:
                del seen[0]
            past_s = now_s - seen[0][0]
            if past_s > 0:
                found[job] = max(energy_j - seen[0][1], 0.0) / past_s
        return found


def text(frame: dict[str, Any]) -> str:
    """A frame for people."""
    cluster, running, now_s = frame["cluster"], frame["running"], frame["at_s"]
    parts = [_head(cluster, frame["at_s"]), _gpus(cluster, running)]
    if cluster["problem"]:
        parts.append(f"PROBLEM: {clean(cluster['problem'])}")
    if running:
        names = ("job", "name", "gpus", "time", "progress", "watts", "energy")
        rows = [names, *(_row(job, now_s) for job in running[:_SHOWN])]
        more = [f"and {len(running) - _SHOWN} more"] if len(running) > _SHOWN else []
        parts.append("\n".join([*grid(rows, lambda column: ">" if column in (0, 2, 5) else "<"), *more]))
    waiting = frame["waiting"]
    lines = [f"{number:>6}  {clean(why) or '-'}" for why, number in waiting.items()]
    parts.append("\n".join([f"{count(sum(waiting.values()), 'job')} waiting", *lines]))
    return "\n\n".join(parts)


def _head(cluster: dict[str, Any], now_s: float) -> str:
    simulated = " (SIMULATED)" if cluster["simulated"] else ""
    total = sum(node["gpus"] for node in cluster["nodes"])
    free = "" if cluster["gpus_free"] is None else f", {cluster['gpus_free']} free"
    budgets = ", ".join(cluster["budgets"]) or "none"
    return (
        f"{clock(now_s)}  {count(total, 'GPU')}{simulated}{free}; jobs: "
        f"{_states(cluster['jobs']) or 'none'}\n"
        f"policy {clean(cluster['policy'])}; budget {budgets}; energy by {cluster['energy_method']}; "
        f"last decision took {1000 * cluster['decision_s']:.0f} ms"
    )


def _states(jobs: dict[str, int]) -> str:
    """`3 RUNNING, 9 PENDING`, who lives first."""
    return ", ".join(f"{jobs[state]} {state}" for state in sorted(jobs, key=lambda s: (s not in LIVE, s)))


def _gpus(cluster: dict[str, Any], running: list[dict[str, Any]]) -> str:
    """A letter for each GPU: # works, . is free."""
    rows = []
    for node in cluster["nodes"]:
        of_kind = (job["given"]["gpus"] for job in running if job["given"]["kind"] == node["kind"])
        used, has = len(set().union(*of_kind)), node["gpus"]
        rows.append((node["name"], node["kind"], f"[{'#' * used}{'.' * (has - used)}]", f"{used}/{has}"))
    return "\n".join(grid(rows, lambda column: "<")) if rows else "no GPUs"


def _row(job: dict[str, Any], now_s: float) -> tuple[str, ...]:
    watts = job["power_w"]
    return (
        job["id"],
        cut(clean(job["name"]), 24),
        str(len(job["given"]["gpus"])),
        lasts(job, now_s),
        done(job),
        "-" if watts is None else f"{watts:.0f} W",
        energy(job),
    )


def _live(client: Client, every_s: float) -> int:
    """Frames, until somebody presses Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    watts, last = Watts(), ""
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                problem = ""
                try:
                    last = text(look(client, watts))
                except Unreachable as error:
                    problem = f"\n\n{error.message}"
                live.update(Text(last + problem, no_wrap=True, overflow="ellipsis"), refresh=True)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return 0
