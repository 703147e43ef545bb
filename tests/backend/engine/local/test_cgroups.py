"""Limits of cores and memory by cgroups v1 and v2, and without cgroups."""

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
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.cgroups import PreparedLimits, ResourceLimits
from wattline.backend.engine.local.rank_process import count_oom_kills

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


def can_write_v1() -> bool:
    return os.access(FIRST / "memory" / "memory.limit_in_bytes", os.W_OK) and (FIRST / "cpuset").is_dir()


needs_v1 = pytest.mark.skipif(os.geteuid() != 0 or not can_write_v1(), reason="no cgroups v1")


@pytest.fixture
def name() -> Iterator[str]:
    """A name that is free, and is released in the end."""
    word = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    limits = ResourceLimits(parent="wattline-test")
    assert limits.release(word)
    for kind in ("cpuset", "memory"):
        parent = FIRST / kind / "wattline-test"
        if parent.is_dir() and not any(path.is_dir() for path in parent.iterdir()):
            parent.rmdir()


@pytest.fixture
def real() -> ResourceLimits:
    return ResourceLimits(parent="wattline-test")


def fake(tmp_path: Path, controllers: str, own: str = "0::/user") -> ResourceLimits:
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
    return ResourceLimits(tmp_path / "cgroup", tmp_path / "own")


def limited(folder: Path, prepared: PreparedLimits, *words: str, **more: object) -> AttemptProcesses:
    attempt = write_attempt(folder, *words, cgroups=prepared.cgroups, cores=prepared.cores, **more)
    attempt.start()
    return attempt


@needs_v1
def test_a_v1_cgroup_limits_cores_and_memory(tmp_path: Path, name: str, real: ResourceLimits) -> None:
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


@needs_v1
@pytest.mark.slow
def test_a_job_above_its_memory_limit_is_out_of_memory(
    tmp_path: Path, name: str, real: ResourceLimits
) -> None:
    prepared = real.prepare(name, None, 64 << 20)
    attempt = limited(tmp_path / "a", prepared, *python_command("x = bytearray(1 << 28)"))
    end = wait_for_exit(attempt)
    assert (end.oom, end.signal, end.sent_signal, end.state) == (True, "SIGKILL", None, "OUT_OF_MEMORY")
    assert end.message == "it exceeded its memory limit"


@needs_v1
@pytest.mark.slow
def test_a_job_succeeds_although_one_of_its_workers_ran_out_of_memory(
    tmp_path: Path, name: str, real: ResourceLimits
) -> None:
    prepared = real.prepare(name, None, 64 << 20)
    worker = " ".join(f"'{word}'" for word in python_command("x = bytearray(1 << 28)"))
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", f"{worker}; exit 0")
    end = wait_for_exit(attempt)
    assert (end.oom, end.code, end.state, end.message) == (True, 0, "SUCCEEDED", "")


@needs_v1
def test_limits_of_a_running_job_are_changed(tmp_path: Path, name: str, real: ResourceLimits) -> None:
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


@needs_v1
def test_a_cgroup_in_use_is_not_removed(tmp_path: Path, name: str, real: ResourceLimits) -> None:
    prepared = real.prepare(name, None, None)
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", "echo up; exec sleep 1000")
    wait_until(lambda: "up" in read_output(attempt))
    assert not real.release(name, timeout_s=0.0)
    attempt.kill()
    wait_for_exit(attempt)
    assert real.release(name)
    assert real.release(name)


@needs_v1
def test_leftovers_in_the_cgroup_of_a_vanished_attempt_are_killed(
    tmp_path: Path, name: str, real: ResourceLimits
) -> None:
    prepared = real.prepare(name, None, None)
    script = "env -i setsid sh -c 'echo $$; exec sleep 1000' & wait"
    attempt = limited(tmp_path / "a", prepared, "/bin/sh", "-c", script)
    wait_until(lambda: read_output(attempt).endswith("\n"))
    claim = attempt._read_claim()
    assert claim is not None
    os.kill(claim["pid"], 9)
    attempt.wait(30.0)
    assert is_alive(int(read_output(attempt)))
    assert attempt.kill_leftovers()
    assert not is_alive(int(read_output(attempt)))


@pytest.mark.skipif(not os.access(FIRST / "unified", os.W_OK), reason="no cgroups v2 to write to")
def test_a_v2_cgroup_is_killed_as_one(tmp_path: Path) -> None:
    folder = FIRST / "unified" / f"wattline-test-{os.getpid()}"
    folder.mkdir()
    try:
        attempt = start_attempt(tmp_path / "a", "setsid sleep 1000 & echo up; wait", cgroups=(str(folder),))
        wait_until(lambda: "up" in read_output(attempt))
        wait_until(lambda: len((folder / "cgroup.procs").read_text().split()) == 2)
        attempt.kill()
        assert wait_for_exit(attempt).sent_signal == "SIGKILL"
        assert (folder / "cgroup.procs").read_text() == ""
    finally:
        wait_until(
            lambda: subprocess.run(["rmdir", str(folder)], check=False, capture_output=True).returncode == 0
        )


def test_v2_limits_cores_by_cpuset_and_kills_the_whole_job(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset cpu memory")
    prepared = limits.prepare("job", [0, 3], 1 << 30)
    job = tmp_path / "cgroup/user/wattline/job"
    assert prepared == PreparedLimits(
        (str(job),), None, "cores by a cgroup (v2, cpuset), memory by a cgroup (v2)"
    )
    found = {path.name: path.read_text() for path in job.iterdir()}
    assert (found["cpuset.cpus"], found["memory.max"]) == ("0,3", str(1 << 30))
    assert (found["memory.swap.max"], found["memory.oom.group"]) == ("0", "1")


def test_v2_without_cpuset_uses_a_quota_and_affinity(tmp_path: Path) -> None:
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


def test_the_affinity_of_a_running_job_follows_its_quota(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpu memory")
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen(python_command("input()"), stdin=subprocess.PIPE) as process:
        (tmp_path / "cgroup/user/wattline/job/cgroup.procs").write_text(f"{process.pid}\n999999999\n")
        assert limits.retune("job", [core], None)
        assert os.sched_getaffinity(process.pid) == {core}
        process.communicate(b"\n")


def test_memory_is_not_limited_below_its_use(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    limits.prepare("job", [0], 1 << 20)
    assert not limits.retune("job", [0], 8191)
    assert limits.retune("job", [0], 8192)


def test_controllers_are_enabled_in_the_parent(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    control = tmp_path / "cgroup/user/cgroup.subtree_control"
    control.write_text("cpuset")
    limits.prepare("job", None, None)
    assert control.read_text() == "+memory"


def test_a_process_that_moved_aside_finds_the_same_cgroup(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory", "0::/user/wattline-self")
    assert limits.prepare("job", [0], None).cgroups == (str(tmp_path / "cgroup/user/wattline/job"),)


def test_without_cgroups_affinity_and_process_limits_are_used(tmp_path: Path) -> None:
    limits = ResourceLimits(tmp_path / "none", tmp_path / "none")
    method = "cores by CPU affinity, memory of each process by RLIMIT_DATA"
    assert limits.prepare("job", [1], 1 << 20) == PreparedLimits((), (1,), method)
    assert limits.method == method
    assert not limits.retune("job", [0], None)
    assert limits.release("job")


def test_a_controller_that_is_not_delegated_leaves_no_cgroup(tmp_path: Path) -> None:
    limits = fake(tmp_path, "pids")
    assert limits.prepare("other", [1], 1 << 20).cgroups == ()
    assert not (tmp_path / "cgroup/user/wattline/other").exists()


def test_a_cgroup_without_limits_is_removed(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    assert limits.prepare("other", [1], 1 << 20).cgroups == ()  # a new folder of a fake tree has no files
    assert not (tmp_path / "cgroup/user/wattline/other").exists()


def test_names_cannot_leave_their_folder(tmp_path: Path) -> None:
    limits = fake(tmp_path, "cpuset memory")
    for word in ("../job", "..", "", "/etc"):
        assert limits.prepare(word, None, None).cgroups == ()
        assert limits.release(word)
    assert (tmp_path / "cgroup/user/wattline/job").is_dir()


def test_oom_kills_are_counted_in_v1_and_v2(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 1\n")
    assert count_oom_kills([str(tmp_path)]) == 2
    (tmp_path / "memory.events").unlink()
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert count_oom_kills([str(tmp_path), "/no/such"]) == 1
