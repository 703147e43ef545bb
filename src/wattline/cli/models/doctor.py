"""`wattline doctor`: what can be read and set on this machine, and if not, why and what to do?"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from wattline.cli.output import show_json
from wattline.errors import MeterError, WattlineError
from wattline.grid import grid
from wattline.meter import Gpu, Meter, open_meter
from wattline.meter.caps.guard import Reaped, reap
from wattline.meter.caps.record import Record, record_path, records, state_folder

_T = TypeVar("_T")
_TOOLS = ("sacct", "squeue", "nvidia-smi", "torchrun")
_PACKAGES = ("torch", "nvidia-ml-py")


@dataclass(frozen=True)
class Found:
    """A meter: whether it works, and what it says."""

    name: str
    works: bool
    says: str
    hint: str = ""


@dataclass(frozen=True)
class Card:
    """One GPU; what is None cannot be read. *clocks* None: not tried, because that would change them."""

    index: int
    uuid: str
    name: str
    kind: str
    method: str
    power_w: float | None
    energy_j: float | None
    cap_w: float | None
    least_cap_w: float | None
    most_cap_w: float | None
    caps: bool
    clocks: bool | None
    why: str = ""
    hint: str = ""


def run(args: argparse.Namespace) -> int:
    """Restore what was left behind, then look at everything."""
    left = reap()
    held = records(state_folder())
    meter = open_meter(args.meter)
    try:
        cards = [_card(gpu, {record.uuid for record in held}) for gpu in meter.gpus]
        name = meter.name
    finally:
        meter.close()
    found = [_found(kind) for kind in ("nvml", "rapl", "zeusd")]
    around = _around()
    if args.json:
        show_json(
            {
                "meter": name,
                "meters": [asdict(one) for one in found],
                "gpus": [asdict(card) for card in cards],
                "left_behind": [_left_data(one) for one in left],
                "held": [_held_data(one) for one in held],
                **around,
            }
        )
    else:
        print("\n\n".join(filter(None, _sections(name, found, cards, left, held, around))))
    return 0


def _found(name: str) -> Found:
    try:
        meter = open_meter(name)
    except WattlineError as error:
        return Found(name, False, error.message, error.hint)
    try:
        return Found(name, bool(meter.gpus), _seen(meter))
    except MeterError as error:
        return Found(name, False, error.message, error.hint)
    finally:
        meter.close()


def _seen(meter: Meter) -> str:
    what = "counter" if meter.name == "rapl" else "GPU"
    count = len(meter.gpus)
    driver = getattr(meter, "driver", "")
    return f"{count} {what}{'' if count == 1 else 's'}" + (f", driver {driver}" if driver else "")


def _card(gpu: Gpu, held: set[str]) -> Card:
    least_w, most_w = _read(gpu.cap_range_w) or (None, None)
    cap_w = _read(gpu.cap_w)
    caps, why, hint = _may_set(gpu, cap_w, held)
    return Card(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        kind=gpu.kind,
        method=gpu.method,
        power_w=_read(gpu.power_w),
        energy_j=_read(gpu.energy_j),
        cap_w=cap_w,
        least_cap_w=least_w,
        most_cap_w=most_w,
        caps=caps,
        clocks=None if caps else False,
        why=why,
        hint=hint,
    )


def _read(call: Callable[[], _T]) -> _T | None:
    try:
        return call()
    except MeterError:
        return None


def _may_set(gpu: Gpu, cap_w: float | None, held: set[str]) -> tuple[bool, str, str]:
    """Whether caps can be set: tried with the cap that is there, which changes nothing."""
    if gpu.uuid in held:
        return False, "another process holds its cap now", "wait until that has ended"
    try:
        gpu.set_cap(gpu.cap_w() if cap_w is None else cap_w)
    except WattlineError as error:
        return False, error.message, error.hint
    return True, "", ""


def _around() -> dict[str, Any]:
    return {
        "tools": {name: shutil.which(name) for name in _TOOLS},
        "cgroup": _cgroup(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "state": str(state_folder()),
    }


def _cgroup(root: Path = Path("/sys/fs/cgroup")) -> str | None:
    if (root / "cgroup.controllers").exists():
        return "v2"
    return "v1" if root.is_dir() and any(root.iterdir()) else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _left_data(one: Reaped) -> dict[str, Any]:
    return {
        "uuid": one.record.uuid,
        "pid": one.record.owner.pid,
        "before_w": one.record.before_w,
        "restored": one.restored,
        "problem": one.problem or None,
    }


def _held_data(one: Record) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "pid": one.owner.pid,
        "host": one.owner.host,
        "before_w": one.before_w,
        "set_w": one.set_w[-1],
        "lives": one.owner.lives(),
    }


def _sections(
    name: str,
    found: list[Found],
    cards: list[Card],
    left: list[Reaped],
    held: list[Record],
    around: dict[str, Any],
) -> list[str]:
    return [
        _lines([("meter", "works", ""), *((f.name, _yes(f.works), _with(f.says, f.hint)) for f in found)]),
        _cards_text(name, cards),
        "\n".join([*map(_left_text, left), *map(_held_text, held)]),
        _lines([*_around_rows(around)]),
    ]


def _cards_text(name: str, cards: list[Card]) -> str:
    if not cards:
        return f"meter in use: {name}; no GPU can be read: energy is unmetered"
    head = ("gpu", "name", "kind", "draws", "cap", "range", "energy", "caps", "clocks")
    rows = [head, *map(_card_row, cards)]
    whys = dict.fromkeys(_with(card.why, card.hint) for card in cards if card.why)
    notes = [f"caps and clocks cannot be set: {why}" for why in whys]
    return "\n".join([f"meter in use: {name}", _lines(rows), *notes])


def _card_row(card: Card) -> tuple[str, ...]:
    known = card.least_cap_w is not None
    return (
        str(card.index),
        card.name,
        card.kind or "-",
        _watts(card.power_w),
        _watts(card.cap_w),
        f"{card.least_cap_w:g} to {card.most_cap_w:g} W" if known else "-",
        card.method if card.energy_j is not None else "unmetered",
        _yes(card.caps),
        "not tried" if card.clocks is None else _yes(card.clocks),
    )


def _left_text(one: Reaped) -> str:
    who = f"GPU {one.record.uuid}: process {one.record.owner.pid} died and left a cap behind"
    if one.problem:
        return f"{who}, which could not be restored: {one.problem}"
    return (
        f"{who}: {f'restored to {one.record.before_w:g} W' if one.restored else 'changed since, left alone'}"
    )


def _held_text(one: Record) -> str:
    lives = one.owner.lives()
    who = f"GPU {one.uuid}: process {one.owner.pid} on {one.owner.host}"
    if lives:
        return f"{who} holds its cap at {one.set_w[-1]:g} W"
    where = record_path(state_folder(), one.uuid)
    state = "is dead" if lives is False else "is not of this machine or container, and may be dead"
    return (
        f"{who} {state}; if its cap is no longer wanted, set it back to {one.before_w:g} W and delete {where}"
    )


def _around_rows(around: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        *((name, path or "not found") for name, path in around["tools"].items()),
        ("cgroup", around["cgroup"] or "none"),
        *((name, number or "not installed") for name, number in around["packages"].items()),
        ("state", around["state"]),
    ]


def _lines(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(grid(rows, lambda column: "<"))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _watts(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} W"


def _with(text: str, hint: str) -> str:
    return f"{text} ({hint})" if hint else text
