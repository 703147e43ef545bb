"""Options of sbatch, as `#SBATCH` lines have them: short forms, values, and those without an effect."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from wattline.errors import ConfigError, did_you_mean

SHORT = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "m": "distribution",
    "M": "clusters",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "O": "overcommit",
    "p": "partition",
    "q": "qos",
    "Q": "quiet",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
FLAGS = {
    *("hold", "no-kill", "overcommit", "quiet", "verbose", "requeue", "no-requeue", "parsable"),
    *("spread-job", "reboot", "use-min-nodes"),
}
OPTIONAL = {"exclusive", "oversubscribe", "get-user-env", "nice", "propagate"}  # with or without =value
READ = {
    *("job-name", "time", "gpus", "gres", "gpus-per-node", "gpus-per-task", "nodes", "ntasks"),
    *("ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-gpu", "mem-per-cpu", "chdir"),
    *("dependency", "array", "account", "signal", "export", "nice", "priority", "requeue", "no-requeue"),
    *("hold", "container-image", "ntasks-per-gpu"),
}
WITHOUT_EFFECT = {
    "output": "wattline logs shows the output",
    "error": "wattline logs shows the output",
    "partition": "there are no partitions",
    "qos": "use --priority, or wattline quota",
    "constraint": "use --gpus with a kind in a job file (resources.gpu_type)",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    **dict.fromkeys(
        (
            *("comment", "clusters", "nodelist", "exclude", "exclusive", "oversubscribe", "overcommit"),
            *("distribution", "open-mode", "input", "quiet", "verbose", "parsable", "no-kill"),
            *("get-user-env", "propagate", "hint", "gpu-bind", "cpu-bind", "mem-bind", "threads-per-core"),
            *("sockets-per-node", "cores-per-socket", "core-spec", "tmp", "wckey", "reservation"),
            *("licenses", "switches", "profile"),
            *("acctg-freq", "spread-job", "gres-flags", "gpu-freq", "cpu-freq", "reboot", "use-min-nodes"),
            *("container-mounts", "container-workdir", "container-name", "extra", "prefer", "network"),
        ),
        "has no counterpart",
    ),
}
REFUSED = {
    "begin": "a start time; submit it with --hold, and wattline release later",
    "deadline": "a deadline; use --deadline with a time zone",
    "wrap": "a command; use wattline submit -- COMMAND",
    "test-only": "use wattline plan",
    "time-min": "a shortened time limit",
    "delay-boot": "a delayed boot",
}


@dataclass(frozen=True)
class SbatchOption:
    """One option with its value and the line that has it; *value* is empty for a flag."""

    name: str
    value: str
    line: int


def read_options(text: str, where: str) -> Iterator[SbatchOption]:
    """Yield the options of the `#SBATCH` lines before the first command; raise for unknown ones."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            yield from _parse_line(line.removeprefix("#SBATCH"), where, number)
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _parse_line(text: str, where: str, line: int) -> Iterator[SbatchOption]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"{where}:{line}: cannot be split into words: {error}") from None
    if words[:1] == ["hetjob"]:
        raise ConfigError(f"{where}:{line}: a heterogeneous job, expected one kind of node")
    while words:
        word = words.pop(0)
        name, sign, value = word.partition("=")
        if word.startswith("--"):
            name = name.removeprefix("--")
        elif word.startswith("-") and len(word) > 1:
            name, value = SHORT.get(word[1], word), word[2:].removeprefix("=")
            sign = "=" if value else ""
        else:
            raise ConfigError(f"{where}:{line}: {word!r} is not an option of sbatch")
        known = READ | WITHOUT_EFFECT.keys() | REFUSED.keys()
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{where}:{line}: unknown option {word.partition('=')[0]!r} of sbatch", hint)
        if not sign and name not in FLAGS | OPTIONAL:
            if not words:
                raise ConfigError(f"{where}:{line}: --{name} has no value")
            value = words.pop(0)
        yield SbatchOption(name, value, line)
