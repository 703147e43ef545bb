"""A session in a loop that belongs to a framework: `step`, `epoch`, `should_stop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.sessions import BATCH, SHORT, describe_gpus
from wattline import Session
from wattline.batch_size.history import RunHistory
from wattline.errors import ConfigError


def fit(run: Session, epochs: int = 3, steps: int = 20, stops_between_steps: bool = True) -> None:
    """Train as a framework with callbacks does; some look at the stop request only between epochs."""
    for epoch in range(run.position.epoch, epochs):
        for _ in range(steps):
            run.step(64)
            if run.should_stop and stops_between_steps:
                return
        if run.epoch(accuracy=0.1 * epoch):
            return


@pytest.mark.slow
def test_both_faces_measure_the_same_energy_and_find_the_same_cap(tmp_path: Path) -> None:
    options = {"aim": "energy", "window": SHORT}
    with Session(meter=describe_gpus(tmp_path / "a"), memory=tmp_path / "a.db", **options) as iterated:
        for epoch in iterated.epochs(3):
            for _ in iterated.steps([BATCH] * 60):
                pass
            iterated.report(accuracy=0.1 * epoch)
    with Session(meter=describe_gpus(tmp_path / "b"), memory=tmp_path / "b.db", **options) as pushed:
        pushed.expect(epochs=3, steps=60)
        fit(pushed, steps=60)
        assert pushed.should_stop  # all epochs are done
    assert pushed.position == iterated.position
    assert pushed.caps.saves == iterated.caps.saves
    assert pushed.position.joules is not None


def test_the_target_asks_the_framework_to_stop(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none", target="accuracy>=0.55") as run:
        fit(run, epochs=50)
        assert run.should_stop
        assert run.reached
    assert run.position.epoch == 7


def test_the_cost_bound_asks_the_framework_to_stop_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        fit(run, steps=200)
        whole_j = run.cost_j
    monkeypatch.setenv("WATTLINE_MAX_COST_J", str(0.4 * whole_j))
    with Session(meter=describe_gpus(tmp_path / "b"), aim="none") as run:
        fit(run, steps=200)
        assert run.stopped == "cost bound"
        assert 0.4 * whole_j < run.cost_j < 0.6 * whole_j


@pytest.mark.parametrize("stops_between_steps", [True, False])
def test_a_yield_is_saved_at_once_and_ends_the_process_when_the_session_is_closed(
    tmp_path: Path, stops_between_steps: bool
) -> None:
    more = {"meter": describe_gpus(tmp_path), "aim": "none", "checkpoints": tmp_path / "c"}
    saved: list[int] = []
    run = Session(save=lambda _: saved.append(run.position.steps), **more).open()
    run.expect(epochs=3, steps=20)
    for _ in range(30):
        run.step(64)
        if run.position.steps == 20:
            run.epoch(loss=1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not run.should_stop  # before the next step nothing can be saved
    run.step(64)
    assert run.should_stop
    assert saved[-1] == 31
    if not stops_between_steps:
        run.step(64)
        assert saved[-1] == 31
    with pytest.raises(SystemExit) as ended:
        run.close()
    assert ended.value.code == 75
    steps = 31 if stops_between_steps else 32
    assert saved[-1] == steps
    with Session(**more) as again:
        assert (again.position.epoch, again.position.step, again.position.steps) == (1, steps - 20, steps)
        again.expect(epochs=3, steps=20)
        while not again.should_stop:
            again.step(64)
            if again.position.step == 20:
                again.epoch(loss=1.0)
    assert again.position.steps == 60


def test_a_request_to_yield_after_the_last_epoch_does_not_start_the_job_again(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c") as run:
        run.expect(epochs=1, steps=5)
        for _ in range(5):
            if run.position.steps == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            run.step(64)
        run.epoch()
    assert run.position.over


def test_the_outcome_of_a_recurring_job_is_recorded(tmp_path: Path) -> None:
    options = {"group": "nightly", "batch_size": 64, "batch_sizes": (32, 64), "target": "accuracy>=0.15"}
    with Session(meter=describe_gpus(tmp_path), aim="none", memory=tmp_path / "m.db", **options) as run:
        fit(run)
    with RunHistory.open(tmp_path / "m.db") as history:
        assert [run.reached for run in history.runs("nightly", "v100")] == [True]


def test_a_session_opens_with_the_first_step_and_closes_by_hand(tmp_path: Path) -> None:
    run = Session(meter=describe_gpus(tmp_path), aim="none", batch_size=64)
    run.step()
    run.step(32)
    run.close()
    run.close()
    assert run.position.samples == 96
    with pytest.raises(ConfigError, match=r"run.step is called after the session has ended"):
        run.step(64)
    with pytest.raises(ConfigError, match=r"this session has ended, expected a new one"):
        run.open()


def test_steps_are_not_counted_twice(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        for _ in run.epochs(1):
            with pytest.raises(ConfigError, match=r"run.epoch is called inside run.epochs"):
                run.epoch()
            for _ in run.steps([BATCH]):
                with pytest.raises(ConfigError, match=r"run.step is called inside run.steps"):
                    run.step(64)
            run.step(64)  # a second loop of the user's own counts by hand
        assert run.position.steps == 2


@pytest.mark.parametrize("samples", [-1, float("nan"), float("inf")])
def test_a_step_has_a_number_of_samples(tmp_path: Path, samples: float) -> None:
    with Session(meter="none") as run:
        with pytest.raises(ConfigError, match=f"a step has {samples} samples"):
            run.step(samples)
        assert run.position.steps == 0


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code", "how"), [("", 0, "ended"), ("1 / 0", 1, "failed")])
def test_a_session_that_is_never_closed_ends_with_the_interpreter(
    tmp_path: Path, ending: str, code: int, how: str
) -> None:
    script = f"import wattline\nrun = wattline.Session(meter='none').open()\nrun.step(1)\n{ending}\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "WATTLINE_EVENTS": str(tmp_path / "events")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert "the session was not closed" in done.stderr
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert (last["event"], last["how"]) == ("ended", how)
