"""An attempt as the service sees it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.attempts import (
    ENV,
    TIMEOUT_S,
    is_alive,
    python_command,
    read_output,
    start_attempt,
    wait_for_exit,
    wait_until,
    write_attempt,
)
from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.local.attempt_files import CLAIM, LAUNCH, process_identity
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.launch_file import ATTEMPT, Launch
from wattline.errors import BackendError, ConfigError
from wattline.meter.caps.process_identity import read_start_ticks

WAITS = "echo $$; until [ -e go ]; do sleep 0.01; done"


def write_claim(attempt: AttemptProcesses, **more: Any) -> None:
    """Write a claim as a supervisor does."""
    (attempt.folder / CLAIM).write_text(json.dumps({**process_identity(), **more}))


def supervisor_of(attempt: AttemptProcesses) -> int:
    return int(json.loads((attempt.folder / CLAIM).read_bytes())["pid"])


@pytest.fixture
def received() -> Any:
    """The signals that this process gets."""
    found: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: found.append(n))
        for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_attempt_is_new_then_runs_then_has_ended(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "/bin/sh", "-c", WAITS)
    assert (attempt.state(), attempt.exit(), attempt.pidfd(), attempt.wait(1.0)) == ("new", None, None, None)
    attempt.start()
    assert (attempt.state(), attempt.exit()) == ("running", None)
    assert attempt.wait(0.01) is None
    (tmp_path / "go").touch()
    assert wait_for_exit(attempt).code == 0
    assert attempt.state() == "ended"
    assert not attempt.stop()
    assert not attempt.kill()


def test_the_process_that_starts_an_attempt_gets_no_child(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "true")
    wait_for_exit(attempt)
    with pytest.raises(ChildProcessError):
        os.waitpid(supervisor_of(attempt), os.WNOHANG)


def test_an_attempt_that_was_started_twice_runs_once(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", f"echo ran; {WAITS}")
    pid = supervisor_of(attempt)
    attempt.start()
    assert supervisor_of(attempt) == pid
    (tmp_path / "go").touch()
    wait_for_exit(attempt)
    assert read_output(attempt).count("ran") == 1


def test_a_void_attempt_never_runs(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "/bin/sh", "-c", "echo ran")
    assert attempt.void()
    assert attempt.state() == "void"
    attempt.start()
    assert (attempt.state(), attempt.exit(), read_output(attempt), attempt.pidfd()) == (
        "void",
        None,
        "",
        None,
    )
    assert not attempt.void()
    assert not attempt.stop()


def test_a_claimed_attempt_cannot_become_void(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS)
    assert not attempt.void()
    attempt.kill()
    wait_for_exit(attempt)
    assert not attempt.void()


def test_a_stop_before_the_start_makes_an_attempt_void(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    assert attempt.stop()
    assert attempt.state() == "void"


def test_the_pidfd_becomes_readable_when_the_supervisor_exits(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS)
    file = attempt.pidfd()
    assert file is not None
    (tmp_path / "go").touch()
    assert wait_for_exit(attempt).code == 0
    os.close(file)
    assert attempt.pidfd() is None


def test_the_ranks_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS, ranks=({}, {}))
    wait_until(lambda: "\n" in read_output(attempt) and "\n" in read_output(attempt, 1))
    os.kill(supervisor_of(attempt), signal.SIGKILL)
    assert attempt.wait(TIMEOUT_S) is None
    assert attempt.state() == "vanished"
    for rank in range(2):
        wait_until(lambda rank=rank: not is_alive(int(read_output(attempt, rank))))
    assert not attempt.stop()
    assert attempt.kill_leftovers()


def test_leftovers_of_a_vanished_attempt_are_killed(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$; exec sleep 1000' & setsid sh -c 'echo $$; sleep 1000; true' & wait"
    attempt, other = start_attempt(tmp_path / "a", script), start_attempt(tmp_path / "ab", WAITS)
    wait_until(lambda: read_output(attempt).count("\n") == 2 and read_output(other).count("\n") == 1)
    os.kill(supervisor_of(attempt), signal.SIGKILL)
    attempt.wait(TIMEOUT_S)
    left = [int(line) for line in read_output(attempt).split()]
    assert all(is_alive(pid) for pid in left)
    assert attempt.kill_leftovers()
    assert not any(is_alive(pid) for pid in left)
    assert other.state() == "running"
    other.kill()
    wait_for_exit(other)


def test_a_claim_from_before_the_last_boot_has_vanished(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    write_claim(attempt)
    assert attempt.state() == "running"
    assert not attempt.rebooted()
    write_claim(attempt, boot_id="another")
    assert attempt.state() == "vanished"
    assert attempt.rebooted()


def test_a_reused_process_id_is_never_signalled(tmp_path: Path, received: list[int]) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    write_claim(attempt, start_ticks=(read_start_ticks(os.getpid()) or 0) - 1)
    assert attempt.state() == "vanished"
    assert not attempt.stop()
    assert not attempt.kill()
    assert attempt.pidfd() is None
    assert received == []
    write_claim(attempt)
    assert attempt.stop()
    assert received == [signal.SIGTERM]


def test_a_reused_process_id_is_never_signalled_without_pidfds(
    tmp_path: Path, received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    attempt = write_attempt(tmp_path / "a", "true")
    write_claim(attempt, start_ticks=1)
    assert not attempt.stop()
    assert received == []
    write_claim(attempt)
    assert attempt.kill()
    assert received == [signal.SIGUSR1]
    real = start_attempt(tmp_path / "b", "sleep 1000 & sleep 1000")
    assert real.pidfd() is None
    assert real.wait(0.05) is None
    real.stop()
    assert wait_for_exit(real).signal == "SIGTERM"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}'])
def test_an_attempt_with_an_invalid_claim_never_runs(tmp_path: Path, text: str) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    (attempt.folder / CLAIM).write_text(text)
    assert attempt.state() == "vanished"
    assert not attempt.stop()
    attempt.start()
    assert read_output(attempt) == ""


def test_a_failed_start_reports_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="No such file"):
        AttemptProcesses(tmp_path / "nothing").start()
    attempt = write_attempt(tmp_path / "a", "true")
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(BackendError, match="cannot be started"):
        attempt.start()
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(BackendError, match="was not started"):
        attempt.start()
    assert attempt.state() == "new"


def test_an_invalid_launch_file_is_not_claimed(tmp_path: Path) -> None:
    attempt = AttemptProcesses(tmp_path)
    for text in ("{", "{}"):
        (tmp_path / LAUNCH).write_text(text)
        with pytest.raises(BackendError):
            attempt.start()
        assert attempt.state() == "new"


def test_a_launch_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    assert [path.name for path in attempt.folder.iterdir()] == [LAUNCH]
    assert stat.S_IMODE((attempt.folder / LAUNCH).stat().st_mode) == 0o600
    values = json.loads((attempt.folder / LAUNCH).read_bytes())
    assert values["env"] == {**ENV, ATTEMPT: str(attempt.folder)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ()},
        {"command": ("a\0",)},
        {"workdir": "here"},
        {"ranks": ()},
        {"cores": ()},
        {"memory_bytes": 0},
        {"log_keep": 0},
        {"signal": "SIGNOTHING"},
        {"signal": "SIGKILL"},
        {"grace_s": -1.0},
        {"time_limit_s": 0.0},
        {"time_limit_s": float("nan")},
    ],
)
def test_an_invalid_launch_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="launch: expected"):
        Launch(**{"command": ("true",), "workdir": "/", "env": {}, **wrong})


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"code": 0}, "SUCCEEDED"),
        ({"code": 0, "oom": True}, "SUCCEEDED"),
        ({"code": 1}, "FAILED"),
        ({"code": 75}, "REQUEUE"),
        ({"code": 137, "signal": "SIGKILL", "oom": True}, "OUT_OF_MEMORY"),
        ({"code": 0, "end_request": "timeout", "sent_signal": "SIGTERM"}, "TIMEOUT"),
        ({"code": 143, "signal": "SIGTERM", "end_request": "stop", "sent_signal": "SIGTERM"}, "FAILED"),
    ],
)
def test_an_exit_status_is_mapped_to_a_state(more: dict[str, Any], state: str) -> None:
    plain = Exit(0, None, None, None, False, "", 0.0, 1.0, 1.0, 0, 0.0, 0, ())
    assert Exit(**{**vars(plain), **more}).state == state


def test_processes_of_other_attempts_are_not_killed(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    env = {**ENV, ATTEMPT: f"{attempt.folder}b", "OTHER": f"{ATTEMPT}={attempt.folder}"}
    with subprocess.Popen(python_command("input()"), env=env, stdin=subprocess.PIPE) as stranger:
        assert attempt.kill_leftovers()
        stranger.communicate(b"\n")
        assert stranger.returncode == 0
