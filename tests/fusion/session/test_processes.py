"""Sessions in real processes that are stopped, cancelled and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from support.array_jobs import (  # noqa: E402
    PreparedArray,
)
from support.fusion_equality import (  # noqa: E402
    assert_same,
)

SCRIPT = """
import sys, time
import torch
import torch.nn.functional as F
from torch import nn
from wattline import fusion

def build(config):
    torch.manual_seed(config["seed"])
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

def batches(epoch):
    g = torch.Generator().manual_seed(epoch)
    return [
        (torch.randn(6, 4, generator=g, dtype=torch.float64), torch.randint(3, (6,), generator=g))
        for _ in range(20)
    ]

def train(array, configs):
    optimiser = fusion.Adam(array, lr=[c["lr"] for c in configs])
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
    with fusion.Session(array, configs, optimiser) as run:
        for epoch in run.epochs(3):
            for x, y in run.steps(batches(epoch)):
                losses = step(x, y)
                print("stepped", flush=True)
                time.sleep(PAUSE)
            run.report(loss=losses)

fusion.main(build, train)
"""


def start(prepared: PreparedArray, pause_s: float, *arguments: str, **more: str) -> subprocess.Popen[str]:
    script = prepared.root / "train.py"
    script.write_text(SCRIPT.replace("PAUSE", str(pause_s)))
    keep = {name: value for name, value in os.environ.items() if not name.startswith("WATTLINE_")}
    job_environment = more or prepared.environment
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={
            **keep,
            **job_environment,
            "WATTLINE_STATE": str(prepared.root / "state"),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_exit(job: subprocess.Popen[str]) -> int:
    job.communicate(timeout=120)
    return job.returncode


def wait_for_line(lines: Iterable[str] | None, word: str) -> None:
    assert lines is not None
    assert any(line.startswith(word) for line in lines)


def saved_models(prepared: PreparedArray) -> list[dict[str, Tensor]]:
    newest = [max(prepared.checkpoint_folder(name).glob("0*")) / "user" for name in prepared.names]
    return [torch.load(path, weights_only=False)["model"] for path in newest]


@pytest.mark.slow
def test_stopped_and_restarted_processes_end_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["lr=0.01,0.02", "seed=1"]
    undisturbed = PreparedArray(tmp_path / "whole", monkeypatch, 2)
    assert wait_for_exit(start(undisturbed, 0.0, *arguments)) == 0
    prepared = PreparedArray(tmp_path / "stopped", monkeypatch, 2)
    job = start(prepared, 0.05, *arguments)
    wait_for_line(job.stdout, "stepped")
    job.terminate()
    assert wait_for_exit(job) == 75
    assert [prepared.event_names(name)[-1] for name in prepared.names] == ["yielded"] * 2
    second = PreparedArray(tmp_path / "stopped", monkeypatch, 2, attempt=2)
    assert wait_for_exit(start(second, 0.0, *arguments)) == 0
    for ours, theirs in zip(saved_models(second), saved_models(undisturbed), strict=True):
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), name


@pytest.mark.slow
def test_one_member_is_cancelled_from_outside_and_the_other_resumes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedArray(tmp_path, monkeypatch, 2)
    job = start(prepared, 0.1, "lr=0.01,0.02", "seed=1")
    wait_for_line(job.stdout, "stepped")
    prepared.cancel("job-0")  # the leading member
    for _ in range(600):
        if prepared.event_names("job-0")[-1:] == ["ended"]:
            break
        time.sleep(0.05)
    assert prepared.events("job-0")[-1]["how"] == "cancelled"
    job.terminate()
    assert wait_for_exit(job) == 75
    assert prepared.event_names("job-1")[-1] == "yielded"
    alone = {"WATTLINE_CHECKPOINT_DIR": str(prepared.checkpoint_folder("job-1"))}
    assert wait_for_exit(start(prepared, 0.0, "lr=0.02", "seed=1", **alone)) == 0
    whole = {"WATTLINE_CHECKPOINT_DIR": str(tmp_path / "whole")}
    assert wait_for_exit(start(prepared, 0.0, "lr=0.02", "seed=1", **whole)) == 0
    theirs = torch.load(max((tmp_path / "whole").glob("0*")) / "user", weights_only=False)["model"]
    for name, tensor in theirs.items():
        assert_same(saved_models(prepared)[1][name], tensor, name)
