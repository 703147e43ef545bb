"""`wattline serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command_line import run_command
from wattline.service.storage.store import Store

Capsys = pytest.CaptureFixture[str]
GPUS = ("--gpus", "simulated:2xa100")
LISTENS_S = 60.0

Serve = Callable[..., subprocess.Popen[str]]

MAIN = "import sys, wattline.cli; sys.exit(wattline.cli.main())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the service; made by it."""
    monkeypatch.setenv("WATTLINE_DIR", str(tmp_path / "service"))
    for name in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "service"


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Starts a service and waits until it listens."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAIN, "serve"]
        process = subprocess.Popen(
            [*command, *GPUS, "--port", "0", *words],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whatever nohup has done
        )
        begun.append(process)
        until_s = time.monotonic() + LISTENS_S
        while not (folder / "url").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until_s
            time.sleep(0.05)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def queue(capsys: Capsys) -> dict[str, str]:
    code, out, err = run_command(capsys, "queue", "--all", "--json")
    assert code == 0, err
    return {job["id"]: job["state"] for job in json.loads(out)["jobs"]}


def wait_for(capsys: Capsys, job: str, state: str) -> None:
    until_s = time.monotonic() + 20
    while queue(capsys).get(job) != state:
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_service_leaves_jobs_running_for_the_next_one(
    capsys: Capsys, folder: Path, serve: Serve, number: signal.Signals
) -> None:
    first = serve()
    assert stat.S_IMODE((folder / "url").stat().st_mode) == 0o644
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    done = folder.parent / "done"
    code, out, err = run_command(
        capsys, "submit", "--", "bash", "-c", f"echo on; sleep 5; echo off; touch {done}"
    )
    assert code == 0, err
    job = out.strip()
    wait_for(capsys, job, "RUNNING")
    follows = subprocess.Popen(
        [sys.executable, "-c", MAIN, "logs", "-f", job],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert follows.stdout is not None
    assert follows.stdout.readline() == "on\n"

    first.send_signal(number)
    printed = first.communicate(timeout=30)[1]
    assert first.returncode == 0, printed
    assert "2 GPUs (2 a100, SIMULATED" in printed
    assert "1 job is still running" in printed
    assert "Traceback" not in printed
    assert not (folder / "url").exists()
    assert run_command(capsys, "queue")[0] == 5
    follows.kill()
    follows.communicate()

    second = serve()
    assert queue(capsys)[job] in ("RUNNING", "SUCCEEDED")
    wait_for(capsys, job, "SUCCEEDED")
    assert done.exists()
    assert run_command(capsys, "logs", job)[1] == "on\noff\n"
    second.send_signal(signal.SIGTERM)
    assert "no job is running" in second.communicate(timeout=30)[1]
    assert second.returncode == 0


@pytest.mark.slow
def test_submit_wait_survives_a_restart_of_the_service(capsys: Capsys, folder: Path, serve: Serve) -> None:
    first = serve()
    port = (folder / "url").read_text().strip().rsplit(":", 1)[1]
    waits = subprocess.Popen(
        [
            *(sys.executable, "-c", MAIN),
            *("submit", "--wait", "--", "bash", "-c", "sleep 4; exit 9"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waits.stdout is not None
    job = waits.stdout.readline().strip()
    wait_for(capsys, job, "RUNNING")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    second = serve("--port", port)
    printed = waits.communicate(timeout=30)[1]
    assert waits.returncode == 9, printed
    assert "answers again" in printed
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=30)


def test_a_second_service_on_a_folder_is_refused(capsys: Capsys, folder: Path) -> None:
    with Store.open(folder):
        code, out, err = run_command(capsys, "serve", *GPUS, "--port", "0")
    assert (code, out) == (1, "")
    assert f"{folder}: process {os.getpid()} serves it already" in err
    assert "--dir" in err
    assert not (folder / "url").exists()


def test_a_port_in_use_is_refused_before_anything_is_changed(capsys: Capsys, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run_command(capsys, "serve", *GPUS, "--port", str(port))
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert not folder.exists()


def test_without_gpus_serve_suggests_simulated_ones(
    capsys: Capsys, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattline.backend.engine.local import machine
    from wattline.errors import MeterError

    def nothing(text: str) -> None:
        raise MeterError("NVML does not start")

    monkeypatch.setattr(machine, "open_meter", nothing)
    code, _, err = run_command(capsys, "serve", "--port", "0")
    assert code == 1
    assert "no GPU can be used on this machine: NVML does not start" in err
    assert "--gpus simulated:4xa100" in err
    with Store.open(folder):
        pass  # it is not locked


def test_a_folder_that_cannot_be_written_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run_command(capsys, "serve", *GPUS, "--port", "0", "--dir", str(tmp_path / "file"))
    assert code == 1
    assert f"{tmp_path / 'file'}: cannot hold the state of a service" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "fiffo"], "unknown stage 'fiffo'"),
        (["--place", "nowhere"], "nowhere"),
        (["--models", "nowhere.json"], "nowhere.json"),
        (["--host", "no such host"], "no such address"),
        (["--port", "70000"], "not a port"),
    ],
)
def test_bad_arguments_of_serve_are_refused_before_anything_is_changed(
    capsys: Capsys, folder: Path, words: list[str], message: str
) -> None:
    code, out, err = run_command(capsys, "serve", *GPUS, "--port", "0", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not folder.exists()


def test_listening_on_all_addresses_causes_a_warning(capsys: Capsys, folder: Path) -> None:
    with Store.open(folder):  # so that it ends at once
        code, _, err = run_command(capsys, "serve", *GPUS, "--port", "0", "--host", "0.0.0.0")
    assert code == 1
    assert "WARNING" in err
    assert "not encrypted" in err
