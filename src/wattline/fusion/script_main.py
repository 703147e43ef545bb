"""What a training script calls to be fusible: it says how to build one member and how to train an array."""

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
captured: list[tuple[Build, Train]] | None = None  # a list while a script is only asked what it would do


def main(build: Build, train: Train, argv: Sequence[str] | None = None) -> None:
    """Builds the members that the command line names, and has them trained as one array.

        python train.py lr=1e-3 seed=1                one member
        python train.py lr=1e-3,3e-3 seed=1,2,3       six members, every lr with every seed
        python train.py --members members.json        one member for each object of a JSON list

    `build(config)` gives the model of one member, `train(array, configs)` trains the array; configs are in
    the order of its members. Values are numbers, true, false, null or words.
    """
    if captured is not None:
        captured.append((build, train))
        return
    configs = read_configs(sys.argv[1:] if argv is None else argv)
    train(fuse([build(dict(config)) for config in configs]), configs)


def read_configs(words: Sequence[str]) -> list[Config]:
    """The configs of the members that these words name."""
    if words[:1] == ["--members"]:
        if len(words) != 2:
            raise ConfigError(f"--members is followed by {words[1:]}, expected one file")
        return read_members(Path(words[1]))
    named: dict[str, list[Any]] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.isidentifier():
            raise ConfigError(f"{word!r} is not understood, {_USAGE}")
        if name in named:
            raise ConfigError(f"{name} is given twice: {word!r}")
        named[name] = [_value(piece) for piece in text.split(",")]
    return [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]


def read_members(path: Path) -> list[Config]:
    """The configs in a file: a JSON list of objects."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}, expected a JSON list of objects") from None
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{path}: expected a JSON list of objects, one for each member")
    for index, config in enumerate(found):
        if not isinstance(config, dict):
            raise ConfigError(f"{path}: member {index} is {config!r}, expected an object")
    return found


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
