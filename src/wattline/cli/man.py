"""`wattline man`: print the manual page, generated from the commands.

wattline man > /usr/local/share/man/man1/wattline.1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from wattline import __version__
from wattline.cli.command_list import CommandEntry, OptionEntry, list_commands
from wattline.cli.main import build_parser

_EXIT_CODES = (
    ("0", "success"),
    ("1", "failure"),
    ("2", "wrong usage or bad input"),
    ("3", "not found"),
    ("4", "the job can never run"),
    ("5", "no service answers"),
    ("124", "timeout"),
)
_VARIABLES = (
    ("WATTLINE_URL, WATTLINE_DIR", "address of the service, or its directory"),
    ("WATTLINE_TOKEN", "access token"),
    ("WATTLINE_DATA", "folder of public data, for wattline reproduce"),
    ("WATTLINE_STATE", "directory of the state of this user"),
    ("NO_COLOR", "print without colours"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the page in the format of man."""
    print(build_page(list(list_commands())), end="")
    return 0


def build_page(commands: Sequence[CommandEntry]) -> str:
    """Return the manual page of all commands, in roff."""
    lines = [
        f'.TH WATTLINE 1 "" "wattline {__version__}" "User Commands"',
        ".SH NAME",
        "wattline \\- schedule deep\\-learning training jobs by time and energy",
        ".SH SYNOPSIS",
        ".B wattline",
        ".I COMMAND",
        "[options]",
        ".SH DESCRIPTION",
        _escape(build_parser().description or ""),
        ".SH COMMANDS",
    ]
    for entry in commands:
        lines += [f".SS {_escape('wattline ' + ' '.join(entry.words))}", _escape(_sentence(entry.summary))]
        lines += [".PP", ".nf", _escape(entry.usage), ".fi"]
        for option in (*entry.arguments, *entry.options):
            lines += _format_option(option)
    lines += [".SH EXIT STATUS", *_format_pairs(_EXIT_CODES)]
    lines += [".SH ENVIRONMENT", *_format_pairs(_VARIABLES)]
    return "\n".join(lines) + "\n"


def _format_option(option: OptionEntry) -> list[str]:
    name = ", ".join(option.flags) or option.value
    value = f" {option.value}" if option.flags and option.value else ""
    return [".TP", f".B {_escape(name + value)}", _escape(_sentence(option.help or "see above"))]


def _format_pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [line for name, text in pairs for line in (".TP", f".B {_escape(name)}", _escape(_sentence(text)))]


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."


def _escape(text: str) -> str:
    """Escape backslashes, minus signs, letters beyond ASCII, and points and quotes at the start of lines."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(char if ord(char) < 128 else f"\\[u{ord(char):04X}]" for char in text)
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))
