"""Commands run with a given number of cores, and the steps they count."""

import itertools
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError, NotFound
from wattline.profiler import run as module
from wattline.profiler import step_counter
from wattline.profiler.cpu_limits import Limits, limits
from wattline.profiler.run import Job, JobDied, NoSteps, Patience, _JobMonitor, build_environment, measure
from wattline.profiler.step_rate import STEP_PATTERN, OutputStepCounter, estimate_rate

ALL_CORES = Limits(tuple(sorted(os.sched_getaffinity(0))))
QUICK = Patience(warmup=5, most_s=0.2, first_step_s=30.0)
STEPS = "from wattline.profiler.step_counter import steps\nimport itertools, time\n"
FOREVER = STEPS + "for _ in steps(itertools.count()): time.sleep(0.001)\n"

Script = Callable[[str], Job]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that writes a script and returns its job."""

    def write_script(text: str) -> Job:
        path = tmp_path / "job.py"
        path.write_text(text)
        return Job((sys.executable, str(path)))

    return write_script


# The rate


def test_even_steps_have_an_exact_rate() -> None:
    found = estimate_rate([0.5 * i for i in range(101)], list(range(101)), 20)
    assert found is not None
    assert found.steps_s == pytest.approx(2.0)
    assert found.stderr == pytest.approx(0.0, abs=1e-9)
    assert found.steps == 80


def test_warm_up_steps_are_left_out() -> None:
    slow = [float(i) for i in range(11)]
    found = estimate_rate(slow + [10 + 0.1 * (i + 1) for i in range(100)], list(range(111)), 10)
    assert found is not None
    assert found.steps_s == pytest.approx(10.0)


def test_steps_that_come_in_bursts_are_no_faster_and_no_less_sure() -> None:
    moments = [float(i // 8) for i in range(401)]  # eight workers, all at once
    found = estimate_rate(moments, list(range(401)), 0)
    assert found is not None
    assert found.steps_s == pytest.approx(8.0, rel=0.02)
    assert found.stderr < 0.1


def test_a_rate_that_drifts_is_not_sure_of_itself() -> None:
    moments = [0.01 * i**2 for i in range(101)]
    found = estimate_rate(moments, list(range(101)), 0)
    assert found is not None
    assert found.stderr > 0.1 * found.steps_s


@given(
    st.lists(st.tuples(st.floats(1e-3, 10.0), st.integers(1, 9)), min_size=2, max_size=60),
    st.integers(0, 50),
    st.floats(-1e3, 1e3),
)
def test_a_rate_is_steps_over_seconds_whenever_it_began(
    step_counter: list[tuple[float, int]], warmup: int, began_s: float
) -> None:
    at_s, done, now_s, count = [], [], began_s, 0
    for passed_s, steps in step_counter:
        now_s, count = now_s + passed_s, count + steps
        at_s.append(now_s)
        done.append(count)
    found = estimate_rate(at_s, done, warmup)
    left = [(t, n) for t, n in zip(at_s, done, strict=True) if n >= warmup]
    if len(left) < 2:
        assert found is None
        return
    assert found is not None
    assert found.steps == left[-1][1] - left[0][1]
    assert found.steps_s == pytest.approx(found.steps / (left[-1][0] - left[0][0]))
    assert found.stderr >= 0


# Steps in the output


@pytest.mark.parametrize(
    "line",
    [
        "step 12",
        "Step: 12, loss 0.5",
        "Epoch 3 | iter 12 | lr 1e-3",
        "iteration=12",
        "train: batch [12/391] 0.1 s",
        "{'loss': 0.3, 'global_step': 12}",
        "global_step=12",
        "2026-11-16 09:00:01 INFO steps 12 done",
        " 31%|███       | 12/391 [00:03<01:33,  4.05it/s]",
        "Epoch 0:   3%|▎  | 12/391 [00:03<01:33,  4.05it/s, loss=2.3]",
    ],
)
def test_common_lines_contain_the_step_number(line: str) -> None:
    counter = OutputStepCounter(STEP_PATTERN)
    assert not counter.add_line("loading 7 files, 10/12 done")
    assert counter.add_line(line.replace("12", "2", 1))
    assert counter.add_line(line)
    assert counter.steps == 10


@pytest.mark.parametrize("line", ["loss 12", "epoch 12", "2026/11/16 12:00", "footstep 12", "batch size: 12"])
def test_other_lines_are_not_steps(line: str) -> None:
    assert not OutputStepCounter(STEP_PATTERN).add_line(line)


def test_step_numbers_may_skip_and_restart_with_an_epoch() -> None:
    counter = OutputStepCounter(STEP_PATTERN)
    for number in (0, 50, 100, 100, 0, 50):
        counter.add_line(f"step {number}")
    assert counter.steps == 200


def test_a_pattern_without_a_number_counts_one_step_per_line() -> None:
    counter = OutputStepCounter("tick|tock")
    assert [counter.add_line(line) for line in ("tick", "tock", "boom")] == [True, True, False]
    assert counter.steps == 2


def test_the_last_state_of_a_redrawn_progress_bar_counts() -> None:
    counter = OutputStepCounter(r"step (\d+)")
    counter.add_line("step 1")
    counter.add_line("step 2 step 3 step 4")
    assert counter.steps == 3


# In the job


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


# Limits


def test_the_environment_has_the_cores_and_the_pipe() -> None:
    env = build_environment(2.5, "/tmp/x")
    assert (env["WATTLINE_CPUS"], env["OMP_NUM_THREADS"], env["WATTLINE_STEPS"]) == ("3", "3", "/tmp/x")
    assert env["PATH"] == os.environ["PATH"]


def test_started_processes_are_restricted_and_the_profiler_is_not() -> None:
    before = os.sched_getaffinity(0)
    with ALL_CORES.restrict(1):
        assert os.sched_getaffinity(0) == {ALL_CORES.cores[0]}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ZeroDivisionError), ALL_CORES.restrict(1):
        _ = 1 / 0
    assert os.sched_getaffinity(0) == before


def make_cgroups(
    root: Path, controllers: str, subtree: str, most: str = "max 100000"
) -> tuple[Path, Path, Path]:
    home = root / "jobs" / "mine"
    home.mkdir(parents=True)
    files = {"controllers": controllers, "subtree_control": subtree, "procs": ""}
    for name, text in files.items():
        (home / f"cgroup.{name}").write_text(text)
    (home / "cpu.max").write_text(most)
    own = root / "own"
    own.write_text("1:cpu:/\n0::/jobs/mine\n")
    return root, own, home


def test_a_cgroup_is_created_if_possible(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu memory", "cpu")
    with limits(root, own) as limit:
        assert str(limit) == "a cgroup (cpu.max) and CPU affinity"
        assert limit.cgroup is not None
        assert limit.cgroup.parent == home
        with limit.restrict(0.5):
            assert (limit.cgroup / "cpu.max").read_text() == "50000 100000"
        assert limit.wrap_command(["a", "b"])[-3:] == [str(limit.cgroup / "cgroup.procs"), "a", "b"]


def test_the_profiler_moves_to_a_child_cgroup_if_necessary(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu", "")
    with limits(root, own) as limit:
        assert limit.cgroup is not None
        assert (home / "cgroup.subtree_control").read_text() == "+cpu"
        own_cgroup = next(home.glob("*-self"))
        assert (own_cgroup / "cgroup.procs").read_text() == str(os.getpid())
    assert (home / "cgroup.subtree_control").read_text() == "-cpu"
    assert (home / "cgroup.procs").read_text() == str(os.getpid())


def test_without_a_cgroup_cores_are_limited_by_affinity(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "memory", "")
    with limits(root, own) as limit:
        assert limit == ALL_CORES
        assert str(limit) == "CPU affinity"
    assert not list(home.glob("wattline*"))


def test_a_cgroup_that_cannot_be_created_leaves_nothing_behind(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu", "cpu")
    (home / f"wattline-{os.getpid()}").write_text("in the way")
    with limits(root, own) as limit:
        assert limit.cgroup is None


def test_the_cores_are_limited_by_the_quota_of_the_profiler(tmp_path: Path) -> None:
    root, own, _ = make_cgroups(tmp_path, "cpu", "cpu", "150000 100000")
    with limits(root, own) as limit:
        assert len(limit.cores) == 1


# Commands


def test_steps_in_the_pipe_are_measured(script: Script) -> None:
    point = measure(script(FOREVER), 1, ALL_CORES, QUICK)
    assert point.cpus == 1
    assert point.samples_s > 0
    assert point.steps >= 2


def test_steps_in_the_output_are_measured(script: Script) -> None:
    job = script(
        "import itertools, time\nfor i in itertools.count():\n    time.sleep(0.001)\n    print('step', i)\n"
    )
    assert measure(job, 1, ALL_CORES, QUICK).steps >= 2


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
    assert measure(Job(job.command, batch=4), 1, ALL_CORES, Patience(most_s=0.5)).steps >= 2


def test_samples_are_steps_times_the_batch(script: Script) -> None:
    job = script(FOREVER)
    one = measure(job, 1, ALL_CORES, QUICK)
    many = measure(Job(job.command, batch=1e6), 1, ALL_CORES, QUICK)
    assert many.samples_s > 100 * one.samples_s  # a million times, if the machine's speed is stable


def test_a_job_that_ends_after_enough_steps_is_measured(script: Script) -> None:
    job = script(STEPS + "for _ in steps(range(300)): time.sleep(0.001)\n")
    point = measure(job, 1, ALL_CORES, Patience(warmup=5, most_s=600.0, precision=1e-9))
    assert 20 <= point.steps <= 295


def test_a_job_has_its_cores(script: Script, tmp_path: Path) -> None:
    job = script(
        "import os, sys\n"
        "seen = len(os.sched_getaffinity(0)), sys.argv[2], os.environ['WATTLINE_CPUS']\n"
        "open(sys.argv[1], 'w').write(str(seen))\n" + FOREVER
    )
    seen = tmp_path / "seen"
    measure(Job((*job.command, str(seen), "--workers={cpus}")), 1, ALL_CORES, QUICK)
    assert seen.read_text() == str((1, "--workers=1", "1"))


def test_the_error_for_a_failed_job_quotes_its_last_lines(script: Script) -> None:
    text = "import sys\nprint('hello')\nfor i in range(99): print('line', i, file=sys.stderr)\nsys.exit(7)\n"
    with pytest.raises(JobDied) as caught:
        measure(script(text), 1, ALL_CORES, QUICK)
    assert str(caught.value).startswith("the command failed with exit code 7 before its first step\n")
    assert str(caught.value).endswith("  | line 97\n  | line 98")
    assert len(str(caught.value).splitlines()) == 13


def test_an_incomplete_last_line_is_quoted(script: Script) -> None:
    with pytest.raises(JobDied, match="exit code 4 before its first step\n  \\| half a li"):
        measure(script("import sys\nsys.stderr.write('half a li')\nsys.exit(4)\n"), 1, ALL_CORES, QUICK)


def test_the_error_for_a_killed_job_names_the_signal(script: Script) -> None:
    text = STEPS + "import os\nfor _ in steps(range(3)): pass\nos.kill(os.getpid(), 9)\n"
    with pytest.raises(JobDied, match="was killed by SIGKILL after 3 steps"):
        measure(script(text), 1, ALL_CORES, QUICK)


def test_a_job_that_fails_after_many_steps_is_not_measured(script: Script) -> None:
    with pytest.raises(JobDied, match="exit code 1 after 500 steps"):
        measure(
            script(STEPS + "for _ in steps(range(500)): pass\nraise SystemExit(1)\n"), 1, ALL_CORES, QUICK
        )


def test_a_job_that_ends_too_soon_is_an_error_with_a_hint(script: Script) -> None:
    with pytest.raises(JobDied, match="ended after 6 steps, too few") as caught:
        measure(script(STEPS + "for _ in steps(range(6)): pass\n"), 1, ALL_CORES, QUICK)
    assert "train for longer" in caught.value.hint


def test_a_job_that_never_steps_is_stopped(script: Script) -> None:
    with pytest.raises(NoSteps, match="did no step in") as caught:
        measure(script("import time\ntime.sleep(600)\n"), 1, ALL_CORES, Patience(first_step_s=0.2))
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
            monitor = _JobMonitor(Job(("sleep", "600")), silent, steps)
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
    assert measure(script(FOREVER), 1, ALL_CORES, patience).steps >= 2


@pytest.mark.parametrize("ignoring", ["", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_all_processes_of_a_job_are_stopped(script: Script, tmp_path: Path, ignoring: str) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    alive = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = f"import os, time\n{ignoring}alive = os.open({str(pipe)!r}, os.O_WRONLY)\n"
    text += "if not os.fork(): time.sleep(600)\n"
    measure(script(text + FOREVER), 1, ALL_CORES, Patience(warmup=5, most_s=0.2, grace_s=0.2))
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
    measure(script(text + FOREVER), 1, ALL_CORES, Patience(warmup=5, most_s=0.2, grace_s=30.0))
    assert (tmp_path / "left").read_text() == "clean"


def test_an_interrupted_profiler_stops_its_job(script: Script, tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    alive = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = f"import os\nalive = os.open({str(pipe)!r}, os.O_WRONLY)\n" + FOREVER

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt  # as Ctrl-C does; a real signal may arrive where exceptions are suppressed

    with pytest.raises(KeyboardInterrupt):
        measure(script(text), 1, ALL_CORES, QUICK, interrupt)
    assert select.select([alive], [], [], 30)[0]
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_the_error_for_a_command_that_cannot_be_started_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nosuchthing cannot be started: no such command"):
        Job(("nosuchthing", "-x"))
    plain = tmp_path / "plain"
    plain.write_text("text")
    with pytest.raises(ConfigError, match="plain cannot be started: it is not executable"):
        Job((str(plain),))
    plain.chmod(0o755)
    with pytest.raises(ConfigError, match="plain cannot be started: Exec format error"):
        measure(Job((str(plain),)), 1, ALL_CORES, QUICK)


def test_an_empty_command_and_an_invalid_pattern_are_refused() -> None:
    with pytest.raises(ConfigError, match="no command was given"):
        Job(())
    with pytest.raises(ConfigError, match="is not a regular expression"):
        Job((sys.executable,), pattern="step (")


@pytest.mark.parametrize("parameters", [{"most_s": 0.0}, {"first_step_s": float("inf")}, {"precision": 1.0}])
def test_invalid_time_limits_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(parameters))} is"):
        Patience(**parameters)  # type: ignore[arg-type]
