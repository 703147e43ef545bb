"""Which commands the service has, and which options these."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from wattline.cli.options import at_least_0, at_least_1, number, read_by
from wattline.service.states import STATES
from wattline.units import parse_seconds

PORT = 7717
_Command = Callable[..., argparse.ArgumentParser]


def add_service(command: _Command) -> None:
    """All commands of the service; *command* makes one of a name and a summary."""
    _add_serve(command("serve", "run jobs on the GPUs of this machine, and answer those who submit them"))

    submit = command("submit", "give a job, or a sweep, to the service", splits=True)
    submit.usage = "wattline submit [options] JOB.yaml\n       wattline submit [options] -- COMMAND ..."
    _add_job(submit)
    _add_submit(submit)
    _add_where(submit)

    plan = command("plan", "what would happen to a job that is submitted now", splits=True)
    plan.usage = "wattline plan [options] JOB.yaml\n       wattline plan [options] -- COMMAND ..."
    _add_job(plan)
    _add_where(plan)

    queue = command("queue", "who waits, who runs, and why", aliases=["ps"])
    add = queue.add_argument
    add("--all", action="store_true", help="also who is over")
    add("--state", action="append", type=str.upper, choices=STATES, metavar="S", help="only these (repeat)")
    add("--team", metavar="T", help="only jobs of this team")
    add("--user", metavar="U", help="only jobs of this user")
    _add_where(queue)

    show = command("show", "all that is known of a job")
    _add_one_job(show)
    _add_where(show)

    logs = command("logs", "what a job printed")
    _add_one_job(logs)
    add = logs.add_argument
    add("-f", "--follow", action="store_true", help="go on until the job is over")
    add("--rank", type=at_least_0, default=0, metavar="N", help="of this rank (default 0)")
    add("--attempt", type=at_least_1, metavar="N", help="of this attempt (default the newest)")
    add("--tail", type=at_least_0, metavar="N", help="only the last lines")
    _add_where(logs, json=False)

    for name, summary in (
        ("cancel", "end jobs"),
        ("hold", "keep jobs that wait from starting"),
        ("release", "let jobs that were held start"),
    ):
        some = command(name, summary, module="cancel_hold")
        some.add_argument("jobs", nargs="+", metavar="JOB", help="the number of a job")
        if name == "cancel":
            some.add_argument("-y", "--yes", action="store_true", help="do not ask")
        some.set_defaults(verb=name)
        _add_where(some)

    priority = command("priority", "let a job go before those with less priority")
    _add_one_job(priority)
    priority.add_argument("priority", type=number, metavar="N", help="more goes first (default of jobs 0)")
    _add_where(priority)

    explain = command("explain", "why a job is where it is, and what would change that")
    _add_one_job(explain)
    _add_where(explain)

    _add_budget(command("budget", "how much energy may be used, by whom and when"))

    top = command("top", "GPUs, jobs and budgets, as they are now")
    top.add_argument("--once", action="store_true", help="show it once (default where nobody looks)")
    top.add_argument(
        "--every", type=read_by(parse_seconds), default=2.0, metavar="T", help="look so often (default 2s)"
    )
    _add_where(top)

    _add_token(command("token", "who may ask the service for what"))

    log = command("log", "all decisions of an epoch, for wattline replay")
    log.add_argument("epoch", nargs="?", type=at_least_1, metavar="EPOCH", help="(default the present one)")
    _add_where(log, json=False)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dir",
        metavar="DIR",
        help="where all is kept (default $WATTLINE_DIR, or service in the state folder)",
    )
    add("--gpus", default="auto", metavar="G", help="auto, or simulated:4xa100, which needs none")
    add(
        "--policy",
        default="auto",
        metavar="P",
        help="who goes first, on what (default auto: priority, and powerflow while there is a budget)",
    )
    add("--place", default="tune", metavar="P", help="who gets which GPUs, cores and memory (default tune)")
    add(
        "--models",
        default="library",
        metavar="M",
        help="what jobs do: library, or a file of fit --out (default library)",
    )
    add("--host", default="127.0.0.1", metavar="H", help="where to listen (default 127.0.0.1)")
    add("--port", type=_port, default=PORT, metavar="N", help=f"(default {PORT}; 0: any that is free)")
    add(
        "--rate",
        type=at_least_1,
        default=500,
        metavar="N",
        help="requests of one caller in a second (default 500)",
    )
    add("--seed", type=at_least_0, default=0, metavar="N", help="of everything random (default 0)")


def _add_job(parser: argparse.ArgumentParser) -> None:
    """What to run: a file, or what follows `--`. Options go before what the file says."""
    add = parser.add_argument
    add("file", nargs="?", metavar="JOB.yaml", help="a job file; - is stdin")
    add("--name", metavar="N", help="what people call it")
    add("--gpus", metavar="N", help="2, 1..4, or 8.. for at least 8 (default 1)")
    add("--time", metavar="T", help="how long it may run (4h, 1-12:00:00)")
    add("--team", metavar="T", help="whose budget it uses")
    add("--priority", type=number, metavar="N", help="more goes first (default 0)")
    add("--deadline", metavar="WHEN", help="when it should be over: 2026-11-16T09:00+01:00")
    add("--model", metavar="M", help="what it trains, if that is known: resnet50")
    add("--elastic", action="store_true", help="it goes on from its checkpoint with another number of GPUs")
    add(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="in its environment (repeat); K alone: as it is here",
    )


def _add_submit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--hold", action="store_true", help="do not start it before wattline release")
    add("--dry-run", action="store_true", help="show what would happen, as wattline plan does")
    add("-f", "--follow", action="store_true", help="show what it prints until it is over")
    add("--wait", action="store_true", help="until it is over; its exit code is ours")
    add("--timeout", type=read_by(parse_seconds), metavar="T", help="wait no longer, and end with 124")


def _add_budget(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    _add_where(actions.add_parser("show", allow_abbrev=False, help="the budgets in force"))
    change = actions.add_parser("set", allow_abbrev=False, help="hold these, instead of those before")
    change.add_argument(
        "budgets", nargs="*", metavar="B", help="12kW, 300kWh/day, 5GJ, eta=0.5; TEAM:B for one team"
    )
    change.add_argument("--clear", action="store_true", help="energy is not limited any more")
    _add_where(change)


def _add_token(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    new = actions.add_parser("add", allow_abbrev=False, help="make one; it is shown this once")
    new.add_argument("name", metavar="NAME", help="whom it is for")
    new.add_argument(
        "--role",
        required=True,
        choices=("viewer", "user", "operator"),
        help="may look; may submit, and change what is theirs; may do anything",
    )
    new.add_argument("--user", metavar="U", help="as whom their jobs run (default as the service does)")
    new.add_argument(
        "--lasts", type=read_by(parse_seconds), metavar="T", help="until it expires (default it does not)"
    )
    _add_where(new)
    _add_where(actions.add_parser("list", allow_abbrev=False, help="whose there are"))
    gone = actions.add_parser("revoke", allow_abbrev=False, help="forget all tokens of a name")
    gone.add_argument("name", metavar="NAME", help="whose")
    _add_where(gone)


def _add_one_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="the number of a job")


def _add_where(parser: argparse.ArgumentParser, json: bool = True) -> None:
    """Where the service is."""
    parser.add_argument(
        "--url", metavar="URL", help="the service (default $WATTLINE_URL, or what runs in --dir)"
    )
    parser.add_argument("--dir", metavar="DIR", help="the folder of the service (default $WATTLINE_DIR)")
    if json:
        parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, expected 0 to 65535")
    return int(text)
