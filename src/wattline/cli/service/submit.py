"""`wattline submit`: give a job, or a sweep, to the service; wait for it if that is wanted."""

from __future__ import annotations

import argparse
import threading
import uuid
from functools import partial
from typing import Any

from wattline.cli.output import show_json, tell
from wattline.cli.service.connect import reach
from wattline.cli.service.job_arguments import read_request
from wattline.cli.service.job_text import clean, energy, lasts, totals, why
from wattline.cli.service.logs import follow
from wattline.cli.service.plan import show_plan
from wattline.cli.service.wait import code_of, first_code, wait_for
from wattline.errors import ConfigError, WattlineError
from wattline.service.client import Client

TOO_LATE = 124
_MOST_FOLLOWED = 32
_DRAIN_S = 5.0
_show = threading.Lock()


def run(args: argparse.Namespace) -> int:
    """Submit, print the ids, and wait as told."""
    waits = args.wait or args.follow
    if args.timeout is not None and not waits:
        raise ConfigError("--timeout says how long to wait", "add --wait, or -f")
    request = read_request(args)
    if args.follow and request.count > _MOST_FOLLOWED:
        raise ConfigError(f"{request.count} jobs are too many to follow", "use --wait, and wattline logs")
    client = reach(args)
    if args.dry_run:
        return show_plan(client, request, args.json)
    key = uuid.uuid4().hex
    jobs: list[dict[str, Any]] = client.post("/jobs", request.document, {"held": args.hold}, key)["jobs"]
    tell(_taken(jobs))
    if not (args.follow or args.json):
        print("\n".join(job["id"] for job in jobs), flush=True)
    code = 0
    if waits:
        jobs, code = _wait(client, jobs, args)
    if args.json:
        show_json({"jobs": jobs})
    return code


def _taken(jobs: list[dict[str, Any]]) -> str:
    first, last = jobs[0], jobs[-1]
    what = f"job {first['id']}" if len(jobs) == 1 else f"{len(jobs)} jobs, {first['id']} to {last['id']}"
    state = " and held" if first["held"] else ""
    return f"{what} ({clean(first['name'])}) submitted{state}"


def _wait(
    client: Client, jobs: list[dict[str, Any]], args: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    threads = _follow(client, jobs, args.json) if args.follow else []
    try:
        now, over = wait_for(client, jobs, args.timeout, quiet=args.follow)
    except KeyboardInterrupt:
        tell(f"{'it goes' if len(jobs) == 1 else 'they go'} on; wattline cancel ends jobs")
        raise
    if not over:
        tell(f"not over after {args.timeout:g} s, and goes on: {totals(now)}")
        return now, TOO_LATE
    for thread in threads:
        thread.join(_DRAIN_S)
    for job in now if len(now) == 1 else [job for job in now if code_of(job)]:
        tell(_ended(job))
    if len(now) > 1:
        tell(totals(now))
    return now, first_code(now)


def _ended(job: dict[str, Any]) -> str:
    said = f": {why(job)}" if code_of(job) and why(job) else ""
    return f"job {job['id']} {job['state']}, {lasts(job, 0.0)}, {energy(job)}{said}"


def _follow(client: Client, jobs: list[dict[str, Any]], on_stderr: bool) -> list[threading.Thread]:
    """Show what jobs print, with their ids where there are several."""
    threads = []
    for job in jobs:
        prefix = f"{job['id']}: " if len(jobs) > 1 else ""
        work = partial(_follow_one, client, job["id"], prefix, on_stderr)
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
    return threads


def _follow_one(client: Client, job: str, prefix: str, on_stderr: bool) -> None:
    def show(line: str) -> None:
        with _show:
            if on_stderr:
                tell(prefix + line)
            else:
                print(prefix + line, flush=True)

    try:
        follow(client, job, {}, show)
    except WattlineError as error:
        tell(f"the log of job {job} cannot be followed: {error.message}")
    except BrokenPipeError:
        pass  # whoever read has left; we still wait
