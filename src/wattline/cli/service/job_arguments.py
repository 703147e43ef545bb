"""From `wattline submit JOB.yaml` or `wattline submit -- COMMAND` to what the service is asked.

The file is read and checked here, so that complaints name its lines. Options go before what it says.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattline.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from wattline.jobfile import JobFile

_SIMPLE = ("name", "team", "priority", "deadline", "model")


@dataclass(frozen=True)
class Request:
    """A job file as JSON, and how many jobs it makes."""

    document: dict[str, Any]
    count: int


def read_request(args: argparse.Namespace) -> Request:
    """What *args* describe; an error says what is wrong with it, and in which line."""
    if (args.file is None) == (args.words is None):
        expected = "expected a job file, or a command after --"
        raise ConfigError(
            f"there are a file and a command, {expected}" if args.file else f"there is no job, {expected}",
            "wattline submit job.yaml, or wattline submit --gpus 2 -- python train.py",
        )
    try:
        from wattline.jobfile import expand, read_document
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic", "yaml"):
            raise
        raise ConfigError(f"{error.name} is not installed", 'pip install "wattline[service]"') from None
    if args.words is None:
        document = _read_file(args.file).model_dump(mode="json", exclude_unset=True)
    else:
        document = {"run": [_literal(word) for word in args.words]}
    changed = {**document, **_options(args, document)}
    job = read_document(changed, "submit")
    return Request({"workdir": os.getcwd(), **changed}, len(expand(job)))


def _read_file(name: str) -> JobFile:
    from wattline.jobfile import read_job
    from wattline.jobfile.schema import LIMIT_BYTES

    where = "stdin" if name == "-" else name
    try:
        if name == "-":
            text = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        else:
            with open(name, "rb") as file:
                text = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{where}: no such file", "a command goes after --: wattline submit -- CMD") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    if len(text) > LIMIT_BYTES:
        raise ConfigError(f"{where}: longer than {LIMIT_BYTES // 2**20} MiB, expected a job file")
    try:
        return read_job(text.decode("utf-8-sig"), where)
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}:{line}: not text in UTF-8, expected YAML") from None


def _options(args: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """What the options say, as a job file would."""
    found = {name: getattr(args, name) for name in _SIMPLE if getattr(args, name) is not None}
    if args.words is not None and args.name is not None:
        found["name"] = _literal(args.name)
    if args.elastic:
        found["elastic"] = True
    resources = {"gpus": _gpus(args.gpus), "time": args.time}
    given = {name: value for name, value in resources.items() if value is not None}
    if given:
        found["resources"] = {**document.get("resources", {}), **given}
    if args.env:
        found["env"] = {**document.get("env", {}), **dict(map(_variable, args.env))}
    return found


def _gpus(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else text


def _variable(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not given:
        if name not in os.environ:
            raise ConfigError(f"--env {name}: there is no such variable here", f"--env {name}=VALUE")
        value = os.environ[name]
    return name, _literal(value)


def _literal(text: str) -> str:
    """What the shell has left is meant as it is: no `${name}` of a matrix."""
    return text.replace("$", "$$")
