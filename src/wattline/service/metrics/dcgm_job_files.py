"""Job files for NVIDIA's dcgm-exporter: one file for each GPU in use, with the ids of its jobs.

`dcgm-exporter --hpc-job-mapping-dir DIR` adds the label `hpc_job` to its metrics by them. The name of a file
is the index of the GPU; a GPU without a job has no file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from wattline.errors import ConfigError, StoreError
from wattline.service.storage.store import Store
from wattline.service.store_thread import StoreThread

_RETRY_S = 5.0
_logger = logging.getLogger(__name__)


class DcgmJobFiles(StoreThread):
    """Writes the files of a folder after every change of allocations; they stay when it stops."""

    def __init__(self, store: Store, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"metrics.dcgm_job_mapping is {str(folder)!r}, which cannot be created: {error.strerror}"
            ) from None
        super().__init__(store, "wattline-dcgm")

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._stopping.is_set():
                return
            try:
                write_job_files(self._folder, read_jobs_of_gpus(self._store))
            except (OSError, StoreError) as error:
                _logger.warning("job files for DCGM could not be written: %s", error)
                self._changed.set()
                self._stopping.wait(_RETRY_S)


def read_jobs_of_gpus(store: Store) -> dict[int, list[str]]:
    """Return the ids of the running jobs by index of GPU."""
    jobs: dict[int, list[str]] = {}
    for job, allocation in store.read_rows(
        "SELECT id, allocation FROM job WHERE state = 'RUNNING' ORDER BY number"
    ):
        for gpu in json.loads(allocation).get("gpus", ()):
            jobs.setdefault(int(gpu), []).append(str(job))
    return jobs


def write_job_files(folder: Path, jobs: Mapping[int, list[str]]) -> None:
    """Write a file for each GPU with jobs, each replaced as a whole, and delete those of other GPUs."""
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) not in jobs:
            path.unlink(missing_ok=True)
    for gpu, ids in jobs.items():
        text, path = "".join(f"{job}\n" for job in ids), folder / str(gpu)
        if path.exists() and path.read_text() == text:
            continue
        new = folder / f".{gpu}.new"  # no number, so the exporter does not read it
        new.write_text(text)
        new.chmod(0o644)
        new.replace(path)
