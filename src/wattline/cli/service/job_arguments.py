"""Job of `wattline submit` and `wattline plan`: from a job file or a command to the body of the request.

The file is read and checked here, so that errors name its lines. Options override the file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import number, positive_int
from wattline.cli.output import notify
from wattline.errors import ConfigError, NotFound, Unsatisfiable

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

_COPIED = ("name", "team", "priority", "deadline", "model")


def add_job_arguments(parser: CommandParser) -> None:
    """Add the job file, the command after `--`, and the options that override the file."""
    command = parser.prog
    indent = " " * len("usage: ")
    parser.usage = (
        f"{command} [options] JOB.yaml\n{indent}{command} [options] -- COMMAND ...\n"
        f"{indent}{command} [options] --from-sbatch SCRIPT [-- ARGUMENTS ...]"
    )
    parser.command_after_dashes = True
    add = parser.add_argument
    add("file", nargs="?", metavar="JOB.yaml", help="job file; - is stdin")
    add("--from-sbatch", metavar="SCRIPT", help="batch script of Slurm: its #SBATCH lines describe the job")
    add("--name", metavar="N", help="name of the job (default: that of its script or program)")
    add("--gpus", metavar="N", help="number of GPUs: 2, 1..4, or 8.. for at least 8 (default 1)")
    add("--time", metavar="T", help="time limit (4h, 1-12:00:00)")
    add("--team", metavar="T", help="team that the job is charged to")
    add("--priority", type=number, metavar="N", help="jobs with a higher priority start first (default 0)")
    add("--deadline", metavar="WHEN", help="time by which it should end: 2026-11-16T09:00+01:00")
    add("--model", metavar="M", help="model that it trains, to predict its speed and power: resnet50")
    add(
        "--depends-on",
        action="append",
        default=[],
        metavar="JOB",
        help="start after this job has succeeded: 12, 12:end for any end, sweep:12, or a name (repeatable)",
    )
    add("--max-parallel", type=positive_int, metavar="N", help="run at most N jobs of the sweep at once")
    add("--elastic", action="store_true", help="may resume from its checkpoint with another number of GPUs")
    add(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="environment variable of the job (repeatable); K alone copies it from here",
    )


@dataclass(frozen=True)
class JobDocument:
    """Job file as JSON, the number of jobs in it, and the text it was read from."""

    document: dict[str, Any]
    count: int
    source: str  # name of the file; empty: the job is a command
    text: str
    options: tuple[str, ...]  # fields that options have set, such as `resources.gpus`

    def locate(self, field: str) -> str:
        """Return the option or the line of the file that sets a field; empty: none does."""
        if field in self.options:
            return f"--{field.rpartition('.')[2]}"
        from wattline.jobfile.yaml_reader import read_yaml

        path = tuple(field.split("."))
        return f"{self.source}:{read_yaml(self.text, self.source).line_of(path)}" if self.source else ""

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Name the option or line in the message of an `Unsatisfiable` that the service raises."""
        try:
            yield
        except Unsatisfiable as error:
            place = self.locate(error.field)
            message = f"{place}: {error.message}" if place else error.message
            raise Unsatisfiable(message, error.hint, error.field) from None


def read_job_document(args: argparse.Namespace) -> JobDocument:
    """Return the job that *args* describe; errors name the line of the file."""
    if args.from_sbatch is not None and args.file is not None:
        raise ConfigError(
            f"both --from-sbatch {args.from_sbatch} and the job file {args.file} were given, expected one"
        )
    if args.from_sbatch is None and (args.file is None) == (args.words is None):
        problem = "both a job file and a command were given" if args.file else "no job was given"
        raise ConfigError(
            f"{problem}, expected a job file, or a command after --",
            "wattline submit job.yaml, or wattline submit --gpus 2 -- python train.py",
        )
    try:
        from wattline.jobfile import expand, read_document, read_job
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic", "yaml"):
            raise
        raise ConfigError(f"{error.name} is not installed", 'pip install "wattline[service]"') from None
    source = text = ""
    if args.from_sbatch is not None:
        document = _read_script(args)
    elif args.words is None:
        source = "stdin" if args.file == "-" else args.file
        text = _read_text(args.file, source)
        document = read_job(text, source).model_dump(mode="json", exclude_unset=True)
    else:
        document = {"run": [_escape(word) for word in args.words]}
    options = _read_options(args, document)
    merged = {**document, **options}
    job = read_document(merged, "submit")
    names = [f"resources.{name}" for name in ("gpus", "time") if getattr(args, name) is not None]
    return JobDocument({"workdir": os.getcwd(), **merged}, len(expand(job)), source, text, (*options, *names))


def _read_script(args: argparse.Namespace) -> dict[str, Any]:
    """Return the document of a batch script, and print what of it has no effect."""
    from wattline.jobfile.sbatch_reader import read_sbatch

    path = os.path.abspath(args.from_sbatch)
    script = read_sbatch(_read_text(path, args.from_sbatch), args.from_sbatch, path, args.words or ())
    for notice in script.notices:
        notify(notice)
    if script.held:
        args.hold = True
    workdir = os.path.abspath(script.document.get("workdir", os.getcwd()))
    return {**script.document, "workdir": workdir}


def _read_text(name: str, source: str) -> str:
    from wattline.jobfile.schema import LIMIT_BYTES

    try:
        if name == "-":
            text = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        else:
            with open(name, "rb") as file:
                text = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{source}: no such file", "to submit a command: wattline submit -- CMD") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
    if len(text) > LIMIT_BYTES:
        raise ConfigError(f"{source}: longer than {LIMIT_BYTES // 2**20} MiB, the limit of a job file")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text, expected YAML") from None


def _read_options(args: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """Return the options as fields of a job file."""
    fields = {name: getattr(args, name) for name in _COPIED if getattr(args, name) is not None}
    if (args.words is not None or args.from_sbatch is not None) and args.name is not None:
        fields["name"] = _escape(args.name)
    if args.elastic:
        fields["elastic"] = True
    if args.depends_on:
        fields["depends_on"] = [one for text in args.depends_on for one in text.split(",")]
    if args.max_parallel is not None:
        fields["max_parallel"] = args.max_parallel
    resources = {"gpus": _parse_gpus(args.gpus), "time": args.time}
    set_resources = {name: value for name, value in resources.items() if value is not None}
    if set_resources:
        fields["resources"] = {**document.get("resources", {}), **set_resources}
    if args.env:
        fields["env"] = {**document.get("env", {}), **dict(map(_parse_variable, args.env))}
    return fields


def _parse_gpus(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else text


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise ConfigError(f"--env {name}: no such variable in this environment", f"--env {name}=VALUE")
        value = os.environ[name]
    return name, _escape(value)


def _escape(text: str) -> str:
    """Escape `$`: the shell has already expanded variables, and `${name}` means no matrix value here."""
    return text.replace("$", "$$")
