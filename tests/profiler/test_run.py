"""Measurement of commands with a given number of cores."""

import itertools
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from wattline.errors import ConfigError, NotFound
from wattline.profiler import run as module
from wattline.profiler.cpu_limits import CpuLimits
from wattline.profiler.run import (
    JobDied,
    NoSteps,
    Patience,
    ProfiledJob,
    _JobMonitor,
    build_environment,
    measure_speed,
)

ALL_CORES = CpuLimits(tuple(sorted(os.sched_getaffinity(0))))
QUICK = Patience(warmup=5, most_s=0.2, first_step_s=30.0)
STEPS = "from wattline.profiler.step_counter import steps\nimport itertools, time\n"
FOREVER = STEPS + "for _ in steps(itertools.count()): time.sleep(0.001)\n"

Script = Callable[[str], ProfiledJob]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that writes a script and returns its job."""

    def write_script(text: str) -> ProfiledJob:
        path = tmp_path / "job.py"
        path.write_text(text)
        return ProfiledJob((sys.executable, str(path)))

    return write_script


def test_the_environment_has_the_cores_and_the_pipe() -> None:
    env = build_environment(2.5, "/tmp/x")
    assert (env["WATTLINE_CPUS"], env["OMP_NUM_THREADS"], env["WATTLINE_STEPS"]) == ("3", "3", "/tmp/x")
    assert env["PATH"] == os.environ["PATH"]


def test_steps_in_the_pipe_are_measured(script: Script) -> None:
    point = measure_speed(script(FOREVER), 1, ALL_CORES, QUICK)
    assert point.cpus == 1
    assert point.samples_s > 0
    assert point.steps >= 2


def test_steps_in_the_output_are_measured(script: Script) -> None:
    job = script(
        "import itertools, time\nfor i in itertools.count():\n    time.sleep(0.001)\n    print('step', i)\n"
    )
    assert measure_speed(job, 1, ALL_CORES, QUICK).steps >= 2


@pytest.mark.slow
def test_a_loader_of_pytorch_is_measured(script: Script) -> None:
    pytest.importorskip("torch")
    job = script(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "from wattline.profiler.step_counter import cpus, steps\n"
        "if __name__ == '__main__':\n"
        "    data = TensorDataset(torch.zeros(100_000, 4))\n"
        "    loader = steps(DataLoader(data, batch_size=4, num_workers=cpus()))\n"
        "    assert len(loader) == 25_000 and loader.batch_size == 4\n"
        "    for batch, in loader: assert batch.shape == (4, 4)\n"
    )
    assert measure_speed(ProfiledJob(job.command, batch=4), 1, ALL_CORES, Patience(most_s=0.5)).steps >= 2


def test_samples_are_steps_times_the_batch(script: Script) -> None:
    job = script(FOREVER)
    one = measure_speed(job, 1, ALL_CORES, QUICK)
    many = measure_speed(ProfiledJob(job.command, batch=1e6), 1, ALL_CORES, QUICK)
    assert many.samples_s > 100 * one.samples_s  # a million times, if the machine's speed is stable


def test_a_job_that_ends_after_enough_steps_is_measured(script: Script) -> None:
    job = script(STEPS + "for _ in steps(range(300)): time.sleep(0.001)\n")
    point = measure_speed(job, 1, ALL_CORES, Patience(warmup=5, most_s=600.0, precision=1e-9))
    assert 20 <= point.steps <= 295


def test_a_job_has_its_cores(script: Script, tmp_path: Path) -> None:
    job = script(
        "import os, sys\n"
        "seen = len(os.sched_getaffinity(0)), sys.argv[2], os.environ['WATTLINE_CPUS']\n"
        "open(sys.argv[1], 'w').write(str(seen))\n" + FOREVER
    )
    seen = tmp_path / "seen"
    measure_speed(ProfiledJob((*job.command, str(seen), "--workers={cpus}")), 1, ALL_CORES, QUICK)
    assert seen.read_text() == str((1, "--workers=1", "1"))


def test_the_error_for_a_failed_job_quotes_its_last_lines(script: Script) -> None:
    text = "import sys\nprint('hello')\nfor i in range(99): print('line', i, file=sys.stderr)\nsys.exit(7)\n"
    with pytest.raises(JobDied) as caught:
        measure_speed(script(text), 1, ALL_CORES, QUICK)
    assert str(caught.value).startswith("the command failed with exit code 7 before its first step\n")
    assert str(caught.value).endswith("  | line 97\n  | line 98")
    assert len(str(caught.value).splitlines()) == 13


def test_an_incomplete_last_line_is_quoted(script: Script) -> None:
    with pytest.raises(JobDied, match="exit code 4 before its first step\n  \\| half a li"):
        measure_speed(script("import sys\nsys.stderr.write('half a li')\nsys.exit(4)\n"), 1, ALL_CORES, QUICK)


def test_the_error_for_a_killed_job_names_the_signal(script: Script) -> None:
    text = STEPS + "import os\nfor _ in steps(range(3)): pass\nos.kill(os.getpid(), 9)\n"
    with pytest.raises(JobDied, match="was killed by SIGKILL after 3 steps"):
        measure_speed(script(text), 1, ALL_CORES, QUICK)


def test_a_job_that_fails_after_many_steps_is_not_measured(script: Script) -> None:
    with pytest.raises(JobDied, match="exit code 1 after 500 steps"):
        measure_speed(
            script(STEPS + "for _ in steps(range(500)): pass\nraise SystemExit(1)\n"), 1, ALL_CORES, QUICK
        )


def test_a_job_that_ends_too_soon_is_an_error_with_a_hint(script: Script) -> None:
    with pytest.raises(JobDied, match="ended after 6 steps, too few") as caught:
        measure_speed(script(STEPS + "for _ in steps(range(6)): pass\n"), 1, ALL_CORES, QUICK)
    assert "train for longer" in caught.value.hint


def test_a_job_that_never_steps_is_stopped(script: Script) -> None:
    with pytest.raises(NoSteps, match="did no step in") as caught:
        measure_speed(script("import time\ntime.sleep(600)\n"), 1, ALL_CORES, Patience(first_step_s=0.2))
    assert "--step-pattern" in caught.value.hint


@pytest.mark.parametrize("step_counts", [[2], [3, 3], [20] * 5])
def test_a_job_that_steps_and_then_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step_counts: list[int]
) -> None:
    pipe = tmp_path / "steps"
    os.mkfifo(pipe)
    steps = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    moments = itertools.count(0.0, 5.0)  # five seconds pass between two checks
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as silent:
        try:
            monitor = _JobMonitor(ProfiledJob(("sleep", "600")), silent, steps)
            for count in step_counts:
                os.write(steps, b"." * count)
                monitor._read(steps)
            with pytest.raises(NoSteps, match=f"did {sum(step_counts)} steps in .*, and then no more"):
                monitor.wait(Patience(most_s=1e3, precision=1e-9, first_step_s=100.0), 30, lambda share: None)
        finally:
            silent.kill()
    os.close(steps)


def test_steps_too_slow_for_the_warm_up_are_measured_anyway(script: Script) -> None:
    patience = Patience(warmup=10**9, most_s=0.1, first_step_s=30.0)
    assert measure_speed(script(FOREVER), 1, ALL_CORES, patience).steps >= 2


@pytest.mark.parametrize("ignoring", ["", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_all_processes_of_a_job_are_stopped(script: Script, tmp_path: Path, ignoring: str) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    alive = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = f"import os, time\n{ignoring}alive = os.open({str(pipe)!r}, os.O_WRONLY)\n"
    text += "if not os.fork(): time.sleep(600)\n"
    measure_speed(script(text + FOREVER), 1, ALL_CORES, Patience(warmup=5, most_s=0.2, grace_s=0.2))
    ended, _, _ = select.select([alive], [], [], 30)
    assert ended, "a process still holds the pipe"
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_a_job_may_clean_up_before_it_is_stopped(script: Script, tmp_path: Path) -> None:
    text = f"""import signal, sys
def end(*_):
    sys.stdout.write('x' * 10**6)
    open({str(tmp_path / "left")!r}, 'w').write('clean')
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""
    measure_speed(script(text + FOREVER), 1, ALL_CORES, Patience(warmup=5, most_s=0.2, grace_s=30.0))
    assert (tmp_path / "left").read_text() == "clean"


def test_an_interrupted_profiler_stops_its_job(script: Script, tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    alive = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = f"import os\nalive = os.open({str(pipe)!r}, os.O_WRONLY)\n" + FOREVER

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt  # as Ctrl-C does; a real signal may arrive where exceptions are suppressed

    with pytest.raises(KeyboardInterrupt):
        measure_speed(script(text), 1, ALL_CORES, QUICK, interrupt)
    assert select.select([alive], [], [], 30)[0]
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_the_error_for_a_command_that_cannot_be_started_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nosuchthing cannot be started: no such command"):
        ProfiledJob(("nosuchthing", "-x"))
    plain = tmp_path / "plain"
    plain.write_text("text")
    with pytest.raises(ConfigError, match="plain cannot be started: it is not executable"):
        ProfiledJob((str(plain),))
    plain.chmod(0o755)
    with pytest.raises(ConfigError, match="plain cannot be started: Exec format error"):
        measure_speed(ProfiledJob((str(plain),)), 1, ALL_CORES, QUICK)


def test_an_empty_command_and_an_invalid_pattern_are_refused() -> None:
    with pytest.raises(ConfigError, match="no command was given"):
        ProfiledJob(())
    with pytest.raises(ConfigError, match="is not a regular expression"):
        ProfiledJob((sys.executable,), pattern="step (")


@pytest.mark.parametrize("parameters", [{"most_s": 0.0}, {"first_step_s": float("inf")}, {"precision": 1.0}])
def test_invalid_time_limits_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(parameters))} is"):
        Patience(**parameters)  # type: ignore[arg-type]
