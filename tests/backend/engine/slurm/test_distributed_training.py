"""A real PyTorch job with gloo that grows from two to four GPUs on two nodes of Slurm."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import wattline
from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.actions import ACTION_COLUMNS, START, STOP

pytestmark = pytest.mark.slow
STEPS, EPOCHS = 120, 3
SCRIPT = Path(__file__).parents[3] / "support" / "gloo_trainee.py"


def read_weights(path: Path) -> np.ndarray:
    return np.concatenate([np.array(part) for part in ast.literal_eval(path.read_text())])


def test_a_gloo_job_grows_on_two_nodes_and_ends_with_the_weights_of_an_undisturbed_run(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    root = tmp_path / "service"
    path = {"PYTHONPATH": str(Path(wattline.__file__).parents[1])}

    def command(pause_s: float, weights: str) -> tuple[str, ...]:
        words = (STEPS, EPOCHS, pause_s, tmp_path / weights)
        return (sys.executable, str(SCRIPT), *map(str, words))

    backend = Slurm(root, SlurmOptions("two", meter="none"), stay_open=True)
    spec = JobSpec("1", command(0.03, "disturbed"), env=path, retries=0, grace_s=60.0)
    backend.submit([JobRecord(spec, JOB_REQUEST, time.time())])

    def apply(*actions: tuple[int, ...]) -> None:
        block = np.zeros((len(actions), ACTION_COLUMNS), dtype=np.int64)
        for row, action in zip(block, actions, strict=True):
            row[: len(action)] = action
        backend.apply(block)

    def wait_until(condition: object) -> None:
        assert callable(condition)
        end_s = time.monotonic() + 120
        while not condition():
            backend.wait(time.time() + 0.2)
            assert time.monotonic() < end_s, logs()

    def logs() -> str:
        return "\n".join(log.read_text() for log in sorted(root.glob("jobs/1/attempts/*/*.log")))

    def fraction() -> float:
        attempt = backend._attempts.current.get("1")
        progress = attempt.progress.get("1") if attempt is not None else None
        return (progress.fraction if progress is not None else None) or 0.0

    wait_until(lambda: "1" in backend.records and backend.records["1"].row == 0)
    apply((START, 0, 0, 0, 1), (START, 0, 0, 1, 1))
    wait_until(lambda: fraction() > 0.1)
    apply((STOP, 0, 0, -1), (START, 0, 0, 0, 2), (START, 0, 0, 1, 2))
    wait_until(lambda: "1" not in backend.records)
    backend.close()

    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    subprocess.run(command(0.0, "undisturbed"), env={**os.environ, **path, **alone}, check=True, timeout=120)
    np.testing.assert_allclose(
        read_weights(tmp_path / "disturbed"), read_weights(tmp_path / "undisturbed"), rtol=1e-9
    )
    first, second = attempt_folders(root, "1")
    assert sorted(log.name for log in second.glob("rank*.log")) == [f"rank{n}.log" for n in range(4)]
    assert "from step 0 rank 0 of 2" in (first / "rank0.log").read_text()
    resumed = int((second / "rank0.log").read_text().split("from step ")[1].split()[0])
    assert 0.1 * STEPS * EPOCHS <= resumed < STEPS * EPOCHS
