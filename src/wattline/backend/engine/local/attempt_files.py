"""Files in an attempt's folder that the service and the supervisor process share.

    launch.json  what to run: written by the service before the supervisor starts
    claim.json   which process decides about the attempt: created once, by a supervisor or by the service
    exit.json    how it ended: written by the supervisor

The supervisor imports this module without the rest of the package: standard library only.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from typing import Any

CLAIM, EXIT, LAUNCH = "claim.json", "exit.json", "launch.json"
FORMAT = 1
"""Of the files that a service leaves for later ones, which may be of another version."""


def check_format(values: dict[str, Any], name: str) -> str:
    """Return why this version cannot read a file; empty: it can. Files without a format have the first."""
    found = values.get("format", 1)
    if isinstance(found, int) and found <= FORMAT:
        return ""
    return f"{name} has the format {found}, expected {FORMAT} at most: start the newer version of wattline"


def write_json(path: str, values: dict[str, Any]) -> None:
    """Replace a file atomically, and return when it is on the disk."""
    new = _write_new(path, values)
    try:
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise
    _sync_folder(os.path.dirname(path))


def claim_attempt(folder: str, **values: Any) -> bool:
    """Create claim.json with the identity of this process; False: another process was first."""
    path = os.path.join(folder, CLAIM)
    new = _write_new(path, {**process_identity(), **values})
    try:
        os.link(new, path)
    except FileExistsError:
        # Over NFS the reply to a link that was made may be lost, and the repeated request fails.
        return os.stat(new).st_nlink == 2
    finally:
        os.unlink(new)
    _sync_folder(folder)
    return True


def process_identity() -> dict[str, Any]:
    """Return what distinguishes this process from a later one with the same process id."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id(), "at": time.time()}


def boot_id() -> str:
    """Return the id of the current boot; process ids of an earlier boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _write_new(path: str, values: dict[str, Any]) -> str:
    """Write a new file beside *path*, readable by its owner only: environments contain secrets."""
    # A new name, which does not exist: another user may be able to create links in the folder.
    new = f"{path}.{os.urandom(8).hex()}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            if os.geteuid() == 0:  # on Slurm the folder, and what is in it, is of the job's user
                owner = os.stat(os.path.dirname(path) or ".")
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(json.dumps(values).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if os.path.exists(new):
            os.unlink(new)
        raise
    return new


def _sync_folder(folder: str) -> None:
    file = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
