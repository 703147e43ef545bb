"""Caps that dead processes left behind are put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import WattlineError
from wattline.meter import Gpu, open_meter
from wattline.meter.caps.record import Record, forget, locked, read, record_path, records, state_folder


@dataclass(frozen=True)
class Reaped:
    """What became of a cap that was left behind; *problem* is empty if it is as it was before."""

    record: Record
    restored: bool
    problem: str = ""


def reap(folder: Path | None = None, wanted: Callable[[Record], bool] = lambda record: True) -> list[Reaped]:
    """Put back the caps (that are *wanted*) of dead owners, as far as nobody has changed them since."""
    home = folder or state_folder()
    if not any(record.owner.lives() is False and wanted(record) for record in records(home)):
        return []
    with suppress(OSError), locked(home):
        dead = [r for r in records(home) if r.owner.lives() is False and wanted(r)]
        return [put_back(home, record) for record in dead]
    return []


def put_back(folder: Path, record: Record) -> Reaped:
    """Put back one cap through a meter of our own, whoever holds it."""
    try:
        meter = open_meter(record.spec)
    except (WattlineError, OSError) as error:
        return Reaped(record, False, f"its meter {record.spec!r} cannot be opened: {error}")
    try:
        gpu = next((g for g in meter.gpus if g.uuid == record.uuid), None)
        if gpu is None:
            return Reaped(record, False, f"{record.spec!r} has no GPU {record.uuid}")
        return Reaped(record, restore(folder, record, gpu))
    except WattlineError as error:
        return Reaped(record, False, error.message)
    finally:
        meter.close()


def restore(folder: Path, record: Record, gpu: Gpu) -> bool:
    """Put back one cap and forget it; False: somebody else has changed it, and it is left alone."""
    left = record.ours(gpu.cap_w())
    if left:
        gpu.set_cap(record.before_w)
    forget(folder, record.uuid)
    return left


def held_by(folder: Path, uuid: str) -> Record | None:
    """Who holds a GPU, dead or alive; None: nobody."""
    return read(record_path(folder, uuid))
