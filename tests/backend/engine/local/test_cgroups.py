"""A job has the cores and the memory that it was given, by what this machine has for that."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.attempts import (
    is_alive,
    python_command,
    read_output,
    start_attempt,
    wait_for_exit,
    wait_until,
    write_attempt,
)
from wattline.backend.engine.local import supervisor as shim
from wattline.backend.engine.local.attempt import Attempt
from wattline.backend.engine.local.cgroups import Limits, Prepared

FIRST = Path("/sys/fs/cgroup")
V2 = {
    "cpuset.cpus": "",
    "cpu.max": "max 100000",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "memory.stat": "anon 4096\nfile 999999\nshmem 4096\n",
    "cgroup.procs": "",
}


def writable_first() -> bool:
    return os.access(FIRST / "memory" / "memory.limit_in_bytes", os.W_OK) and (FIRST / "cpuset").is_dir()


first = pytest.mark.skipif(os.geteuid() != 0 or not writable_first(), reason="no cgroups of the first kind")


@pytest.fixture
def name() -> Iterator[str]:
    """A name that is free, and is released in the end."""
    word = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    limits = Limits(parent="wattline-test")
    assert limits.release(word)
    for kind in ("cpuset", "memory"):
        parent = FIRST / kind / "wattline-test"
        if parent.is_dir() and not any(path.is_dir() for path in parent.iterdir()):
            parent.rmdir()


@pytest.fixture
def real() -> Limits:
    return Limits(parent="wattline-test")


def fake(tmp_path: Path, controllers: str, own: str = "0::/user") -> Limits:
    """A tree as the kernel would have it, for one job."""
    home = tmp_path / "cgroup" / "user"
    job = home / "wattline" / "job"
    job.mkdir(parents=True)
    (home / "cgroup.controllers").write_text(controllers)
    for folder in (home, home / "wattline"):
        (folder / "cgroup.subtree_control").write_text(controllers)
    for file, text in V2.items():
        if file.split(".")[0] in [*controllers.split(), "cgroup"]:
            (job / file).write_text(text)
    (tmp_path / "own").write_text(f"{own}\n")
    return Limits(tmp_path / "cgroup", tmp_path / "own")


def limited(folder: Path, prepared: Prepared, *words: str, **more: object) -> Attempt:
    attempt = write_attempt(folder, *words, cgroups=prepared.cgroups, cores=prepared.cores, **more)
    attempt.start()
    return attempt


@first
def test_a_real_cgroup_of_the_first_kind_has_cores_and_memory(
    tmp_path: Path, name: str, real: Limits
) -> None:
    core = max(os.sched_getaffinity(0))
    prepared = real.prepare(name, [core], 1 << 28)
    assert prepared.method == "cores by a cgroup (v1, cpuset), memory by a cgroup (v1)"
    assert prepared.cores is None
    assert len(prepared.cgroups) == 2
    script = "grep Cpus_allowed_list /proc/self/status; grep -E 'memory|cpuset' /proc/self/cgroup; ulimit -d"
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", script, memory_bytes=1 << 28)
    assert wait_for_exit(attempt).code == 0
    assert read_output(attempt).splitlines()[0].split()[1] == str(core)
    assert read_output(attempt).count(f"/wattline-test/{name}\n") == 2
    assert read_output(attempt).splitlines()[-1] == "unlimited"
    assert (Path(prepared.cgroups[1]) / "memory.limit_in_bytes").read_text() == f"{1 << 28}\n"
    assert real.method == prepared.method
    assert real.release(name)
    assert not any(Path(folder).exists() for folder in prepared.cgroups)


@first
@pytest.mark.slow
def test_a_job_that_uses_too_much_memory_ran_out_of_it(tmp_path: Path, name: str, real: Limits) -> None:
    prepared = real.prepare(name, None, 64 << 20)
    attempt = limited(tmp_path / "a", prepared, *python_command("x = bytearray(1 << 28)"))
    end = wait_for_exit(attempt)
    assert (end.oom, end.signal, end.fired, end.state) == (True, "SIGKILL", None, "OUT_OF_MEMORY")
    assert end.message == "it used more memory than it may"


@first
@pytest.mark.slow
def test_a_job_that_outlives_a_worker_that_ran_out_of_memory_succeeds(
    tmp_path: Path, name: str, real: Limits
) -> None:
    prepared = real.prepare(name, None, 64 << 20)
    worker = " ".join(f"'{word}'" for word in python_command("x = bytearray(1 << 28)"))
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", f"{worker}; exit 0")
    end = wait_for_exit(attempt)
    assert (end.oom, end.code, end.state, end.message) == (True, 0, "SUCCEEDED", "")


@first
def test_a_job_that_runs_gets_other_cores_and_other_memory(tmp_path: Path, name: str, real: Limits) -> None:
    cores = sorted(os.sched_getaffinity(0))
    prepared = real.prepare(name, cores[:1], 1 << 28)
    script = (
        "import sys; x = bytearray(1 << 26); print('up'); sys.stdin.close(); import signal; signal.pause()"
    )
    attempt = limited(tmp_path / "a", prepared, *python_command(script))
    wait_until(lambda: "up" in read_output(attempt))
    pid = int((Path(prepared.cgroups[0]) / "cgroup.procs").read_text())
    memory = Path(prepared.cgroups[1]) / "memory.limit_in_bytes"
    assert os.sched_getaffinity(pid) == set(cores[:1])
    assert real.retune(name, cores, 1 << 29)
    assert os.sched_getaffinity(pid) == set(cores)
    assert int(memory.read_text()) == 1 << 29
    assert not real.retune(name, cores, 1 << 24)
    assert int(memory.read_text()) == 1 << 29
    assert real.retune(name, cores[-1:], 1 << 27)
    assert os.sched_getaffinity(pid) == {cores[-1]}
    assert int(memory.read_text()) == 1 << 27
    assert real.retune(name, None, None)
    assert int(memory.read_text()) > 1 << 60
    attempt.kill()
    wait_for_exit(attempt)


@first
def test_a_cgroup_that_is_in_use_is_not_removed_and_nothing_is_raised(
    tmp_path: Path, name: str, real: Limits
) -> None:
    prepared = real.prepare(name, None, None)
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", "echo up; exec sleep 1000")
    wait_until(lambda: "up" in read_output(attempt))
    assert not real.release(name, patience_s=0.0)
    attempt.kill()
    wait_for_exit(attempt)
    assert real.release(name)
    assert real.release(name)


@first
def test_what_a_vanished_attempt_left_in_its_cgroup_is_killed(
    tmp_path: Path, name: str, real: Limits
) -> None:
    prepared = real.prepare(name, None, None)
    script = "env -i setsid sh -c 'echo $$; exec sleep 1000' & wait"
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", script)
    wait_until(lambda: read_output(attempt).endswith("\n"))
    claim = attempt._claim()
    assert claim is not None
    os.kill(claim["pid"], 9)
    attempt.wait(30.0)
    assert is_alive(int(read_output(attempt)))
    assert attempt.kill_leftovers()
    assert not is_alive(int(read_output(attempt)))


@pytest.mark.skipif(
    not os.access(FIRST / "unified", os.W_OK), reason="no cgroup of the second kind to write to"
)
def test_a_cgroup_of_the_second_kind_is_killed_as_one(tmp_path: Path) -> None:
    folder = FIRST / "unified" / f"wattline-test-{os.getpid()}"
    folder.mkdir()
    try:
        attempt = start_attempt(tmp_path / "a", "setsid sleep 1000 & echo up; wait", cgroups=(str(folder),))
        wait_until(lambda: "up" in read_output(attempt))
        wait_until(lambda: len((folder / "cgroup.procs").read_text().split()) == 2)
        attempt.kill()
        assert wait_for_exit(attempt).fired == "SIGKILL"
        assert (folder / "cgroup.procs").read_text() == ""
    finally:
        wait_until(
            lambda: subprocess.run(["rmdir", str(folder)], check=False, capture_output=True).returncode == 0
        )


def test_the_second_kind_has_a_cpuset_and_all_of_a_job_dies_together(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset cpu memory")
    prepared = limits.prepare("job", [0, 3], 1 << 30)
    job = tmp_path / "cgroup/user/wattline/job"
    assert prepared == Prepared((str(job),), None, "cores by a cgroup (v2, cpuset), memory by a cgroup (v2)")
    found = {path.name: path.read_text() for path in job.iterdir()}
    assert (found["cpuset.cpus"], found["memory.max"]) == ("0,3", str(1 << 30))
    assert (found["memory.swap.max"], found["memory.oom.group"]) == ("0", "1")


def test_without_a_cpuset_it_is_a_quota_and_affinity(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpu memory pids")
    prepared = limits.prepare("job", [0, 1], None)
    assert prepared.cores == (0, 1)
    assert prepared.method == "cores by a cgroup (v2, cpu.max) and CPU affinity, memory by a cgroup (v2)"
    job = tmp_path / "cgroup/user/wattline/job"
    assert ((job / "cpu.max").read_text(), (job / "memory.max").read_text()) == ("200000 100000", "max")
    assert limits.retune("job", [1], 1 << 20)
    assert ((job / "cpu.max").read_text(), (job / "memory.max").read_text()) == (
        "100000 100000",
        str(1 << 20),
    )


def test_affinity_of_a_job_that_runs_follows_its_quota(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpu memory")
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen(python_command("input()"), stdin=subprocess.PIPE) as process:
        (tmp_path / "cgroup/user/wattline/job/cgroup.procs").write_text(f"{process.pid}\n999999999\n")
        assert limits.retune("job", [core], None)
        assert os.sched_getaffinity(process.pid) == {core}
        process.communicate(b"\n")


def test_memory_is_not_set_below_what_a_job_holds(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    limits.prepare("job", [0], 1 << 20)
    assert not limits.retune("job", [0], 8191)
    assert limits.retune("job", [0], 8192)


def test_controllers_are_handed_down(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    control = tmp_path / "cgroup/user/cgroup.subtree_control"
    control.write_text("cpuset")
    limits.prepare("job", None, None)
    assert control.read_text() == "+memory"


def test_who_stepped_aside_finds_the_same_cgroup(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory", "0::/user/wattline-self")
    assert limits.prepare("job", [0], None).cgroups == (str(tmp_path / "cgroup/user/wattline/job"),)


def test_without_cgroups_it_is_affinity_and_a_limit_of_each_process(tmp_path: Path) -> None:
    limits = Limits(tmp_path / "none", tmp_path / "none")
    method = "cores by CPU affinity, memory of each process by RLIMIT_DATA"
    assert limits.prepare("job", [1], 1 << 20) == Prepared((), (1,), method)
    assert limits.method == method
    assert not limits.retune("job", [0], None)
    assert limits.release("job")


def test_a_controller_that_was_not_handed_to_us_leaves_nothing_behind(tmp_path: Path) -> None:
    limits = fake(tmp_path, "pids")
    assert limits.prepare("other", [1], 1 << 20).cgroups == ()
    assert not (tmp_path / "cgroup/user/wattline/other").exists()


def test_what_cannot_be_limited_leaves_nothing_behind(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    assert limits.prepare("other", [1], 1 << 20).cgroups == ()  # nobody fills the new folder of a fake tree
    assert not (tmp_path / "cgroup/user/wattline/other").exists()


def test_names_stay_inside_their_folder(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    for word in ("../job", "..", "", "/etc"):
        assert limits.prepare(word, None, None).cgroups == ()
        assert limits.release(word)
    assert (tmp_path / "cgroup/user/wattline/job").is_dir()


def test_kills_for_want_of_memory_are_read_in_either_kind(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 1\n")
    assert shim._oom_kills([str(tmp_path)]) == 2
    (tmp_path / "memory.events").unlink()
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert shim._oom_kills([str(tmp_path), "/no/such"]) == 1
