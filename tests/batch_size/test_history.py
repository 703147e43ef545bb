"""Run history of recurring jobs in one SQLite file."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from wattline.batch_size.bandit import BatchTrial, TuningTask
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.history import OUT_OF_MEMORY, RecordedRun, RunHistory
from wattline.batch_size.posterior import compute_posterior
from wattline.errors import ConfigError, NotFound
from wattline.profiler.cap_aim import CapMeasurement

TASK = TuningTask((16, 32, 64), 32, 50)
SWEEP = (CapMeasurement(100.0, 10.0, 2.0, 180.0), CapMeasurement(200.0, 10.0, 1.8, 300.0))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[RunHistory]:
    with RunHistory.open(tmp_path / "deep" / "memory.db") as opened:
        yield opened


def add(history: RunHistory, batch: int, epochs: int, kind: str = "a100", reached: bool = True) -> None:
    history.add_run(
        "g", kind, batch=batch, reached=reached, seconds=10.0 * epochs, joules=2000.0 * epochs, epochs=epochs
    )


def test_the_method_of_joules_is_recorded_also_in_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with RunHistory.open(path) as opened:
        opened._connection.execute("ALTER TABLE run DROP COLUMN method")
        opened._connection.execute("INSERT INTO run VALUES (1, 'g', 'a100', 16, 1, 5.0, 9.0, 1, 0.0)")
    with RunHistory.open(path) as opened:
        assert opened.energy_methods("g", "a100") == "method not recorded"
        more = {"batch": 16, "reached": True, "seconds": 1.0, "epochs": 1}
        opened.add_run("g", "v100", joules=1.0, method="simulated", **more)  # type: ignore[arg-type]
        opened.add_run("g", "v100", joules=None, **more)  # type: ignore[arg-type]
        assert opened.energy_methods("g", "v100") == "simulated and unmetered"


def test_runs_are_read_as_they_were_added(history: RunHistory) -> None:
    add(history, 32, 8)
    history.add_run("g", "a100", batch=16, reached=False, seconds=5.0, joules=None, epochs=1)
    assert history.runs("g", "a100") == [
        RecordedRun(32, True, 80.0, 16000.0, 8),
        RecordedRun(16, False, 5.0, None, 1),
    ]
    assert history.runs("g", "v100") == []
    assert (history.groups(), history.kinds("g")) == (["g"], ["a100"])


def test_runs_persist_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        with RunHistory.open(tmp_path / "m.db") as history:
            add(history, 32, 8)
    with RunHistory.open(tmp_path / "m.db") as history:
        assert len(history.runs("g", "a100")) == 2


def test_the_default_place_is_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTLINE_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with RunHistory.open() as history:
        assert history.path == tmp_path / "wattline" / "memory.db"


def test_a_sweep_replaces_the_one_before(history: RunHistory) -> None:
    history.store_sweep("g", 32, "a100", SWEEP)
    history.store_sweep("g", 32, "a100", SWEEP[::-1][:1])
    assert history.load_sweep("g", 32, "a100") == SWEEP[1:]
    assert history.load_sweep("g", 64, "a100") == ()


def test_sweeps_of_other_numbers_of_gpus_are_kept_apart(history: RunHistory) -> None:
    history.store_sweep("g", 32, "a100", SWEEP, gpus=4)
    history.store_sweep("g", 32, "a100", SWEEP[:1], gpus=1, device="driver 1")
    assert history.load_sweep("g", 32, "a100", gpus=4) == SWEEP
    assert history.load_sweep("g", 32, "a100", gpus=1) == SWEEP[:1]
    assert history.load_sweep("g", 32, "a100", gpus=1, device="driver 2") == ()
    assert history.load_sweep("g", 32, "a100", gpus=2) == ()
    assert len(history.sweeps("g")) == 2


def test_a_store_of_the_previous_version_loses_its_sweeps_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with RunHistory.open(path) as history:
        add(history, 32, 8)
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE sweep")
        raw.execute("CREATE TABLE tried (grp TEXT)")
        raw.execute("PRAGMA user_version=1")
    raw.close()
    with RunHistory.open(path) as history:
        assert len(history.runs("g", "a100")) == 1
        history.store_sweep("g", 32, "a100", SWEEP)
        assert history.load_sweep("g", 32, "a100") == SWEEP


def test_a_job_without_a_stored_task_may_use_the_batch_sizes_it_used(history: RunHistory) -> None:
    for batch in (32, 16, 32):
        add(history, batch, 5)
    assert history.load_task("g").batches == (16, 32)
    assert history.load_task("g").default == 32
    history.store_task("g", TASK)
    assert history.load_task("g") == TASK


def test_the_state_is_rebuilt_from_the_runs(history: RunHistory) -> None:
    history.store_task("g", TASK)
    for batch, epochs in ((32, 8), (32, 10), (64, 20)):
        add(history, batch, epochs)
    history.store_sweep("g", 32, "a100", SWEEP)
    state = history.load_state("g", "a100", BayesianTuner())
    assert state.runs.tolist() == [0, 2, 1]
    assert state.epoch_j[1] == pytest.approx(0.5 * 2000 + 0.5 * 200 * 10)
    more = (0.5 * 300 + 0.5 * 200 * 1.8) / (0.5 * 180 + 0.5 * 200 * 2.0)
    assert state.full_j[1] / state.epoch_j[1] == pytest.approx(more)
    assert np.isnan(state.epoch_j[0])


def test_epochs_carry_over_from_other_kinds_of_gpu(history: RunHistory) -> None:
    history.store_task("g", TASK)
    for _ in range(3):
        add(history, 32, 20, kind="v100")
        add(history, 16, 8, kind="v100")
    state = history.load_state("g", "a100", BayesianTuner())
    assert state.runs.tolist() == [3, 3, 0]
    assert np.isnan(state.epoch_j).all()
    assert BayesianTuner().next(state, np.random.default_rng(0)).batch == 16


def test_a_trial_is_pending_until_its_run_is_added(history: RunHistory) -> None:
    history.store_task("g", TASK)
    add(history, 32, 8)
    history.add_trial("g", "a100", BatchTrial(64, explores=True))
    assert history.load_state("g", "a100", BayesianTuner()).pending == (64,)
    add(history, 64, 8)
    assert history.pending("g", "a100") == []


def test_a_reset_forgets_one_job_and_all_of_it(history: RunHistory) -> None:
    history.store_task("g", TASK)
    add(history, 32, 8)
    history.store_sweep("g", 32, "a100", SWEEP)
    history.add_run("other", "a100", batch=8, reached=True, seconds=1.0, joules=1.0, epochs=1)
    assert history.reset("g") == 1
    assert history.groups() == ["other"]
    assert history.load_sweep("g", 32, "a100") == ()
    with pytest.raises(NotFound, match="has no job 'g'"):
        history.reset("g")
    with pytest.raises(NotFound):
        history.load_task("g")


def test_a_file_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_text("no database " * 200)
    with pytest.raises(ConfigError, match=r"m\.db: is not a run history of wattline"):
        RunHistory.open(tmp_path / "m.db")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    RunHistory.open(tmp_path / "m.db").close()
    with sqlite3.connect(tmp_path / "m.db") as raw:
        raw.execute("PRAGMA user_version=99")
    raw.close()
    with pytest.raises(ConfigError, match="has schema 99, expected 2"):
        RunHistory.open(tmp_path / "m.db")


def _write(path: str, kind: str) -> None:
    with RunHistory.open(path) as history:
        for _ in range(25):
            add(history, 32, 8, kind)


@pytest.mark.slow
def test_processes_may_write_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, kind)) for kind in ("a", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with RunHistory.open(path) as history:
        assert [len(history.runs("g", kind)) for kind in ("a", "b")] == [25, 25]


def test_a_batch_size_that_ran_out_of_memory_is_avoided_and_its_cost_counted(history: RunHistory) -> None:
    history.store_task("g", TASK)
    history.add_run("g", "a100", batch=64, reached=False, seconds=3.0, joules=500.0, epochs=OUT_OF_MEMORY)
    for _ in range(3):
        add(history, 32, 8)
    state = history.load_state("g", "a100", BayesianTuner(), max_w=250.0)
    assert state.stopped_runs.tolist() == [0, 0, 1]
    assert state.spent_j == pytest.approx(0.5 * (500 + 250 * 3) + 3 * 0.5 * (16000 + 250 * 80))
    assert np.isnan(state.epoch_j[2])
    posterior = compute_posterior(state)
    assert float(posterior.weight @ posterior.normal[:, 2]) < 0.5
    assert BayesianTuner().next(state, np.random.default_rng(0)).batch != 64
    elsewhere = history.load_state("g", "h100", BayesianTuner())
    assert (elsewhere.stopped_runs.tolist(), elsewhere.stops) == ([0, 0, 0], ())


def test_runs_without_an_epoch_are_left_out(history: RunHistory) -> None:
    history.store_task("g", TASK)
    history.add_run("g", "a100", batch=64, reached=False, seconds=3.0, joules=500.0, epochs=0)
    assert not history.load_state("g", "a100", BayesianTuner()).stopped_runs.any()
