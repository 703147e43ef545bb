"""Restoration of caps that dead processes left behind, also as `python -m wattline.meter.caps.restore`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import WattlineError
from wattline.meter import Gpu, open_meter
from wattline.meter.caps.record import (
    CapRecord,
    lock_records,
    read_record,
    read_records,
    record_path,
    remove_record,
    state_folder,
)


@dataclass(frozen=True)
class RestoreResult:
    """Result of restoring an orphaned cap.

    *restored* is False if another program had changed the cap, or if there was a *problem* (else empty).
    """

    record: CapRecord
    restored: bool
    problem: str = ""


def restore_orphaned_caps(
    folder: Path | None = None, matches: Callable[[CapRecord], bool] = lambda record: True
) -> list[RestoreResult]:
    """Restore the caps that dead processes left behind and no other program has changed since.

    Only records for which *matches* returns True are considered.
    """
    home = folder or state_folder()
    if not any(record.owner.is_alive() is False and matches(record) for record in read_records(home)):
        return []
    with suppress(OSError), lock_records(home):
        orphans = [r for r in read_records(home) if r.owner.is_alive() is False and matches(r)]
        return [restore_record(home, record) for record in orphans]
    return []


def restore_record(folder: Path, record: CapRecord) -> RestoreResult:
    """Restore one cap through a newly opened meter, without checking its owner."""
    try:
        meter = open_meter(record.spec)
    except (WattlineError, OSError) as error:
        return RestoreResult(record, False, f"its meter {record.spec!r} cannot be opened: {error}")
    try:
        gpu = next((g for g in meter.gpus if g.uuid == record.uuid), None)
        if gpu is None:
            return RestoreResult(record, False, f"{record.spec!r} has no GPU {record.uuid}")
        return RestoreResult(record, restore_cap(folder, record, gpu))
    except WattlineError as error:
        return RestoreResult(record, False, error.message)
    finally:
        meter.close()


def restore_cap(folder: Path, record: CapRecord, gpu: Gpu) -> bool:
    """Restore one cap and remove its record; False: another program has changed it, and it is left alone."""
    unchanged = record.has_set(gpu.cap_w())
    if unchanged:
        gpu.set_cap(record.before_w)
    remove_record(folder, record.uuid)
    return unchanged


def find_record(folder: Path, uuid: str) -> CapRecord | None:
    """Return the record of a GPU, also of a dead owner; None: its cap is not held."""
    return read_record(record_path(folder, uuid))


def main() -> None:
    """Restore all caps that dead processes left behind, and print what could not be."""
    for result in restore_orphaned_caps():
        if result.problem:
            print(
                f"wattline: the cap of GPU {result.record.uuid} is not restored: {result.problem}",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
