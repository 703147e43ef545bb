"""Files in folders that the user of a job can change.

On Slurm the folder of an attempt belongs to the user of the job, and the service may be root. So a name there
may be a link to any file, a pipe, or a file of any size. These functions follow no link, wait for no writer,
and never write into a file that exists already. The folders above belong to the service.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

_MAX_BYTES = 1 << 24  # of a JSON file


def open_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; links, pipes and second names of files of others raise `OSError`.

    On a file system without protected_hardlinks, such as NFS, a user can give a second name to any file.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if status.st_nlink > 1:
            owner = os.stat(os.path.dirname(path) or ".").st_uid
            if owner not in (status.st_uid, os.geteuid()):
                raise PermissionError(errno.EPERM, "is a second name of a file of another user", str(path))
    except BaseException:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None: it is missing, invalid or larger than 16 MiB."""
    try:
        with open_file(path) as file:
            data = file.read(_MAX_BYTES + 1)
        return json.loads(data) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


def create_file(path: Path) -> int:
    """Create a file and return its descriptor; raise `FileExistsError` if there is one, or a link.

    As root it belongs to the owner of the folder, which may have to read it.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if os.geteuid() == 0:
        owner = os.stat(path.parent)
        os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file atomically; with *sync* its content is on the disk when this returns."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(create_file(new), "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
