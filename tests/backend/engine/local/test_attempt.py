"""An attempt as its controller sees it."""

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
from wattline.backend.engine.local import supervisor as shim
from wattline.backend.engine.local.attempt import ATTEMPT, Attempt, Exit, Launch
from wattline.errors import BackendError, ConfigError
from wattline.meter.caps.process_identity import started

WAITS = "echo $$; until [ -e go ]; do sleep 0.01; done"


def claimed(attempt: Attempt, **more: Any) -> None:
    """Write a claim as a shim would have."""
    (attempt.folder / shim.CLAIM).write_text(json.dumps({**shim.identity(), **more}))


def shim_of(attempt: Attempt) -> int:
    return int(json.loads((attempt.folder / shim.CLAIM).read_bytes())["pid"])


@pytest.fixture
def heard() -> Any:
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


def test_who_starts_attempts_has_no_children(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", "true")
    wait_for_exit(attempt)
    with pytest.raises(ChildProcessError):
        os.waitpid(shim_of(attempt), os.WNOHANG)


def test_an_attempt_that_was_started_twice_runs_once(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", f"echo ran; {WAITS}")
    pid = shim_of(attempt)
    attempt.start()
    assert shim_of(attempt) == pid
    (tmp_path / "go").touch()
    wait_for_exit(attempt)
    assert read_output(attempt).count("ran") == 1


def test_what_is_void_never_runs(tmp_path: Path) -> None:
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


def test_what_runs_cannot_become_void(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS)
    assert not attempt.void()
    attempt.kill()
    wait_for_exit(attempt)
    assert not attempt.void()


def test_a_stop_before_the_start_makes_it_void(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    assert attempt.stop()
    assert attempt.state() == "void"


def test_a_file_tells_when_the_shim_is_gone(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS)
    file = attempt.pidfd()
    assert file is not None
    (tmp_path / "go").touch()
    assert wait_for_exit(attempt).code == 0
    os.close(file)
    assert attempt.pidfd() is None


def test_a_shim_that_was_killed_has_vanished_and_its_ranks_with_it(tmp_path: Path) -> None:
    attempt = start_attempt(tmp_path / "a", WAITS, ranks=({}, {}))
    wait_until(lambda: "\n" in read_output(attempt) and "\n" in read_output(attempt, 1))
    os.kill(shim_of(attempt), signal.SIGKILL)
    assert attempt.wait(TIMEOUT_S) is None
    assert attempt.state() == "vanished"
    for rank in range(2):
        wait_until(lambda rank=rank: not is_alive(int(read_output(attempt, rank))))
    assert not attempt.stop()
    assert attempt.kill_leftovers()


def test_what_a_vanished_attempt_left_behind_is_killed(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$; exec sleep 1000' & setsid sh -c 'echo $$; sleep 1000; true' & wait"
    attempt, other = start_attempt(tmp_path / "a", script), start_attempt(tmp_path / "ab", WAITS)
    wait_until(lambda: read_output(attempt).count("\n") == 2 and read_output(other).count("\n") == 1)
    os.kill(shim_of(attempt), signal.SIGKILL)
    attempt.wait(TIMEOUT_S)
    left = [int(line) for line in read_output(attempt).split()]
    assert all(is_alive(pid) for pid in left)
    assert attempt.kill_leftovers()
    assert not any(is_alive(pid) for pid in left)
    assert other.state() == "running"
    other.kill()
    wait_for_exit(other)


def test_a_claim_of_before_the_last_boot_is_nobodys(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    claimed(attempt)
    assert attempt.state() == "running"
    assert not attempt.rebooted()
    claimed(attempt, boot_id="another")
    assert attempt.state() == "vanished"
    assert attempt.rebooted()


def test_a_reused_number_is_never_signalled(tmp_path: Path, heard: list[int]) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    claimed(attempt, start_ticks=(started(os.getpid()) or 0) - 1)
    assert attempt.state() == "vanished"
    assert not attempt.stop()
    assert not attempt.kill()
    assert attempt.pidfd() is None
    assert heard == []
    claimed(attempt)
    assert attempt.stop()
    assert heard == [signal.SIGTERM]


def test_nor_where_the_kernel_has_no_files_for_processes(
    tmp_path: Path, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    attempt = write_attempt(tmp_path / "a", "true")
    claimed(attempt, start_ticks=1)
    assert not attempt.stop()
    assert heard == []
    claimed(attempt)
    assert attempt.kill()
    assert heard == [signal.SIGUSR1]
    real = start_attempt(tmp_path / "b", "sleep 1000 & sleep 1000")
    assert real.pidfd() is None
    assert real.wait(0.05) is None
    real.stop()
    assert wait_for_exit(real).signal == "SIGTERM"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}'])
def test_a_claim_that_cannot_be_understood_is_somebodys(tmp_path: Path, text: str) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    (attempt.folder / shim.CLAIM).write_text(text)
    assert attempt.state() == "vanished"
    assert not attempt.stop()
    attempt.start()
    assert read_output(attempt) == ""


def test_a_start_that_does_not_work_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="No such file"):
        Attempt(tmp_path / "nothing").start()
    attempt = write_attempt(tmp_path / "a", "true")
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(BackendError, match="cannot be started"):
        attempt.start()
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(BackendError, match="was not started"):
        attempt.start()
    assert attempt.state() == "new"


def test_a_launch_that_cannot_be_understood_claims_nothing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for text in ("{", "{}"):
        (tmp_path / shim.LAUNCH).write_text(text)
        with pytest.raises(BackendError):
            attempt.start()
        assert attempt.state() == "new"


def test_a_launch_is_for_its_owner_only_and_leaves_nothing_else(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    assert [path.name for path in attempt.folder.iterdir()] == [shim.LAUNCH]
    assert stat.S_IMODE((attempt.folder / shim.LAUNCH).stat().st_mode) == 0o600
    said_of = json.loads((attempt.folder / shim.LAUNCH).read_bytes())
    assert said_of["env"] == {**ENV, ATTEMPT: str(attempt.folder)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": ()},
        {"words": ("a\0",)},
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
def test_a_launch_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="launch: expected"):
        Launch(**{"words": ("true",), "workdir": "/", "env": {}, **wrong})


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"code": 0}, "SUCCEEDED"),
        ({"code": 0, "oom": True}, "SUCCEEDED"),
        ({"code": 1}, "FAILED"),
        ({"code": 75}, "REQUEUE"),
        ({"code": 137, "signal": "SIGKILL", "oom": True}, "OUT_OF_MEMORY"),
        ({"code": 0, "asked": "timeout", "fired": "SIGTERM"}, "TIMEOUT"),
        ({"code": 143, "signal": "SIGTERM", "asked": "stop", "fired": "SIGTERM"}, "FAILED"),
    ],
)
def test_an_exit_has_a_state(more: dict[str, Any], state: str) -> None:
    plain = Exit(0, None, None, None, False, "", 0.0, 1.0, 1.0, 0, 0.0, 0, ())
    assert Exit(**{**vars(plain), **more}).state == state


def test_what_does_not_concern_an_attempt_is_not_killed(tmp_path: Path) -> None:
    attempt = write_attempt(tmp_path / "a", "true")
    env = {**ENV, ATTEMPT: f"{attempt.folder}b", "OTHER": f"{ATTEMPT}={attempt.folder}"}
    with subprocess.Popen(python_command("input()"), env=env, stdin=subprocess.PIPE) as stranger:
        assert attempt.kill_leftovers()
        stranger.communicate(b"\n")
        assert stranger.returncode == 0
