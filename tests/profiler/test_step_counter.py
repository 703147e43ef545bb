"""Steps that a profiled job writes to the pipe of the profiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wattline.profiler import step_counter


def test_without_a_profiler_steps_returns_the_loader_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(step_counter.PIPE, raising=False)
    loader = [1, 2, 3]
    assert step_counter.steps(loader) is loader
    step_counter.step()


def test_a_profiled_job_gets_the_same_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = tmp_path / "steps"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv(step_counter.PIPE, str(pipe))
    monkeypatch.setattr(step_counter, "_pipe_writer", None)
    loader = step_counter.steps([1, 2, 3])
    assert len(loader) == 3  # type: ignore[arg-type]
    assert [*loader, *loader] == [1, 2, 3, 1, 2, 3]
    assert loader.index(2) == 1  # type: ignore[attr-defined]
    assert os.read(reader, 99) == b"......"
    step_counter.step(4)
    assert os.read(reader, 99) == b"...."
    os.close(reader)
    step_counter.step()  # the pipe has no reader any more
    assert list(step_counter.steps("ab")) == ["a", "b"]


@pytest.mark.parametrize(("name", "value"), [(step_counter.PIPE, "/nowhere/at/all"), ("RANK", "3")])
def test_a_pipe_that_is_not_for_this_process_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    file = tmp_path / "steps"
    file.touch()
    monkeypatch.setenv(step_counter.PIPE, str(file))
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(step_counter, "_pipe_writer", None)
    assert list(step_counter.steps("ab")) == ["a", "b"]
    assert file.read_bytes() == b""


def test_steps_that_do_not_fit_into_a_full_pipe_are_written_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipe = tmp_path / "steps"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv(step_counter.PIPE, str(pipe))
    monkeypatch.setattr(step_counter, "_pipe_writer", None)
    for _ in range(50):
        step_counter.step(4096)
    received = 0
    while received < 50 * 4096:
        received += len(os.read(reader, 1 << 20))
        step_counter.step(0)
    os.close(reader)
    assert received == 50 * 4096


def test_cpus_returns_the_cores_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step_counter.CPUS, "7")
    assert step_counter.cpus() == 7
    monkeypatch.delenv(step_counter.CPUS)
    assert step_counter.cpus() == len(os.sched_getaffinity(0))


def test_the_step_counter_imports_only_the_standard_library() -> None:
    code = (
        "import sys, wattline.profiler.step_counter\n"
        "sys.exit(bool({'numpy', 'scipy', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
