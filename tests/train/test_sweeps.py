"""Sweeps of caps that sessions measure: stored, seen by the tuner, forgotten, expired, measured again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.sessions import BATCH, SHORT, describe_gpus
from wattline import Session
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.history import RunHistory
from wattline.cli import main
from wattline.meter.neighbours import is_running

GROUP = "nightly"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("WATTLINE_") and name != "WATTLINE_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("wattline.meter.caps.guard._reported", set())
    return tmp_path / "state" / "memory.db"


def train(run: Session, steps: int = 300) -> None:
    for _ in run.epochs(1):
        for _ in run.steps([BATCH] * steps):
            pass


def run_session(tmp_path: Path, steps: int = 300, **more: str) -> Session:
    """Run the recurring job once."""
    with Session(
        meter=describe_gpus(tmp_path, **more), aim="energy", window=SHORT, group=GROUP, batch_size=64
    ) as run:
        train(run, steps=steps)
    return run


def is_known(tmp_path: Path, **more: str) -> bool:
    with Session(
        meter=describe_gpus(tmp_path, **more), aim="energy", window=SHORT, group=GROUP, batch_size=64
    ) as run:
        return run.caps.search is not None and run.caps.search.is_done


@pytest.mark.slow
def test_the_tuner_sees_the_sweep_of_a_session_and_reset_forgets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_session(tmp_path)
    assert run.caps.search is not None
    with RunHistory.open() as memory:
        (sweep,) = memory.sweeps(GROUP)
        assert (sweep.kind, sweep.gpus, sweep.batch, sweep.aim) == ("v100", 1, 64, "energy")
        assert set(sweep.measurements) == set(run.caps.search.measurements)
        assert memory.load_sweep(GROUP, 64, "v100") == sweep.measurements
        tuned = memory.load_state(GROUP, "v100", BayesianTuner())
        assert tuned.full_j[0] > 1.01 * tuned.epoch_j[0], "full power costs more, by the sweep"
    assert is_known(tmp_path)
    assert main(["tune", "show", GROUP]) == 0
    assert "caps measured on 1 x v100, batch size 64" in capsys.readouterr().out
    assert main(["tune", "reset", "-y", GROUP]) == 0
    assert "and 1 sweep of caps" in capsys.readouterr().out
    assert not is_known(tmp_path)


@pytest.mark.slow
def test_a_sweep_expires_and_belongs_to_a_driver_and_range_of_caps(tmp_path: Path, state: Path) -> None:
    run_session(tmp_path)
    assert is_known(tmp_path)
    for change in ("measured_s = measured_s - 31 * 86400", "device = device || ', driver 999'"):
        with sqlite3.connect(state) as raw:
            before = raw.execute("SELECT measured_s, device FROM sweep").fetchone()
            raw.execute(f"UPDATE sweep SET {change}")
        assert not is_known(tmp_path)
        with sqlite3.connect(state) as raw:
            raw.execute("UPDATE sweep SET measured_s = ?, device = ?", before)
        raw.close()
    assert is_known(tmp_path)


@pytest.mark.slow
def test_only_the_windows_that_a_neighbour_spoilt_are_measured_again(tmp_path: Path, state: Path) -> None:
    run_session(tmp_path)
    with sqlite3.connect(state) as raw:
        raw.execute("UPDATE sweep SET spoilt = 1 WHERE cap_w = 250")
    raw.close()
    with Session(
        meter=describe_gpus(tmp_path), aim="energy", window=SHORT, group=GROUP, batch_size=64
    ) as run:
        assert run.caps.search is not None
        assert not run.caps.search.is_done
        assert run.gpus[0].cap_w() == 250.0
        train(run, steps=40)
        assert run.caps.search.is_done
    with RunHistory.open() as memory:
        assert not any(one.spoilt for one in memory.sweeps(GROUP)[0].measurements)


@pytest.mark.slow
def test_windows_beside_another_process_are_marked_and_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    code = (
        "import os, sys, time; from wattline.meter import open_meter\n"
        "m = open_meter(sys.argv[1]); m.stepped(1)\n"
        "while os.path.exists(sys.argv[2]): time.sleep(0.02)"
    )
    # The shell ends at once, so that the neighbour is no descendant of this process.
    words = ["sh", "-c", '"$@" > /dev/null 2>&1 & echo $!', "sh"]
    words += [sys.executable, "-c", code, describe_gpus(tmp_path), str(flag)]
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    users = tmp_path / "gpus" / "users"
    while not (users / f"0-{pid}").exists():
        assert Path(f"/proc/{pid}").exists()
        time.sleep(0.02)
    run = run_session(tmp_path, steps=700)
    flag.unlink()
    while is_running(pid):
        time.sleep(0.02)
    assert run.caps.search is not None
    assert all(one.spoilt for one in run.caps.search.measurements)
    errors = capsys.readouterr().err
    assert f"GPU 0 is used by another process too ({pid})" in errors
    assert "was disturbed: process" in errors
    assert not is_known(tmp_path), "the neighbour is gone, and all caps are measured again"


@pytest.mark.slow
def test_a_sweep_without_runs_is_shown_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    with Session(meter=describe_gpus(tmp_path), aim="energy", window=SHORT) as run:
        train(run)
    with RunHistory.open() as memory:
        (name,) = memory.groups()
    assert name.endswith("train.py --lr 1")
    assert main(["tune", "show", name]) == 0
    assert "best" in capsys.readouterr().out
    assert main(["tune", "reset", "-y", name]) == 0
    with RunHistory.open() as memory:
        assert memory.groups() == []
