"""Default name of a job: that of the script or program that its command runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PREFIXES = {"env", "exec", "nice", "nohup", "setsid", "stdbuf", "sudo", "time", "timeout"}
_RUNNERS = {"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "pixi", "rye"}  # each with `run`
_SHELLS = {"sh", "bash", "dash", "zsh"}
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "ipython"}
_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|julia|Rscript|perl|ruby|node")
_LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_SCRIPT = re.compile(r"\.(?:py|sh|bash|jl|R|r|pl|rb|js|ipynb)$")


def default_name(words: Sequence[str]) -> str:
    """Return the name of the script, module or program that a command runs.

    `python train.py`, `torchrun --nproc-per-node 4 train.py` and `env A=1 uv run train.py` are all `train`,
    `python -m pkg.train` is `train`, `sleep 5` is `sleep`.
    """
    rest = _skip_prefixes(words)
    program = PurePath(rest[0]).name or rest[0]
    if not _runs_scripts(program):
        return _strip(program)
    script = next((word for word in rest[1:] if _SCRIPT.search(word) and not word.startswith("-")), None)
    module = _find_module(rest)
    if program in _SHELLS and "-c" in rest[1:-1]:
        return _name_of_shell_command(rest[rest.index("-c", 1) + 1], program)
    if module is not None and (script is None or rest.index(module) < rest.index(script)):
        return module.removesuffix(".__main__").rpartition(".")[2]
    return program if script is None else _strip(PurePath(script).name)


def _skip_prefixes(words: Sequence[str]) -> Sequence[str]:
    """Return the words from the first on that names no wrapper, option of one, or variable."""
    rest = list(words)
    while len(rest) > 1:
        name = PurePath(rest[0]).name
        if name in _PREFIXES:
            rest = rest[1:]
            while len(rest) > 1 and (
                rest[0].startswith("-") or rest[0].replace(".", "").rstrip("smhd").isdigit()
            ):
                rest = rest[1:]
        elif _ASSIGNMENT.match(rest[0]):
            rest = rest[1:]
        elif name in _RUNNERS and "run" in rest[1:-1]:
            rest = rest[rest.index("run", 1) + 1 :]
            scripts = [at for at, word in enumerate(rest) if _SCRIPT.search(word) or _runs_scripts(word)]
            rest = rest[scripts[0] :] if scripts else rest
            return rest if not _SCRIPT.search(rest[0]) else ["python", *rest]
        else:
            return rest
    return rest


def _runs_scripts(program: str) -> bool:
    return program in _SHELLS | _LAUNCHERS or _INTERPRETER.fullmatch(program) is not None


def _find_module(words: Sequence[str]) -> str | None:
    for option, value in pairwise(words):
        if option in ("-m", "--module") and value not in _LAUNCHER_MODULES and not value.startswith("-"):
            return value
    return None


def _name_of_shell_command(text: str, shell: str) -> str:
    """Return the name of the first command of a shell line that runs a script, else that of the shell."""
    try:
        reader = shlex.shlex(text, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words = list(reader)
    except ValueError:
        return shell
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(reader.punctuation_chars):
            commands.append([])
        else:
            commands[-1].append(word)
    runs = [one for one in commands if one and _runs_scripts(PurePath(_skip_prefixes(one)[0]).name)]
    return default_name(runs[0]) if runs else shell


def _strip(name: str) -> str:
    return _SCRIPT.sub("", name) or name
