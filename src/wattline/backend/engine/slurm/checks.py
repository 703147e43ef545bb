"""Checks of a Slurm cluster for `wattline doctor`, and of its settings when a service starts."""

from __future__ import annotations

import os
import re
import shlex
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline.backend.engine.slurm.commands import read_config, run_command
from wattline.backend.engine.slurm.node_list import read_nodes
from wattline.errors import WattlineError

GRACE_S = 30.0
"""Grace period of a job that names none."""
_PROBE_S = 60.0


@dataclass(frozen=True)
class SlurmFinding:
    """One check: its name, whether it is in order, and what was found."""

    name: str
    works: bool
    says: str


def check_cluster(partition: str, folder: Path, gpu_kind: str = "") -> list[SlurmFinding]:
    """Check a partition, and on each of its nodes that is free the folder, the user and Python."""
    try:
        node_list, config = read_nodes(partition, gpu_kind), read_config()
    except WattlineError as error:
        return [SlurmFinding("slurm", False, error.message)]
    gpus = int(node_list.nodes.gpus.sum())
    findings = [
        SlurmFinding("slurm", True, f"version {node_list.version}; run with 22.05, later ones are not"),
        SlurmFinding("partition", True, f"{partition}: {len(node_list.names)} nodes, {gpus} GPUs"),
        check_kill_wait(config),
        _describe_scripts(config),
    ]
    try:
        return [*findings, *probe_nodes(partition, len(node_list.names), folder)]
    except (WattlineError, OSError) as error:
        return [*findings, SlurmFinding("nodes", False, f"no job could be run on all nodes: {error}")]


def check_kill_wait(config: Mapping[str, str]) -> SlurmFinding:
    """Compare the time that Slurm leaves to processes after SIGTERM with a job's grace period."""
    wait_s = float((re.match(r"\d+", config.get("KillWait", "")) or ["30"])[0])
    says = f"{wait_s:g} s between SIGTERM and SIGKILL"
    if wait_s < GRACE_S:
        return SlurmFinding(
            "KillWait",
            False,
            f"{says}: jobs that Slurm preempts or ends may be killed while they save; "
            f"set KillWait={GRACE_S:.0f} in slurm.conf",
        )
    return SlurmFinding("KillWait", True, says)


def _describe_scripts(config: Mapping[str, str]) -> SlurmFinding:
    named = {name: config.get(name, "(null)") for name in ("Prolog", "Epilog")}
    texts = [f"{name} {value}" for name, value in named.items() if value not in ("(null)", "")]
    return SlurmFinding("prolog", True, ", ".join(texts) or "none")


def probe_nodes(partition: str, nodes: int, folder: Path) -> list[SlurmFinding]:
    """Run a command on all nodes at once, which reads a new file in *folder*, its user and Python."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.write_text("shared")
    read = f"cat {shlex.quote(str(probe))} 2>/dev/null || echo missing"
    run = f"[ -x {shlex.quote(sys.executable)} ] && echo found || echo missing"
    script = f'PATH=/usr/bin:/bin; echo "$SLURMD_NODENAME|$(id -u)|$({read})|$({run})"'
    try:
        rows = run_command(
            [
                "srun",
                f"--partition={partition}",
                f"--nodes={nodes}",
                "--ntasks-per-node=1",
                "--immediate=30",
                "--overcommit",
                "--time=1",
                "--chdir=/",
                "--export=NIL",
                "/bin/sh",
                "-c",
                script,
            ],
            _PROBE_S,
        ).splitlines()
    finally:
        probe.unlink()
    found = [row.split("|") for row in rows if row.count("|") == 3]
    own = str(os.getuid())
    return [
        _report(
            f"folder {folder}", "is read on", "is not shared with", found, lambda row: row[2] == "shared"
        ),
        _report(f"user id {own}", "is the same on", "is another on", found, lambda row: row[1] == own),
        _report(sys.executable, "is on", "is missing on", found, lambda row: row[3] == "found"),
    ]


def _report(name: str, good: str, bad: str, rows: list[list[str]], works: object) -> SlurmFinding:
    assert callable(works)
    wrong = [row[0] for row in rows if not works(row)]
    if wrong:
        return SlurmFinding(name, False, f"{bad} {', '.join(wrong)}")
    return SlurmFinding(name, bool(rows), f"{good} {len(rows)} nodes")
