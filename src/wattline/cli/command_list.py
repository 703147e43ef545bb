"""Commands and options of the command line as data, for shell completion and the manual page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from wattline.cli.main import COMMANDS, CommandParser, build_parser


@dataclass(frozen=True)
class OptionEntry:
    """One option: its spellings, the name of its value (empty: a flag), its choices and its help."""

    flags: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class CommandEntry:
    """One command or action (`budget set`) with its positional arguments and options."""

    words: tuple[str, ...]
    summary: str
    usage: str
    arguments: tuple[OptionEntry, ...]
    options: tuple[OptionEntry, ...]


def list_commands() -> Iterator[CommandEntry]:
    """Yield all commands, each followed by its actions; imports the modules of all commands."""
    for parsers in _find_subparsers(build_parser()):
        for name, parser in parsers.choices.items():
            if name in COMMANDS:
                parser._load_arguments()
                yield _describe((name,), COMMANDS[name].summary, parser)
                yield from _list_actions(name, parser)


def _list_actions(command: str, parser: CommandParser) -> Iterator[CommandEntry]:
    for parsers in _find_subparsers(parser):
        summaries = {action.dest: action.help or "" for action in parsers._choices_actions}
        for name, action in parsers.choices.items():
            yield _describe((command, name), summaries.get(name, ""), action)


def _find_subparsers(
    parser: CommandParser,
) -> Iterator[argparse._SubParsersAction[CommandParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action


def _describe(words: tuple[str, ...], summary: str, parser: CommandParser) -> CommandEntry:
    entries = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        has_value = action.nargs != 0
        choices = tuple(str(choice) for choice in action.choices or ())
        # argparse doubles percent signs in help texts.
        text = (action.help or "").replace("%%", "%")
        entries.append(OptionEntry(tuple(action.option_strings), value if has_value else "", choices, text))
    usage = parser.format_usage().removeprefix("usage: ").strip()
    return CommandEntry(
        words,
        summary,
        usage,
        tuple(entry for entry in entries if not entry.flags),
        tuple(entry for entry in entries if entry.flags),
    )
