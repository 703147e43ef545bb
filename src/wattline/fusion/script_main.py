"""`main`, the entry point of fusible training scripts, and the parser of its command line."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from wattline.errors import ConfigError
from wattline.fusion.array import FusedArray, fuse

Config = dict[str, Any]
Build = Callable[[Config], nn.Module]
Train = Callable[[FusedArray, list[Config]], Any]

_USAGE = "expected name=value, name=value,value for several members, or --members FILE"
captured: list[tuple[Build, Train]] | None = None  # a list while a script is loaded without training


class Captured(BaseException):
    """Ends a script that is loaded without training, at its call of `main`."""


def main(build: Build, train: Train, argv: Sequence[str] | None = None) -> None:
    """Build the members given on the command line and train them as one array.

        python train.py lr=1e-3 seed=1                one member
        python train.py lr=1e-3,3e-3 seed=1,2,3       six members, every lr with every seed
        python train.py --members members.json        one member for each object of a JSON list

    `build(config)` returns the model of one member, `train(array, configs)` trains the array; configs are in
    the order of its members. Values are numbers, true, false, null or strings.
    """
    if captured is not None:
        captured.append((build, train))
        raise Captured
    configs = read_configs(sys.argv[1:] if argv is None else argv)
    train(fuse([build(dict(config)) for config in configs]), configs)


def read_configs(arguments: Sequence[str]) -> list[Config]:
    """Return the configs of the members given by command-line *arguments*."""
    if arguments[:1] == ["--members"]:
        if len(arguments) != 2:
            raise ConfigError(f"--members is followed by {arguments[1:]}, expected one file")
        return read_members(Path(arguments[1]))
    named: dict[str, list[Any]] = {}
    for word in arguments:
        name, sign, text = word.partition("=")
        if not sign or not name.isidentifier():
            raise ConfigError(f"cannot parse {word!r}, {_USAGE}")
        if name in named:
            raise ConfigError(f"{name} is given twice: {word!r}")
        named[name] = [_value(piece) for piece in text.split(",")]
    return [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]


def read_members(path: Path) -> list[Config]:
    """Read the configs from a file that holds a JSON list of objects."""
    try:
        configs = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}, expected a JSON list of objects") from None
    if not isinstance(configs, list) or not configs:
        raise ConfigError(f"{path}: expected a JSON list of objects, one for each member")
    for index, config in enumerate(configs):
        if not isinstance(config, dict):
            raise ConfigError(f"{path}: member {index} is {config!r}, expected an object")
    return configs


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
