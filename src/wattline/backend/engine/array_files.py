"""The command and the files of an array: several jobs of a sweep that one process trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wattline.backend.engine.folder_layout import checkpoint_folder, write_json
from wattline.backend.engine.job_record import JobRecord

MEMBERS = "members.json"
_CONFIGS = "configs.json"


def write_array_files(
    root: Path, jobs: Sequence[JobRecord], folder: Path, folders: Mapping[str, Path]
) -> tuple[str, ...]:
    """Write the members' files into the leading attempt's *folder*, and return the array's command.

    *folders* are the attempt folders of all members, by job.
    """
    members = [
        {
            "id": job.id,
            "name": job.columns.get("name", ""),
            "folder": str(folders[job.id]),
            "checkpoint": str(checkpoint_folder(root, job.spec)),
            "config": job.spec.config,
        }
        for job in jobs
    ]
    write_json(folder / MEMBERS, members)
    configs = folder / _CONFIGS
    write_json(configs, [job.spec.config for job in jobs])
    command = jobs[0].spec.command
    script = next(index for index, word in enumerate(command) if word.endswith(".py"))
    return (*command[: script + 1], "--members", str(configs))
