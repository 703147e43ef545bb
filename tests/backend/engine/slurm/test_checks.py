from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.command_line import run_command
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.slurm.checks import check_cluster, check_kill_wait


def test_a_short_kill_wait_is_explained() -> None:
    finding = check_kill_wait({"KillWait": "5 sec"})
    assert not finding.works
    assert "set KillWait=30" in finding.says
    assert check_kill_wait({"KillWait": "30 sec"}).works


@pytest.mark.slow
def test_all_nodes_are_probed_by_one_job(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in check_cluster("main", tmp_path)}
    assert [f for f in findings.values() if not f.works] == []
    assert findings["partition"].says == "main: 4 nodes, 8 GPUs"
    assert findings["slurm"].says.startswith("version ")
    assert findings[f"folder {tmp_path}"].says == "is read on 4 nodes"
    assert findings[f"user id {os.getuid()}"].says == "is the same on 4 nodes"
    assert findings[sys.executable].says == "is on 4 nodes"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_doctor_prints_the_findings_and_fails_for_an_unknown_partition(
    slurm_cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command(capsys, "doctor", "--partition", "main", "--dir", str(tmp_path))
    assert code == 0
    assert "is read on 4 nodes" in out
    code, out, _ = run_command(capsys, "doctor", "--partition", "nope", "--dir", str(tmp_path))
    assert code == 1
    assert "partition 'nope'" in out
