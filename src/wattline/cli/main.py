"""Entry point of the command line: the table of commands, the parser and the exit codes.

Only the module of the typed command is imported, so `wattline --help` needs neither numpy nor numba.
Data goes to stdout, everything else to stderr.

Exit codes: 0 ok, 1 failure, 2 usage or bad input, 3 not found, 4 infeasible, 5 service unreachable,
124 timeout, 130 interrupted; `submit --wait` and `measure` return the exit code of the job.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from wattline import __version__
from wattline.cli.output import print_error, show_log_messages
from wattline.errors import (
    ConfigError,
    Conflict,
    InputError,
    NotAllowed,
    NotFound,
    Unreachable,
    Unsatisfiable,
    WattlineError,
    did_you_mean,
)

INFEASIBLE = 4
"""Exit code for a job that can never run."""


class Command(NamedTuple):
    """One command: its module below `wattline.cli` and its line in `wattline --help`.

    The module has `add_arguments(parser)` and `run(args)`, which returns the exit code.
    """

    module: str
    summary: str
    aliases: tuple[str, ...] = ()


COMMANDS = {
    "simulate": Command("simulation.simulate", "simulate one policy on a trace"),
    "compare": Command("simulation.compare", "simulate several policies on one trace and compare them"),
    "whatif": Command("simulation.whatif", "show what other policies would have done with recorded jobs"),
    "anonymise": Command(
        "simulation.anonymise", "write a trace that can be shared, without names", ("anonymize",)
    ),
    "reproduce": Command(
        "simulation.reproduce", "run the experiments of five papers and compare with their claims"
    ),
    "data": Command("simulation.data", "list and download the public data of these papers"),
    "report": Command("simulation.report", "report job times and energy from run logs"),
    "replay": Command("simulation.replay", "repeat the decisions of a run log and check that they are equal"),
    "shadow": Command("simulation.shadow", "watch a live Slurm and report what a policy would have saved"),
    "fit": Command("models.fit", "fit models of speed and power to a table of measurements"),
    "profile": Command("models.profile", "measure how the speed of a command depends on cores and memory"),
    "predict": Command("models.predict", "predict speed, power and energy of a job, and what a cap saves"),
    "advise": Command("models.advise", "recommend CPU cores and memory per GPU for jobs"),
    "measure": Command("models.measure", "run a command and report its time and energy"),
    "doctor": Command("models.doctor", "check which meters, GPU limits and tools work on this machine"),
    "optimize": Command(
        "simulation.optimize", "compute one plan for jobs and nodes described in a JSON file"
    ),
    "library": Command("models.library", "list the measured workloads and devices"),
    "tune": Command("models.tune", "show, reset or replay the batch sizes tried for recurring jobs"),
    "fuse": Command("models.fuse", "measure what training several jobs as one array would gain"),
    "serve": Command("service.serve", "run the scheduler service on the GPUs of this machine or of Slurm"),
    "submit": Command("service.submit", "submit a job or a sweep"),
    "emit": Command("service.emit", "print a job file as a batch script for Slurm or a Kubernetes manifest"),
    "plan": Command("service.plan", "show when and where a job would run, without submitting it"),
    "queue": Command("service.queue", "list pending and running jobs", ("ps",)),
    "show": Command("service.show", "show all details of a job"),
    "logs": Command("service.logs", "print the output of a job"),
    "cancel": Command("service.cancel", "cancel pending or running jobs"),
    "hold": Command("service.hold", "prevent pending jobs from starting"),
    "release": Command("service.release", "allow held jobs to start"),
    "priority": Command("service.priority", "change the priority of a job"),
    "explain": Command("service.explain", "explain the state of a job and what would change it"),
    "budget": Command("service.budget", "show or set the energy budgets"),
    "bill": Command("service.bill", "print the energy, money and CO₂ of a month, and what was saved"),
    "quota": Command("service.quota", "show or set quotas and shares of teams and users"),
    "audit": Command("service.audit", "print what operators did"),
    "top": Command("service.top", "show GPUs, running jobs and budgets, refreshed continuously"),
    "power": Command("service.power", "show the power of all GPUs over time"),
    "prune": Command("service.prune", "delete or archive old jobs, logs and events of the service"),
    "backup": Command("service.backup", "copy the state of a service, which may run, to a new folder"),
    "token": Command("service.token", "create, list, rotate and revoke access tokens of the service"),
    "runlog": Command("service.runlog", "print the decisions of the service, for wattline replay"),
    "policies": Command(
        "simulation.policies", "list the stages of policies and the placers, with their knobs"
    ),
    "schema": Command("schema", "print the JSON Schema of a job file, for editors"),
    "completion": Command("completion", "print a script that completes commands in bash, zsh or fish"),
    "man": Command("man", "print the manual page"),
    "compile": Command("compile", "compile the kernels of the scheduler once, at installation"),
    "version": Command("version", "print the versions of wattline and of the packages it uses"),
}


_RENAMED = {
    "log": "wattline logs JOB prints the output of a job; wattline runlog the decisions of the service"
}


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises `ConfigError`, so that `--json` covers usage errors too.

    *module* adds its arguments when the parser is first used. With *command_after_dashes*, the words
    after `--` become `args.words`, which is None without a `--`.
    """

    module = ""
    command_after_dashes = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse *args*; what follows `--` is kept from argparse, which would drop the `--`."""
        self._load_arguments()
        if not self.command_after_dashes or args is None:
            parsed, unknown = super().parse_known_args(args, namespace)
        else:
            words = list(args)
            end = words.index("--") if "--" in words else len(words)
            parsed, unknown = super().parse_known_args(words[:end], namespace)
            parsed.words = words[end + 1 :] if end < len(words) else None
        if unknown:  # raised here and not by the parser of `wattline`, so that the hint names the command
            self._refuse(unknown)
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise for a value that is no choice, such as an unknown command, and name the nearest."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if not isinstance(action, argparse._SubParsersAction):
            option = "/".join(action.option_strings) or str(action.metavar)
            message = f"{option} is {value!r}, expected one of {', '.join(names)}"
            raise ConfigError(message, did_you_mean(str(value), names))
        noun = "command" if action.metavar == "COMMAND" else "action"
        message = f"{self.prog} has no {noun} {str(value)!r}"
        if noun == "action":
            message += f", expected one of {', '.join(names)}"
        raise ConfigError(
            message, _RENAMED.get(str(value)) or did_you_mean(value, names) or f"{self.prog} --help"
        )

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        message = f"unrecognized arguments: {' '.join(unknown)}"
        options = [text for action in self._actions for text in action.option_strings]
        nearest = did_you_mean(unknown[0].partition("=")[0], options) if unknown[0].startswith("--") else ""
        if nearest:
            raise ConfigError(message, f"{nearest} {self.prog} --help lists all")
        if self.command_after_dashes and not unknown[0].startswith("-"):
            raise ConfigError(message, hint=f"put the command after --: {self.prog} [options] -- COMMAND ...")
        self.error(message)

    def _load_arguments(self) -> None:
        if self.module:
            command = import_module(f"wattline.cli.{self.module}")
            self.module = ""
            command.add_arguments(self)
            self.set_defaults(run=command.run)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise ConfigError(message, hint=f"{self.prog} --help")


def build_parser() -> CommandParser:
    """Return the parser of the whole command line."""
    parser = CommandParser(
        prog="wattline",
        description="Decides when, where and at what power deep-learning training jobs run on a GPU cluster.",
        epilog="Example:  wattline compare --trace jobs.csv --cluster 16xv100:8 --policies all",
    )
    parser.add_argument("--version", action="version", version=f"wattline {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, command in COMMANDS.items():
        description = command.summary[0].upper() + command.summary[1:] + "."
        added = commands.add_parser(
            name, aliases=list(command.aliases), help=command.summary, description=description
        )
        added.module = command.module
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = words[: words.index("--")] if "--" in words else words  # the rest belongs to a job's command
    in_json = "--json" in own
    show_log_messages()
    try:
        args = build_parser().parse_args(words)
        code: int = args.run(args)
        return code
    except WattlineError as error:
        print_error(error, in_json)
        return exit_code(error)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: not worth a message
        return 141
    except OSError as error:
        print_error(WattlineError(f"{error.filename or 'output'}: {error.strerror}"), in_json)
        return 1
    except Exception as error:
        if not in_json:
            raise  # a bug: the traceback belongs into the bug report
        print_error(
            WattlineError(f"{type(error).__name__}: {error}", "this is a bug: run without --json"), True
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def exit_code(error: WattlineError) -> int:
    """Return the exit code of a command that failed with *error*."""
    codes = (
        *((NotFound, 3), (NotAllowed, 1), (Conflict, 1), (Unsatisfiable, INFEASIBLE)),
        *((InputError, 2), (Unreachable, 5)),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), 1)
