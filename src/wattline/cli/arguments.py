"""Argument types and arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser


def with_unit(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Return an argparse type that parses a quantity with its unit by *parse*."""

    def parse_argument(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def fraction(text: str) -> float:
    """Parse a number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def non_negative_int(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--html` and `--json`."""
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page with plots")
    add_json_argument(parser)


def add_actions(parser: CommandParser) -> argparse._SubParsersAction[CommandParser]:
    """Add an ACTION to a command, as in `wattline budget set`; its name becomes `args.action`."""
    return parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=type(parser), action=_DescribedParsers
    )


class _DescribedParsers(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Parsers of actions, each described in its own `--help` by its line in that of the command."""

    def add_parser(self, name: str, **options: Any) -> Any:
        summary = str(options.get("help", ""))
        options.setdefault("description", f"{summary[:1].upper()}{summary[1:]}.")
        return super().add_parser(name, **options)
