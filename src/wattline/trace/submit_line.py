"""Options in the command line by which a job was submitted to Slurm."""

from __future__ import annotations

import re

_OPTION = re.compile(r"(?:^|\s)(?:--dependency(?:=|\s+)|-d\s*)[\"']?([^\s\"']+)")
_GRAMMAR = re.compile(r"(?:after\w*(?::[\d_*+]+)+|singleton)(?:[,?](?:after\w*(?::[\d_*+]+)+|singleton))*")


def find_dependency_option(submit_line: str) -> str:
    """Return the value of `--dependency` or `-d` in a command line of sbatch; empty: it has none.

    A `-d` of the user's own script is known by its value, which is no dependency.
    """
    for value in _OPTION.findall(submit_line):
        if _GRAMMAR.fullmatch(value):
            return str(value)
    return ""
