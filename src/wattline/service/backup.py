"""Backups of a service's folder, made while it serves: its databases, then the folders of their jobs.

A copy of the files alone would not do: SQLite keeps new rows in a second file, and the folders change
meanwhile. The jobs of the copied database decide which folders are copied, so that the number of a job that
was submitted later is free again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import ConfigError, NotFound, StoreError
from wattline.meter.caps.record import fsync_path

_OF_THIS_PROCESS = ("lock", "url")
_OF_THIS_MACHINE = ("caps", "whatif")  # caps of its GPUs now, and studies that run
_BESIDE_DATABASES = (".db-wal", ".db-shm", ".db-journal")


@dataclass(frozen=True)
class BackupResult:
    """Content of a backup: numbers of jobs and files, and the size of all files."""

    jobs: int
    files: int
    bytes: int


def write_backup(folder: Path, target: Path) -> BackupResult:
    """Copy the state of the service of *folder* to the new folder *target*.

    The service may run. *target* exists only once the backup is complete and on the disk. Only the user of
    the service can read it.
    """
    if not (folder / "state.db").is_file():
        raise NotFound(f"{folder}: has no state of a service: state.db is missing", "name it with --dir")
    if target.exists():
        raise ConfigError(f"{target}: exists already", "name a folder that does not exist")
    if target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{target}: is inside of {folder}", "name a folder outside of it")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        try:
            for path in sorted(folder.glob("*.db")):
                _copy_database(path, part / path.name)
            jobs = _list_jobs(part / "state.db")
            for path in _list_files(folder, jobs):
                _copy_file(path, part / path.relative_to(folder))
            result = _flush(part, len(jobs))
            part.rename(target)
            fsync_path(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except PermissionError as error:
        hint = "run it as the user of the service, or as root"
        raise ConfigError(f"{error.filename}: {error.strerror}", hint) from None
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{target}: the backup cannot be written: {error}") from None
    return result


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database in which other processes write, as it is at one moment."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    uri = f"{source.resolve().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=30.0)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        (answer,) = copy.execute("PRAGMA quick_check").fetchone()
    if answer != "ok":
        raise StoreError(f"{source}: is damaged: {answer}", "restore an earlier backup")
    _copy_owner(source, target)


def _list_jobs(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {str(job) for (job,) in connection.execute("SELECT id FROM job")}


def _list_files(folder: Path, jobs: set[str]) -> Iterator[Path]:
    """Yield the folders and files to copy, each folder before its content."""
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if name in _OF_THIS_PROCESS or name in _OF_THIS_MACHINE or name.endswith((".db", *_BESIDE_DATABASES)):
            continue
        if name == "jobs":
            yield path
            for job in sorted(jobs):
                yield from _walk(path / job)
        else:
            yield from _walk(path)


def _walk(path: Path) -> Iterator[Path]:
    """Yield a path and all paths below it; links are not followed."""
    yield path
    if path.is_dir() and not path.is_symlink():
        try:
            names = sorted(os.listdir(path))
        except FileNotFoundError:
            return
        for name in names:
            yield from _walk(path / name)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a folder, file or link with its owner and mode; leave out what is gone, sockets and pipes."""
    try:
        mode = source.lstat().st_mode
        if stat.S_ISDIR(mode):
            target.mkdir()
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            shutil.copy2(source, target, follow_symlinks=False)
        else:
            return
        _copy_owner(source, target)
        if stat.S_ISDIR(mode):
            target.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    except FileNotFoundError:
        return  # the service, or the job, has removed it meanwhile


def _copy_owner(source: Path, target: Path) -> None:
    if os.geteuid() == 0:
        owner = source.lstat()
        os.chown(target, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _flush(folder: Path, jobs: int) -> BackupResult:
    files = size = 0
    for path in [folder, *folder.rglob("*")]:
        if path.is_symlink():
            continue
        fsync_path(path)
        if path.is_file():
            files, size = files + 1, size + path.stat().st_size
    return BackupResult(jobs, files, size)
