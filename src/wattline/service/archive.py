"""Archives of deleted jobs: compressed JSON lines with the job and its events, and a tar file of the logs.

The tar file has the members `ID/attempts/N/rank0.log` and so on. Both files are readable by the user of the
service only, since environments may hold secrets.
"""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattline.errors import StoreError
from wattline.meter.caps.record import fsync_path
from wattline.service.storage.store import Store

_PAGE = 1000


def write_archive(store: Store, root: Path, jobs: Sequence[str], folder: Path, now_s: float) -> str:
    """Write jobs, their events and logs to new files in *folder*; return the path of the JSON lines.

    *root* has the folders of the jobs. The files are on the disk when this returns.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"wattline-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{jobs[0]}"
        path = folder / f"{name}.jsonl.gz"
        with _create(path) as file, gzip.open(file, "wt", encoding="utf-8") as text:
            for row in (row for part in _split(jobs) for row in store.jobs_with_ids(part)):
                events = [asdict(event) for event in _read_events(store, row.id)]
                text.write(json.dumps({"job": asdict(row), "events": events}) + "\n")
        fsync_path(path)
        logs = folder / f"{name}-logs.tar.gz"
        with _create(logs) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for job in jobs:
                for log in sorted((root / job / "attempts").glob("*/rank*.log*")):
                    tar.add(log, str(log.relative_to(root)))
        fsync_path(logs)
    except OSError as error:
        raise StoreError(f"{folder}: the archive cannot be written: {error.strerror or error}") from None
    return str(path)


def read_archive(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the jobs of an archive: mappings with `job` and `events`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _split(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(jobs), _PAGE):
        yield jobs[first : first + _PAGE]


def _read_events(store: Store, job: str) -> Iterator[Any]:
    after = 0
    while events := store.events(after, job, _PAGE):
        yield from events
        after = events[-1].seq


def _create(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
