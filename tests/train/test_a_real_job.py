"""A real PyTorch job on the CPU, with a simulated GPU that keeps its cap when a process ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wattline.meter import open_meter

SCRIPT = Path(__file__).parent / "trainee.py"
pytestmark = pytest.mark.slow


def build_environment(tmp_path: Path, **more: str) -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("WATTLINE_")}
    return {
        **keep,
        "WATTLINE_METER": describe_meter(tmp_path),
        "WATTLINE_STATE": str(tmp_path / "state"),
        "WATTLINE_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        **more,
    }


def describe_meter(tmp_path: Path) -> str:
    return f"simulated:1xv100,model=resnet50,batch=64,time=virtual,state={tmp_path / 'gpus'}"


def run_script(tmp_path: Path, *words: object, **more: str) -> tuple[int, dict[str, list[str]]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, words)],
        env=build_environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    if done.returncode not in (0, 75, -9):
        raise AssertionError(done.stderr)
    return done.returncode, {line[0]: line[1].split() if len(line) > 1 else [] for line in lines}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition with a generous time limit."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("the condition did not become true")


def test_a_real_job_sets_the_best_cap_within_one_epoch(tmp_path: Path) -> None:
    code, output = run_script(tmp_path, 700, 1, WATTLINE_AIM="energy")
    assert code == 0
    cap_w = float(output["done"][2])
    gpu = open_meter(describe_meter(tmp_path)).gpus[0]
    assert gpu.cap_range_w()[0] <= cap_w < gpu.cap_range_w()[1]
    assert gpu.cap_w() == gpu.cap_range_w()[1]  # restored


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the weights of a job that ran without interruption."""
    code, output = run_script(tmp_path_factory.mktemp("whole"), 60, 3)
    assert code == 0
    return output["weights"]


@pytest.mark.parametrize("die_at", [1, 37, 101])
def test_a_killed_job_leaves_no_cap_and_resumes_from_its_checkpoint(
    tmp_path: Path, die_at: int, undisturbed: list[str]
) -> None:
    code, output = run_script(tmp_path, 60, 3, die_at)
    assert code == -9
    gpu = open_meter(describe_meter(tmp_path)).gpus[0]
    wait_until(lambda: gpu.cap_w() == gpu.cap_range_w()[1])  # by the watchdog
    code, output = run_script(tmp_path, 60, 3)
    assert code == 0
    assert output["done"][0] == "180"
    # It resumes at the step of its last checkpoint, and ends with the weights of an uninterrupted run.
    assert output["weights"] == undisturbed
    assert ("resumed" in output) == (die_at > 60)


@pytest.mark.parametrize("face", ["iterate", "push"])
def test_a_job_asked_to_yield_exits_with_75_and_ends_with_the_same_weights(
    tmp_path: Path, undisturbed: list[str], face: str
) -> None:
    words = [sys.executable, str(SCRIPT), "60", "3"]
    environment = build_environment(tmp_path, FACE=face)
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline().startswith("fresh")
        job.terminate()
        assert job.wait(timeout=300) == 75
    code, output = run_script(tmp_path, 60, 3, FACE=face)
    assert code == 0
    assert output["weights"] == undisturbed
    assert output["done"][0] == "180"


def test_a_framework_that_owns_the_loop_gets_the_same_events_energy_and_weights(tmp_path: Path) -> None:
    outputs, events = [], []
    for face in ("iterate", "push"):
        folder = tmp_path / face
        more = {"FACE": face, "WATTLINE_EVENTS": str(folder / "events"), "WATTLINE_AIM": "energy"}
        code, output = run_script(folder, 300, 3, **more)
        assert code == 0
        outputs.append(output)
        rows = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
        events.append([{k: v for k, v in row.items() if k not in ("at", "job")} for row in rows])
    assert outputs[0] == outputs[1]
    assert events[0] == events[1]
    assert {"began", "progress", "cap", "report", "ended"} <= {event["event"] for event in events[0]}


def test_two_ranks_agree_on_caps_and_on_the_target(tmp_path: Path) -> None:
    two = f"simulated:2xv100,model=resnet50,batch=128,time=virtual,state={tmp_path / 'gpus'}"
    more = {"WATTLINE_METER": two, "WATTLINE_AIM": "energy", "WATTLINE_CHECKPOINT_DIR": ""}
    first = run_ranks(tmp_path, 700, 1, **more)
    assert float(first[0][2]) < 300.0
    again = run_ranks(
        tmp_path, 700, 1, **more
    )  # the first rank has the measurements, and the other uses its result
    assert {line[2] for line in again} == {line[2] for line in first}
    ended = run_ranks(tmp_path, 60, 3, WATTLINE_TARGET="loss<=500", **more)  # only the first rank reaches it
    assert [line[0] for line in ended] == ["60", "60"]
    pushed = run_ranks(tmp_path, 60, 3, WATTLINE_TARGET="loss<=500", FACE="push", **more)
    assert [line[:3] for line in pushed] == [line[:3] for line in ended]


def test_two_ranks_on_one_gpu_leave_caps_alone(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, 60, 1, WATTLINE_CHECKPOINT_DIR="")
    assert [line[0] for line in done] == ["60", "60"]
    assert {line[2] for line in done} == {"300.0"}


def run_ranks(tmp_path: Path, *words: object, **more: str) -> list[list[str]]:
    """Run the script on two ranks, and return the fields of their last lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    done = subprocess.run(
        [*launch, str(SCRIPT), *map(str, words)],
        env=build_environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("done")]
