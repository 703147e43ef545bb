"""A short job on all nodes of a partition, and findings on its output, for `wattline doctor`."""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattline.backend.engine.local.user_lookup import own_user
from wattline.backend.engine.slurm.commands import find_container_runtime, run_command

PROBE_S = 60.0
"""Limit of one probe."""


@dataclass(frozen=True)
class SlurmFinding:
    """One check: its name, whether it is in order, and what was found."""

    name: str
    works: bool
    says: str


def build_probe_command(partition: str, nodes: int, script: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a shell script once on each node of a partition."""
    words = ["srun", *flags, f"--partition={partition}", f"--nodes={nodes}", "--ntasks-per-node=1"]
    words += ["--immediate=30", "--overcommit", "--time=1", "--chdir=/", "--export=NIL"]
    return [*words, "/bin/sh", "-c", script]


def probe_nodes(partition: str, nodes: int, folder: Path, python: str = sys.executable) -> list[SlurmFinding]:
    """Run a command on all nodes at once, which reads a new file in *folder*, its user and Python."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.write_text("shared")
    read = f"cat {shlex.quote(str(probe))} 2>/dev/null || echo missing"
    run = f"[ -x {shlex.quote(python)} ] && echo found || echo missing"
    name = shlex.quote(own_user())
    known = f"id -u {name} 2>/dev/null || echo unknown"
    tools = "command -v apptainer || command -v singularity || echo none"
    script = (
        f'PATH=/usr/bin:/bin:/usr/local/bin; echo "$SLURMD_NODENAME|$({known})|$({read})|$({run})|$({tools})"'
    )
    try:
        rows = run_command(build_probe_command(partition, nodes, script), PROBE_S).splitlines()
    finally:
        probe.unlink()
    found = [row.split("|") for row in rows if row.count("|") == 4]
    own = str(os.getuid())
    return [
        report_nodes(
            f"folder {folder}", "is read on", "is not shared with", found, lambda row: row[2] == "shared"
        ),
        report_nodes(f"user id {own}", "is the same on", "is another on", found, lambda row: row[1] == own),
        report_nodes(python, "is on", "is missing on", found, lambda row: row[3] == "found"),
        SlurmFinding("containers", True, _describe_containers([row[4] for row in found])),
    ]


def _describe_containers(found: Sequence[str]) -> str:
    if find_container_runtime() == "pyxis":
        return "by Pyxis"
    count = sum(path != "none" for path in found)
    return (
        f"by Apptainer, on {count} of {len(found)} nodes"
        if count
        else "not available: neither Pyxis nor Apptainer is installed"
    )


def report_nodes(
    name: str, good: str, bad: str, rows: list[list[str]], works: Callable[[list[str]], bool]
) -> SlurmFinding:
    """Return a finding on all nodes; *rows* begin with their names."""
    wrong = [row[0] for row in rows if not works(row)]
    if wrong:
        return SlurmFinding(name, False, f"{bad} {', '.join(wrong)}")
    return SlurmFinding(name, bool(rows), f"{good} {len(rows)} nodes")
