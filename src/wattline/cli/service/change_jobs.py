"""Request that changes several jobs at once, shared by `cancel`, `hold`, `release` and `priority`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from wattline.cli.main import exit_code
from wattline.cli.output import confirm, notify, print_error, print_json
from wattline.cli.service.connect import add_connection_arguments
from wattline.cli.service.job_filters import add_filter_arguments
from wattline.cli.service.job_text import pluralize, sanitize
from wattline.errors import ConfigError, Conflict, NotAllowed, NotFound, WattlineError
from wattline.service.client import Client

Answer = dict[str, Any]
_FILTERS = ("sweep", "name", "user", "team", "state")
_LISTED = 5  # jobs named in a question
_PRINTED = 100  # jobs with a line of their own; the answer has no more
_JOB = re.compile(r"[0-9]{1,12}(\.\.([0-9]{1,12})?)?")
_ERRORS: dict[str, type[WattlineError]] = {"not_found": NotFound, "not_allowed": NotAllowed}
_PARTICIPLES = {"cancel": "cancelled", "hold": "held", "release": "released", "priority": "given priority"}


def add_selection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the filters that select jobs, `-y`, `--dry-run`, and the service."""
    add = parser.add_argument
    add("--sweep", metavar="S", help="jobs of this sweep, named by its first job")
    add("--name", metavar="GLOB", help="jobs with this name; *, ? and [a-c] as in file names")
    add_filter_arguments(parser, "jobs that have not ended")
    add("--all", action="store_true", help="all jobs that have not ended; as a user, your own")
    add("-y", "--yes", action="store_true", help="do not ask")
    add("--dry-run", action="store_true", help="show the jobs that would be changed")
    add_connection_arguments(parser)


def add_jobs_argument(parser: argparse.ArgumentParser) -> None:
    """Add the ids of the jobs."""
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help="job id, list or range: 12, 12,14 or 1..500; filters limit it"
    )


def build_selection(args: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """Return the selection of a request; *words* are ids, lists and ranges of jobs."""
    jobs = [one for word in words for one in word.split(",")]
    for one in jobs:
        if not _JOB.fullmatch(one):
            expected = "expected a number, or a range such as 1..500"
            raise NotFound(f"{one!r} is not a job id, {expected}", "wattline queue --all")
    filters = {name: getattr(args, name) for name in _FILTERS if getattr(args, name)}
    if not (jobs or filters or args.all):
        raise ConfigError(
            "no jobs were named, expected ids, a range, a filter or --all",
            "12 14, or 1..500, or --sweep 12, or --name 'lr*', or --all",
        )
    if filters.get("sweep") and not str(filters["sweep"]).isdecimal():
        raise NotFound(f"{filters['sweep']!r} is not a sweep, expected the id of its first job")
    return {"jobs": list(dict.fromkeys(jobs)), **filters, **({"all": True} if args.all else {})}


def change_jobs(
    client: Client,
    args: argparse.Namespace,
    words: Sequence[str],
    action: str,
    describe: Callable[[dict[str, Any]], str],
    priority: float | None = None,
) -> int:
    """Change all jobs that *args* and *words* select by one request; return the exit code.

    Asks first if jobs are cancelled, or selected by a filter or a range.
    """
    select = build_selection(args, words)
    named = set(select) == {"jobs"} and all(".." not in job for job in select["jobs"])
    request: dict[str, Any] = {"action": action, "select": select}
    if priority is not None:
        request["priority"] = priority
    if args.dry_run or not (args.yes or (named and action != "cancel")):
        answer = client.post("/jobs/actions", {**request, "dry_run": True}, repeat=True)
        if args.dry_run:
            return _print_answer(answer, args.json, named, _describe_plan)
        _raise_single(answer, named)
        if answer["changed"]:
            if not confirm(f"{_describe_plan(answer)}?", f"-y {_spell_third_person(action)} without asking"):
                notify(f"no job was {_PARTICIPLES[action].split()[0]}")
                return 1
            if not select["jobs"]:  # jobs that were submitted since are not part of what was confirmed
                select["jobs"] = [f"0..{max(map(int, answer['ids']))}"]
    answer = client.post("/jobs/actions", request, repeat=True)
    _raise_single(answer, named)
    return _print_answer(answer, args.json, named, describe)


def _raise_single(answer: Answer, named: bool) -> None:
    """Raise the error if the only job that was named is refused."""
    if named and answer["matched"] == 1 and answer["errors"]:
        raise _build_error(answer["errors"][0])


def _build_error(error: dict[str, str]) -> WattlineError:
    return _ERRORS.get(error["code"], Conflict)(error["message"], error["hint"])


def _print_answer(answer: Answer, in_json: bool, named: bool, describe: Callable[[Any], str]) -> int:
    if in_json:
        print_json(answer)
    elif answer["dry_run"]:
        print(_describe_plan(answer))
    elif named and answer["matched"] <= _PRINTED:
        for job in answer["jobs"]:
            print(job["id"])
            notify(describe(job))
    else:
        print(_summarize(answer))
    if not in_json:
        for problem in answer["errors"][: _PRINTED if named else _LISTED]:
            print_error(_build_error(problem), False)
    if named:
        return exit_code(_build_error(answer["errors"][0])) if answer["errors"] else 0
    return 1 if answer["refused"] and not (answer["changed"] or answer["unchanged"]) else 0


def _spell_third_person(action: str) -> str:
    return {"priority": "sets it"}.get(action, f"{action}s")


def _describe_plan(answer: Answer) -> str:
    """Return what an action would change: `cancel 2 jobs: 3 (train, PENDING), 4 (train, RUNNING)`."""
    changing = set(answer["ids"])
    jobs = [job for job in answer["jobs"] if job["id"] in changing][:_LISTED]
    names = ", ".join(f"{job['id']} ({sanitize(job['name'])}, {job['state']})" for job in jobs)
    more = f" and {answer['changed'] - len(jobs)} more" if answer["changed"] > len(jobs) else ""
    verb = {"priority": "change the priority of"}.get(answer["action"], answer["action"])
    return f"{verb} {pluralize(answer['changed'], 'job')}{f': {names}{more}' if jobs else ''}"


def _summarize(answer: Answer) -> str:
    """Return `5960 jobs cancelled, 2 unchanged, 3 refused (2 RUNNING, 1 not_owner)`."""
    if not answer["matched"]:
        return "no job matches"
    parts = [f"{pluralize(answer['changed'], 'job')} {_PARTICIPLES[answer['action']]}"]
    parts += [f"{answer['unchanged']} unchanged"] if answer["unchanged"] else []
    if answer["refused"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in answer["reasons"].items())
        parts.append(f"{answer['refused']} refused ({reasons})")
    return ", ".join(parts)
