"""Records of changed caps on disk: one file per GPU while a process holds its cap."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from wattline.meter.caps.process_identity import ProcessIdentity

CAP_TOLERANCE_W = 1.0
"""Caps closer than this are considered equal, since drivers round."""

_local = threading.local()


@dataclass(frozen=True)
class CapRecord:
    """Previous and current cap of one GPU.

    The cap was *before_w*, and is one of *set_w* unless another program has changed it since.
    """

    uuid: str
    spec: str  # opens a meter that has the GPU
    before_w: float
    set_w: tuple[float, ...]
    owner: ProcessIdentity

    def has_set(self, cap_w: float) -> bool:
        """Return True if the owner has set *cap_w*."""
        return any(abs(cap_w - watts) < CAP_TOLERANCE_W for watts in self.set_w)


def state_folder() -> Path:
    """Return $WATTLINE_STATE, else `wattline` in $XDG_STATE_HOME or ~/.local/state."""
    folder = os.environ.get("WATTLINE_STATE")
    if folder:
        return Path(folder)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "wattline"


def record_path(folder: Path, uuid: str) -> Path:
    """Return the path of the record of one GPU."""
    return folder / f"cap-{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.json"


@contextmanager
def lock_records(folder: Path) -> Iterator[None]:
    """Keep other processes from claiming or restoring caps.

    Re-entrant, because a signal handler may run while the lock is held.
    """
    depth = getattr(_local, "depth", 0)
    if depth:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        _local.depth = 1
        yield
    finally:
        _local.depth = 0
        os.close(file)


def write_record(folder: Path, record: CapRecord, *, durable: bool) -> None:
    """Write a record atomically; with *durable*, return only after it is on the disk."""
    path = record_path(folder, record.uuid)
    new = path.with_suffix(f".{os.getpid()}.new")
    with open(new, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(new, path)
    if durable:
        fsync_path(folder)


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read_record(path: Path) -> CapRecord | None:
    """Return the record in a file; None: there is no valid one."""
    try:
        fields = json.loads(path.read_text("utf-8"))
        return CapRecord(
            uuid=str(fields["uuid"]),
            spec=str(fields["spec"]),
            before_w=float(fields["before_w"]),
            set_w=tuple(float(watts) for watts in fields["set_w"]),
            owner=ProcessIdentity(**fields["owner"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_record(folder: Path, uuid: str) -> None:
    """Remove the record of a GPU: its cap is no longer held."""
    record_path(folder, uuid).unlink(missing_ok=True)


def read_records(folder: Path) -> list[CapRecord]:
    """Return all valid records in *folder*, sorted by file name."""
    all_records = (read_record(path) for path in sorted(folder.glob("cap-*.json")))
    return [record for record in all_records if record is not None]
