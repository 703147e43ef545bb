"""What a cap was before we changed it, on disk: one file for each GPU, for as long as somebody holds it."""

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

from wattline.meter.caps.process_identity import Owner

SAME_W = 1.0
"""Caps nearer than this are one cap: drivers round."""

_inside = threading.local()


@dataclass(frozen=True)
class Record:
    """One GPU whose cap was *before_w*, and is one of *set_w* if nobody else has changed it since."""

    uuid: str
    spec: str  # opens a meter that has it
    before_w: float
    set_w: tuple[float, ...]
    owner: Owner

    def ours(self, cap_w: float) -> bool:
        """Whether a cap is one that we set."""
        return any(abs(cap_w - watts) < SAME_W for watts in self.set_w)


def state_folder() -> Path:
    """Where caps are remembered: $WATTLINE_STATE, else wattline in $XDG_STATE_HOME or ~/.local/state."""
    said = os.environ.get("WATTLINE_STATE")
    if said:
        return Path(said)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "wattline"


def record_path(folder: Path, uuid: str) -> Path:
    """The file of one GPU."""
    return folder / f"cap-{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.json"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else claims or restores meanwhile; a signal that comes inside finds itself inside."""
    depth = getattr(_inside, "depth", 0)
    if depth:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        _inside.depth = 1
        yield
    finally:
        _inside.depth = 0
        os.close(file)


def write(folder: Path, record: Record, *, safely: bool) -> None:
    """Put a record in its place, at once; *safely*: it is on the disk before this returns."""
    path = record_path(folder, record.uuid)
    new = path.with_suffix(f".{os.getpid()}.new")
    with open(new, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
        file.flush()
        if safely:
            os.fsync(file.fileno())
    os.replace(new, path)
    if safely:
        sync(folder)


def sync(path: Path) -> None:
    """What was written to a file or a folder is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read(path: Path) -> Record | None:
    """The record in a file; None: there is none that can be understood."""
    try:
        said = json.loads(path.read_text("utf-8"))
        return Record(
            uuid=str(said["uuid"]),
            spec=str(said["spec"]),
            before_w=float(said["before_w"]),
            set_w=tuple(float(watts) for watts in said["set_w"]),
            owner=Owner(**said["owner"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(folder: Path, uuid: str) -> None:
    """Nobody holds this GPU any more."""
    record_path(folder, uuid).unlink(missing_ok=True)


def records(folder: Path) -> list[Record]:
    """All that is remembered here, by GPU."""
    found = (read(path) for path in sorted(folder.glob("cap-*.json")))
    return [record for record in found if record is not None]
