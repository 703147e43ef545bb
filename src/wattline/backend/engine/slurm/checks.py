"""Checks of a Slurm cluster for `wattline doctor`, and of its settings when a service starts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from wattline.backend.engine.slurm.accounts import NO_ACCOUNT, SlurmAccount
from wattline.backend.engine.slurm.commands import read_config
from wattline.backend.engine.slurm.node_list import read_nodes
from wattline.backend.engine.slurm.node_probe import SlurmFinding, probe_nodes
from wattline.backend.engine.slurm.user_checks import check_users
from wattline.errors import WattlineError

GRACE_S = 30.0
"""Grace period of a job that names none."""


def check_cluster(
    partition: str,
    folder: Path,
    gpu_kind: str = "",
    *,
    user: str = "",
    account: SlurmAccount = NO_ACCOUNT,
    python: str = sys.executable,
) -> list[SlurmFinding]:
    """Check a partition, and on each of its nodes that is free the folder, the user and Python.

    As root also that jobs of *user* run, with its *account*; empty: none.
    """
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
    count = len(node_list.names)
    try:
        findings += probe_nodes(partition, count, folder, python)
    except (WattlineError, OSError) as error:
        findings.append(SlurmFinding("nodes", False, f"no job could be run on all nodes: {error}"))
    return findings + check_users(user, partition, count, folder, python, config, account)


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
