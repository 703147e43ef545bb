"""A session in an attempt of the service: repeated signals, newer attempts, and orders."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from support.sessions import BATCH, describe_gpus
from wattline import Session
from wattline.errors import ConfigError
from wattline.train.attempt_watch import AttemptWatch
from wattline.train.checkpoint import Checkpoints
from wattline.train.stop_signal import StopSignal


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the first attempt at a job, that of the sessions in this test."""
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    monkeypatch.setenv("WATTLINE_ATTEMPT", str(folder))
    monkeypatch.setenv("WATTLINE_GRACE_S", "30")
    monkeypatch.setenv("WATTLINE_CHECKPOINT_DIR", str(tmp_path / "checkpoint"))
    return folder


def test_a_session_saves_although_it_is_signalled_many_times(attempt: Path, tmp_path: Path) -> None:
    saved: list[Path] = []
    run = Session(meter=describe_gpus(tmp_path), aim="none", save=saved.append)

    def train() -> None:
        with run:
            for _ in run.epochs(1):
                for number, _ in enumerate(run.steps([BATCH] * 100)):
                    if number == 3:
                        for _ in range(3):
                            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="75"):
        train()
    assert run.position.steps == 4
    assert len(saved) == 1


def test_a_second_signal_has_its_usual_effect_after_the_grace_period() -> None:
    received = []
    before = signal.signal(signal.SIGUSR2, lambda *_: received.append("usual"))
    try:
        stop = StopSignal(signal.SIGUSR2, lambda: True, grace_s=0.0)
        stop.install()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (stop.is_requested, received) == (True, [])
        os.kill(os.getpid(), signal.SIGUSR2)
        assert received == ["usual"]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_session_with_a_newer_attempt_neither_saves_nor_goes_on(attempt: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    def train() -> None:
        nonlocal steps
        with Session(meter=describe_gpus(tmp_path), aim="none") as run:
            for epoch in run.epochs(3):
                steps += [epoch for _ in run.steps([BATCH] * 10)]
                if epoch == 1:
                    (attempt.parent / "2").mkdir()

    with pytest.raises(SystemExit, match="75"):
        train()
    assert len(steps) == 20
    saved = json.loads((next((tmp_path / "checkpoint").glob("0*")) / "wattline.json").read_text())
    assert saved["epoch"] == 1


def test_a_new_attempt_waits_for_the_one_that_is_leaving(tmp_path: Path) -> None:
    earlier, later = (Checkpoints(tmp_path, None, None) for _ in range(2))
    earlier.claim()
    with pytest.raises(ConfigError, match="already writes its checkpoints"):
        later.claim()
    threading.Timer(0.3, earlier.release).start()
    began_s = time.monotonic()
    later.claim(wait_s=60.0)
    assert time.monotonic() - began_s < 50
    later.release()


def test_orders_change_the_cap_of_a_running_job(attempt: Path, tmp_path: Path) -> None:
    caps = []
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        for epoch in run.epochs(3):
            for _ in run.steps([BATCH] * 2):
                pass
            caps.append(run.gpus[0].cap_w())
            cap_w = (150, 0, 0)[epoch]
            (attempt / "new").write_text(json.dumps({"cap_w": cap_w}))
            (attempt / "new").rename(attempt / "orders.json")
    assert caps == [300.0, 150.0, 300.0]


def test_orders_are_read_once_and_invalid_ones_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    watch = AttemptWatch(folder)
    assert watch.read_cap_w() is None
    (folder / "orders.json").write_text("{")
    assert watch.read_cap_w() is None
    (folder / "orders.json").write_text('{"cap_w": 200}')
    os.utime(folder / "orders.json", ns=(1, 1))
    assert watch.read_cap_w() == 200.0
    assert watch.read_cap_w() is None


def test_only_higher_numbers_are_newer_attempts(tmp_path: Path) -> None:
    for name in ("9", "10", "notes"):
        (tmp_path / name).mkdir()
    assert AttemptWatch(tmp_path / "9").is_superseded()
    assert not AttemptWatch(tmp_path / "10").is_superseded()
    assert not AttemptWatch(None).is_superseded()
