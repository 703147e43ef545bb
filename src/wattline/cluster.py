"""Cluster descriptions: `nodes(...)`, a TOML file, or a text such as `16xv100:8,cpus=24`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Labels
from wattline.errors import ConfigError, did_you_mean
from wattline.measurement.devices import device
from wattline.measurement.gpu_names import resolve_gpu_kind
from wattline.units import parse_gib, parse_mib_s

_MAX_COUNTS = {"count": 1_000_000, "gpus": 65_536, "rack_size": 1_000_000}
_PARSERS = {"mem_gib": parse_gib, "storage_mib_s": parse_mib_s}
_MAX_KINDS = 53  # bits of a mask in a float64 column
_KNOBS = (
    *("gpus", "cpus", "mem_gib", "storage_mib_s", "rack_size"),
    *("base_w", "idle_w", "busy_w", "off_w", "boot_s", "boot_w"),
)


def nodes(
    kind: str,
    *,
    count: int = 1,
    gpus: int = 8,
    cpus: float = 24.0,
    mem_gib: float = 500.0,
    storage_mib_s: float = 0.0,
    rack_size: int = 16,
    base_w: float | None = None,
    idle_w: float | None = None,
    busy_w: float | None = None,
    off_w: float = 20.0,
    boot_s: float = 180.0,
    boot_w: float | None = None,
    name: str = "",
) -> Nodes:
    """Return *count* equal nodes with *gpus* GPUs of one *kind* each, *rack_size* of them per rack.

    *storage_mib_s* is the storage bandwidth of a node, shared by its jobs; 0: unlimited. Watts that are not
    given are those of the built-in device *kind*. A node that is switched off draws *off_w*; it boots in
    *boot_s* and draws *boot_w* meanwhile (default: the draw of the idle node). The defaults of *off_w* and
    *boot_s* are estimates, not measurements. Join several kinds with `join_nodes`.
    """
    _check_positive(kind, count=count, gpus=gpus, cpus=cpus, mem_gib=mem_gib, rack_size=rack_size)
    requested = {"base_w": base_w, "idle_w": idle_w, "busy_w": busy_w}
    watts = {
        key: float(getattr(device(kind), key)) if value is None else float(value)
        for key, value in requested.items()
    }
    watts["off_w"] = float(off_w)
    watts["boot_w"] = watts["base_w"] + gpus * watts["idle_w"] if boot_w is None else float(boot_w)
    for key, value in (*watts.items(), ("boot_s", boot_s), ("storage_mib_s", storage_mib_s)):
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{kind}: {key} must be at least 0 and finite, got {value}")
    count, kind = int(count), resolve_gpu_kind(kind)
    names = np.empty(count, dtype=np.object_)
    names[:] = [f"{name or kind}-{n}" for n in range(count)]
    return Nodes(
        name=names,
        kind=Labels.repeat(kind, count),
        gpus=np.full(count, int(gpus), dtype=np.int64),
        cpus=np.full(count, float(cpus)),
        mem_gib=np.full(count, float(mem_gib)),
        storage_mib_s=np.full(count, float(storage_mib_s)),
        rack=np.arange(count, dtype=np.int64) // int(rack_size),
        base_w=np.full(count, watts["base_w"]),
        idle_w=np.full(count, watts["idle_w"]),
        busy_w=np.full(count, watts["busy_w"]),
        off_w=np.full(count, watts["off_w"]),
        boot_s=np.full(count, float(boot_s)),
        boot_w=np.full(count, watts["boot_w"]),
    )


def join_nodes(*parts: Nodes) -> Nodes:
    """Return one cluster of all *parts*; racks are not shared between parts, duplicate names get a suffix."""
    if not parts:
        raise ConfigError("a cluster of 0 nodes, expected at least one")
    columns: dict[str, Any] = {}
    for field in fields(Nodes):
        pieces = [getattr(part, field.name) for part in parts]
        if field.name == "kind":
            columns["kind"] = Labels.of([word for piece in pieces for word in piece.words()])
        elif field.name == "rack":
            offsets = np.cumsum([0, *(int(piece.max()) + 1 for piece in pieces[:-1])])
            columns["rack"] = np.concatenate([p + o for p, o in zip(pieces, offsets, strict=True)])
        else:
            columns[field.name] = np.concatenate(pieces)
    if len(columns["kind"].names) > _MAX_KINDS:
        raise ConfigError(
            f"a cluster of {len(columns['kind'].names)} kinds of GPUs, expected at most {_MAX_KINDS}"
        )
    if len(set(columns["name"].tolist())) < len(columns["name"]):
        columns["name"] = np.array(
            [f"{name}.{row}" for row, name in enumerate(columns["name"].tolist())], dtype=np.object_
        )
    return Nodes(**columns)


def parse_cluster(text: str) -> Nodes:
    """Parse a cluster such as `16xv100:8,cpus=24,mem=500G+4xa100:8`, or read the TOML file *text*."""
    if text.endswith(".toml"):
        return read_cluster(text)
    return join_nodes(*(_parse_part(part.strip(), text) for part in text.split("+")))


def _parse_part(part: str, text: str) -> Nodes:
    """Parse one kind of node; *text* is the whole description, for messages."""
    head, *options = part.split(",")
    match = re.fullmatch(r"(?:(\d+)x)?([A-Za-z][\w.-]*?)(?::(\d+))?", head)
    if match is None:
        raise ConfigError(
            f"cluster {text!r}: cannot read {head!r}, expected COUNTxKIND:GPUS as in 16xv100:8",
            hint="16xv100:8,cpus=24,mem=500G+4xa100:8",
        )
    count, kind, gpus = match.groups()
    knobs: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        key = {"mem": "mem_gib", "storage": "storage_mib_s"}.get(key.strip(), key.strip())
        _check_key(key, f"cluster {text!r}")
        try:
            knobs[key] = _PARSERS.get(key, float)(value)
        except ValueError:
            raise ConfigError(f"cluster {text!r}: {key} is {value!r}, expected a number") from None
    if gpus is not None:
        knobs["gpus"] = int(gpus)
    return nodes(kind, count=int(count or 1), **knobs)


def read_cluster(path: str | Path) -> Nodes:
    """Read a cluster from a TOML file with one `[[nodes]]` table per kind of node.

    Keys: `kind` (required), `count`, `name`, `gpus`, `cpus`, `mem_gib`, `storage_mib_s`, `rack_size`,
    `base_w`, `idle_w`, `busy_w`, `off_w`, `boot_s`, `boot_w`.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    parts = content.get("nodes")
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts or len(content) > 1:
        raise ConfigError(f"{path}: expected [[nodes]] tables and nothing else, got {sorted(content)}")
    return join_nodes(*(_from_table(part, f"{path}: nodes[{i}]") for i, part in enumerate(parts)))


def _from_table(part: object, where: str) -> Nodes:
    if not isinstance(part, Mapping) or not isinstance(part.get("kind"), str):
        raise ConfigError(f"{where}: kind is missing, expected the name of a GPU kind")
    knobs = {key: value for key, value in part.items() if key != "kind"}
    for key, value in knobs.items():
        _check_key(key, where, "count", "name")
        expected = str if key == "name" else int if key in ("count", "gpus", "rack_size") else (int, float)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ConfigError(
                f"{where}: {key} is {value!r}, expected {'a name' if key == 'name' else 'a number'}"
            )
    return nodes(part["kind"], **knobs)


def _check_key(key: str, where: str, *more: str) -> None:
    known = (*_KNOBS, *more)
    if key not in known:
        raise ConfigError(
            f"{where}: unknown key {key!r}, expected one of {', '.join(known)}",
            hint=did_you_mean(key, known),
        )


def _check_positive(kind: str, **positive: float) -> None:
    for key, value in positive.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{kind}: {key} must be above 0, got {value}")
        if key in _MAX_COUNTS and (value != int(value) or value > _MAX_COUNTS[key]):
            raise ConfigError(f"{kind}: {key} must be a whole number up to {_MAX_COUNTS[key]}, got {value}")
