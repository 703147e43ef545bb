"""What runs one attempt: real processes, their output and their end."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattline
from support.attempts import (
    ENV,
    is_alive,
    python_command,
    read_output,
    start_attempt,
    wait_for_exit,
    wait_until,
    write_attempt,
)
from wattline.backend.engine.local import supervisor
from wattline.backend.engine.local.attempt_files import CLAIM, LAUNCH
from wattline.backend.engine.local.launch_file import ATTEMPT, User

IGNORES = "trap '' TERM; echo up; while :; do sleep 0.05; done"
UNPRIVILEGED = pwd.getpwuid(65534)
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may")


def test_a_job_that_succeeds_has_exit_code_0(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "echo hello; echo there >&2")
    end = wait_for_exit(attempt)
    assert (end.code, end.signal, end.sent_signal, end.end_request, end.oom, end.message) == (
        0,
        None,
        None,
        None,
        False,
        "",
    )
    assert read_output(attempt) == "hello\nthere\n"
    assert end.ranks == ({"code": 0, "signal": None},)
    assert 0 < end.seconds < 20
    assert end.began_at <= end.ended_at
    assert end.max_rss_bytes > 100_000
    assert end.state == "SUCCEEDED"


def test_an_exit_code_is_kept_and_75_means_requeue(tmp_path: Path) -> None:
    assert wait_for_exit(start_attempt(tmp_path / "a", "exit 3")).code == 3
    assert wait_for_exit(start_attempt(tmp_path / "b", "exit 75")).state == "REQUEUE"


def test_a_signal_that_kills_a_job_is_named(tmp_path: Path) -> None:
    end = wait_for_exit(start_attempt(tmp_path / "a", "kill -SEGV $$"))
    assert (end.code, end.signal, end.sent_signal, end.state) == (139, "SIGSEGV", None, "FAILED")


def test_an_external_kill_is_reported_as_a_possible_lack_of_memory(tmp_path: Path) -> None:
    end = wait_for_exit(start_attempt(tmp_path / "a", "kill -KILL $$"))
    assert (end.code, end.signal, end.sent_signal) == (137, "SIGKILL", None)
    assert "out of memory" in end.message


def test_cpu_time_includes_the_children_of_a_job(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    end = wait_for_exit(start_attempt(tmp_path / "a", f"{sys.executable} -I -S -c '{burn}'; true"))
    assert end.cpu_seconds >= 0.2


def test_a_stop_sends_the_signal_of_the_job_which_may_save_its_work(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 75' USR2; echo up; while :; do sleep 0.02; done"
    attempt = start_attempt(tmp_path / "a", script, signal="SIGUSR2")
    wait_until(lambda: "up" in read_output(attempt))
    assert attempt.stop()
    end = wait_for_exit(attempt)
    assert (end.code, end.signal, end.sent_signal, end.end_request) == (75, None, "SIGUSR2", "stop")
    assert read_output(attempt).endswith("\nsaved\n")


def test_a_job_that_ignores_its_signal_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", IGNORES, grace_s=0.3)
    wait_until(lambda: "up" in read_output(attempt))
    before = time.monotonic()
    attempt.stop()
    end = wait_for_exit(attempt)
    assert time.monotonic() - before >= 0.3
    assert (end.code, end.signal, end.sent_signal, end.end_request) == (137, "SIGKILL", "SIGKILL", "stop")
    assert end.message == ""


LATE = """
import json, os, signal, sys
from wattline.backend.engine.local.supervisor import Supervisor

class LateSignal(Supervisor):
    def _await_request(self):
        os.kill(os.getpid(), signal.SIGTERM)  # when the rank has died of the same signal
        super()._await_request()

os.chdir(sys.argv[1])
supervisor = LateSignal(json.load(open("launch.json")), signal_lag_s=float(sys.argv[2]))
supervisor.install_signal_handlers()
supervisor.run()
"""


@pytest.mark.parametrize(("lag_s", "asked"), [("60", "stop"), ("0", None)])
def test_a_signal_to_all_processes_is_a_stop_although_it_reaches_a_rank_first(
    tmp_path: Path, lag_s: str, asked: str | None
) -> None:
    attempt = write_attempt(tmp_path / "a", "/bin/sh", "-c", "kill -TERM $$")
    env = {**ENV, "PYTHONPATH": str(Path(wattline.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", LATE, str(attempt.folder), lag_s], env=env, check=True)
    end = json.loads((attempt.folder / "exit.json").read_bytes())
    assert (end["code"], end["signal"], end["asked"]) == (143, "SIGTERM", asked)


def test_a_kill_does_not_wait_for_the_grace_period(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", IGNORES, grace_s=1000.0)
    wait_until(lambda: "up" in read_output(attempt))
    attempt.kill()
    assert (wait_for_exit(attempt).sent_signal, wait_for_exit(attempt).end_request) == ("SIGKILL", "kill")


def test_a_kill_ends_a_grace_period(tmp_path: Path) -> None:
    attempt = start_attempt(
        tmp_path / "a", "trap 'echo no' TERM; echo up; while :; do sleep 0.02; done", grace_s=1000.0
    )
    wait_until(lambda: "up" in read_output(attempt))
    attempt.stop()
    wait_until(lambda: "no" in read_output(attempt))
    attempt.kill()
    assert (wait_for_exit(attempt).sent_signal, wait_for_exit(attempt).end_request) == ("SIGKILL", "kill")


def test_a_suspended_job_receives_its_signal(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "trap 'exit 9' TERM; echo up; kill -STOP $$; exit 1")
    wait_until(lambda: "up" in read_output(attempt))
    attempt.stop()
    assert wait_for_exit(attempt).code == 9


def test_children_of_a_shell_keep_their_grace_period_when_the_shell_dies(tmp_path: Path) -> None:
    script = """
import signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up")
while True: signal.pause()
"""
    (tmp_path / "train.py").write_text(script)
    attempt = start_attempt(tmp_path / "a", f"{sys.executable} -I -S -u train.py; echo not reached")
    wait_until(lambda: "up" in read_output(attempt))
    attempt.stop()
    end = wait_for_exit(attempt)
    assert read_output(attempt) == "up\nsaved\n"
    assert (end.signal, end.sent_signal) == ("SIGTERM", "SIGTERM")


def test_a_time_limit_ends_a_job_like_a_stop(tmp_path: Path) -> None:
    end = wait_for_exit(start_attempt(tmp_path / "a", "exec sleep 60", time_limit_s=0.2))
    assert (end.signal, end.sent_signal, end.end_request, end.state) == (
        "SIGTERM",
        "SIGTERM",
        "timeout",
        "TIMEOUT",
    )
    assert 0.2 <= end.seconds < 20
    assert "time limit of 0.2 s" in end.message


def test_one_rank_that_fails_stops_the_others(tmp_path: Path) -> None:
    script = 'if [ $RANK = 1 ]; then exit 7; fi; trap "exit 5" TERM; while :; do sleep 0.02; done'
    attempt = start_attempt(tmp_path / "a", script, ranks=tuple({"RANK": str(rank)} for rank in range(3)))
    end = wait_for_exit(attempt)
    assert end.code == 7
    assert end.ranks[1] == {"code": 7, "signal": None}
    assert all(rank["code"] in (5, 143) for rank in (end.ranks[0], end.ranks[2]))
    assert (end.sent_signal, end.end_request) == ("SIGTERM", None)


def test_ranks_go_on_if_they_are_not_killed_together(tmp_path: Path) -> None:
    ranks = tuple({"RANK": str(rank)} for rank in range(2))
    script = "[ $RANK = 1 ] || exit 7; sleep 0.2; echo done"
    attempt = start_attempt(tmp_path / "a", script, ranks=ranks, kill_ranks_together=False)
    end = wait_for_exit(attempt)
    assert (end.code, end.ranks[1], end.sent_signal) == (7, {"code": 0, "signal": None}, None)
    assert read_output(attempt, 1) == "done\n"


def test_ranks_are_one_process_group_without_a_terminal(tmp_path: Path) -> None:
    script = (
        "import os; print(os.getpgid(0), os.getsid(0)); os.path.exists('/dev/tty') and os.open('/dev/tty', 0)"
    )
    attempt = write_attempt(
        tmp_path / "a", *python_command(script), ranks=({}, {}, {}), kill_ranks_together=False
    )
    attempt.start()
    assert all(rank["code"] == 1 for rank in wait_for_exit(attempt).ranks)
    assert len({read_output(attempt, rank).splitlines()[0] for rank in range(3)}) == 1
    assert "No such device" in read_output(attempt)


def test_grandchildren_in_sessions_of_their_own_are_killed(tmp_path: Path) -> None:
    daemon = 'echo $$ > one; trap "" TERM HUP; (setsid sleep 1000 & echo $! > two); sleep 1000'
    attempt = start_attempt(
        tmp_path / "a", f"(setsid sh -c '{daemon}' &); until [ -s two ]; do sleep 0.01; done; exit 4"
    )
    assert wait_for_exit(attempt).code == 4
    for name in ("one", "two"):
        assert not is_alive(int((tmp_path / name).read_text()))


def test_a_job_that_does_nothing_but_fork_ends(tmp_path: Path) -> None:
    script = "f() { sleep 0.01; f & }; f & f & f & sleep 0.2; exit 2"
    assert wait_for_exit(start_attempt(tmp_path / "a", script)).code == 2


def test_output_is_rotated_and_bounded(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "seq 1 20000", log_limit_bytes=10_000, log_keep=3)
    assert wait_for_exit(attempt).code == 0
    logs = [attempt.folder / name for name in ("rank0.log.2", "rank0.log.1", "rank0.log")]
    assert all(log.stat().st_size <= 10_000 for log in logs)
    numbers = [int(line) for log in logs for line in log.read_text().splitlines()]
    assert numbers == list(range(20001 - len(numbers), 20001))
    assert len(numbers) > 3000
    assert {path.name for path in attempt.folder.glob("rank*")} == {log.name for log in logs}


def test_one_log_is_enough(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "seq 1 20000", log_limit_bytes=5000, log_keep=1)
    wait_for_exit(attempt)
    assert [path.name for path in attempt.folder.glob("rank*")] == ["rank0.log"]
    assert read_output(attempt).endswith("\n19999\n20000\n")


def test_output_may_be_any_bytes_and_have_no_lines(tmp_path: Path) -> None:
    script = "import os; os.write(1, bytes(range(256)) * 40)"
    attempt = write_attempt(tmp_path / "a", *python_command(script), log_limit_bytes=4096, log_keep=3)
    attempt.start()
    wait_for_exit(attempt)
    names = ("rank0.log.2", "rank0.log.1", "rank0.log")
    assert b"".join((attempt.folder / name).read_bytes() for name in names) == bytes(range(256)) * 40


@pytest.mark.slow
def test_a_gigabyte_of_output_neither_blocks_the_job_nor_fills_the_disk(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "head -c 1000000000 /dev/zero", log_limit_bytes=1 << 20)
    end = wait_for_exit(attempt)
    assert (end.code, end.log_lost_bytes) == (0, 0)
    assert sum(path.stat().st_size for path in attempt.folder.glob("rank*")) <= 2 << 20


def test_a_missing_program_has_exit_code_127(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "no-such-program", "x")
    attempt.start()
    end = wait_for_exit(attempt)
    assert (end.code, end.message, end.state) == (127, "no-such-program: No such file or directory", "FAILED")


@root
def test_a_missing_program_is_reported_although_a_folder_of_the_path_is_unreadable(
    tmp_path: Path,
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    user = User(UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid, (), "/", UNPRIVILEGED.pw_name)
    env = {"PATH": f"{tmp_path / 'closed'}:/bin"}
    attempt = write_attempt(tmp_path / "a", "no-such-program", env=env, user=user, workdir="/")
    attempt.start()
    assert (wait_for_exit(attempt).code, wait_for_exit(attempt).message) == (
        127,
        "no-such-program: No such file or directory",
    )


def test_a_program_that_cannot_be_executed_has_exit_code_126(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    attempt = write_attempt(tmp_path / "a", str(tmp_path / "data"))
    attempt.start()
    assert (wait_for_exit(attempt).code, wait_for_exit(attempt).message) == (
        126,
        f"{tmp_path / 'data'}: Permission denied",
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"workdir": "/no/such/folder"}, "the working folder /no/such/folder: No such file or directory"),
        ({"cores": (4000,)}, "running on the cores [4000]: Invalid argument"),
        ({"cgroups": ("/no/cgroup",)}, "joining the cgroup /no/cgroup: No such file or directory"),
    ],
)
def test_an_error_before_the_command_has_exit_code_125(
    tmp_path: Path, more: dict[str, object], message: str
) -> None:
    attempt = start_attempt(tmp_path / "a", "echo ran", **more)
    assert (wait_for_exit(attempt).code, wait_for_exit(attempt).message, read_output(attempt)) == (
        125,
        message,
        "",
    )


def test_a_job_gets_exactly_its_environment(tmp_path: Path) -> None:
    env = {"PATH": "/bin:/usr/bin", "ODD": "a=b\nc\udcff", "RANK": "none"}
    script = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(b'='.join(i) for i in os.environb.items()))"
    attempt = write_attempt(tmp_path / "a", *python_command(script), env=env, ranks=({"RANK": "0"},))
    attempt.start()
    wait_for_exit(attempt)
    found = dict(item.split(b"=", 1) for item in (attempt.folder / "rank0.log").read_bytes().split(b"\0"))
    found.pop(b"LC_CTYPE", None)  # Python's own
    told = {**env, "RANK": "0", ATTEMPT: str(attempt.folder)}
    assert found == {os.fsencode(key): os.fsencode(value) for key, value in told.items()}


def test_a_job_starts_with_ordinary_signals_files_and_umask(tmp_path: Path) -> None:
    script = "import os; print(os.listdir('/proc/self/fd'), os.umask(0), os.readlink('/proc/self/fd/0'))"
    attempt = write_attempt(tmp_path / "a", *python_command(script), umask=0o027)
    attempt.start()
    wait_for_exit(attempt)
    assert read_output(attempt) == f"['0', '1', '2', '3'] {0o027} /dev/null\n"  # 3 is the listing itself
    status = start_attempt(tmp_path / "b", "grep -E 'Sig(Blk|Ign)' /proc/self/status")
    wait_for_exit(status)
    threads = 0b11 << 31  # signals 32 and 33 are the C library's own, and may be inherited
    masks = [int(line.split()[1], 16) for line in read_output(status).splitlines()]
    assert [mask & ~threads for mask in masks] == [0, 0]


def test_a_job_keeps_to_its_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    attempt = start_attempt(tmp_path / "a", "grep Cpus_allowed_list /proc/self/status", cores=(core,))
    wait_for_exit(attempt)
    assert read_output(attempt).split()[1] == str(core)


def test_memory_is_limited_per_process_without_a_cgroup(tmp_path: Path) -> None:
    script = "import mmap; mmap.mmap(-1, 1 << 40, prot=0, flags=34); print('reserved'); bytearray(1 << 29)"
    attempt = write_attempt(tmp_path / "a", *python_command(script), memory_bytes=1 << 28)
    attempt.start()
    assert wait_for_exit(attempt).code == 1
    assert read_output(attempt).startswith("reserved\n")
    assert "MemoryError" in read_output(attempt)


@root
def test_a_job_runs_as_its_user(tmp_path: Path) -> None:
    user = User(
        UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid, (UNPRIVILEGED.pw_gid,), "/nonexistent", UNPRIVILEGED.pw_name
    )
    attempt = start_attempt(tmp_path / "a", "id -u; id -g; id -G; echo $HOME $USER", workdir="/", user=user)
    wait_for_exit(attempt)
    uid, gid = str(user.uid), str(user.gid)
    assert read_output(attempt).splitlines() == [uid, gid, gid, f"/nonexistent {UNPRIVILEGED.pw_name}"]


@root
def test_a_program_is_found_in_the_path_of_another_user(tmp_path: Path) -> None:
    user = User(UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid, (), "/", UNPRIVILEGED.pw_name)
    attempt = write_attempt(
        tmp_path / "a", "id", "-un", env={"PATH": "/root:/usr/bin:/bin"}, user=user, workdir="/"
    )
    attempt.start()
    assert (wait_for_exit(attempt).code, read_output(attempt)) == (0, f"{UNPRIVILEGED.pw_name}\n")


@root
def test_a_job_of_another_user_dies_with_its_supervisor(tmp_path: Path) -> None:
    user = User(UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid, (), "/", UNPRIVILEGED.pw_name)
    attempt = start_attempt(tmp_path / "a", "echo $$; exec sleep 1000", workdir="/", user=user)
    wait_until(lambda: "\n" in read_output(attempt))
    os.kill(json.loads((attempt.folder / CLAIM).read_bytes())["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(int(read_output(attempt))))


@pytest.mark.slow
def test_two_supervisors_of_one_folder_run_it_once(tmp_path: Path) -> None:
    for turn in range(20):
        attempt = write_attempt(tmp_path / str(turn), "/bin/sh", "-c", f"echo ran >> {tmp_path}/{turn}.ran")
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(attempt.folder)]
        both = [subprocess.Popen(command) for _ in range(2)]
        assert [process.wait() for process in both] == [0, 0]
        assert wait_for_exit(attempt).code == 0
        assert (tmp_path / f"{turn}.ran").read_text() == "ran\n"


def test_a_supervisor_does_not_run_a_void_attempt(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "/bin/sh", "-c", "echo ran")
    assert attempt.void()
    assert (
        subprocess.run(
            [sys.executable, "-I", "-S", supervisor.__file__, str(attempt.folder)], check=False
        ).returncode
        == 0
    )
    assert {path.name for path in attempt.folder.iterdir()} == {LAUNCH, CLAIM}
    assert attempt.state() == "void"


def test_a_supervisor_survives_the_process_that_started_it(tmp_path: Path) -> None:
    attempt = write_attempt(
        tmp_path / "a", "/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo done"
    )
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path[:] = {sys.path}
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
AttemptProcesses(Path({str(attempt.folder)!r})).start()
os.killpg(0, signal.SIGKILL)
"""
    controller = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False)
    assert controller.returncode == -signal.SIGKILL
    assert attempt.state() == "running"
    (tmp_path / "go").touch()
    assert wait_for_exit(attempt).code == 0
    assert read_output(attempt) == "done\n"


def test_a_hangup_does_not_end_a_job(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "until [ -e go ]; do sleep 0.01; done")
    os.kill(json.loads((attempt.folder / CLAIM).read_bytes())["pid"], signal.SIGHUP)
    (tmp_path / "go").touch()
    assert wait_for_exit(attempt).code == 0


def test_a_deleted_folder_ends_the_supervisor(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "until [ -e go ]; do sleep 0.01; done")
    pid = json.loads((attempt.folder / CLAIM).read_bytes())["pid"]
    for path in attempt.folder.iterdir():
        path.unlink()
    attempt.folder.rmdir()
    (tmp_path / "go").touch()
    wait_until(lambda: not is_alive(pid))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield place
    wait_until(
        lambda: subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode == 0
    )


def test_a_full_disk_loses_output_but_not_the_exit_status(tmp_path: Path, tiny: Path) -> None:
    script = f"seq 1 100000; echo $$ > {tmp_path}/wrote; exit 6"
    attempt = start_attempt(tiny / "a", script, workdir=str(tmp_path), log_limit_bytes=1 << 20)
    wait_until((tmp_path / "wrote").exists)
    pid = json.loads((attempt.folder / CLAIM).read_bytes())["pid"]
    wait_until(lambda: not is_alive(int((tmp_path / "wrote").read_text() or 0)))
    assert attempt.wait(0.3) is None
    assert is_alive(pid)
    assert attempt.state() == "running"
    (attempt.folder / "rank0.log").unlink()
    end = wait_for_exit(attempt)
    assert end.code == 6
    assert end.log_lost_bytes > 200_000


def test_a_supervisor_starts_quickly(tmp_path: Path) -> None:
    attempts = [write_attempt(tmp_path / str(turn), "/bin/true", env=ENV) for turn in range(5)]
    best = float("inf")
    for attempt in attempts:
        before = time.monotonic()
        attempt.start()
        best = min(best, time.monotonic() - before)
    assert best < 0.3
