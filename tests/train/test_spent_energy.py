"""Energy that was spent after the last checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.sessions import BATCH, describe_gpus
from wattline import Session
from wattline.meter import open_meter
from wattline.train.checkpoint import TrainingPosition
from wattline.train.spent_energy import SpentEnergy


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WATTLINE_") and name != "WATTLINE_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "state"))


def train_until(tmp_path: Path, die_at: int, epochs: int = 3) -> Session:
    """Train epochs of 60 steps, and die at that step of this process without any notice."""
    with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c", batch_size=64) as run:
        steps = 0
        for _ in run.epochs(epochs):
            for _ in run.steps([BATCH] * 60):
                steps += 1
                if steps == die_at:
                    os.kill(os.getpid(), 9)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("die_at", [[100], [37], [100, 50, 59], [1]])
def test_joules_since_the_last_checkpoint_survive_a_kill(
    tmp_path: Path, die_at: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    meter = open_meter(describe_gpus(tmp_path))
    for step in die_at:
        pid = os.fork()
        if pid == 0:
            train_until(tmp_path, step)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    run = train_until(tmp_path, -1)
    assert run.energy_j is not None
    # A process writes what it has spent once a second: up to a second of each killed one is lost.
    second_j = 300.0 * len(die_at) * 1.4
    assert meter.gpus[0].energy_j() - second_j <= run.energy_j <= meter.gpus[0].energy_j() * (1 + 1e-9)
    assert meter.now_s() - 1.4 * len(die_at) <= run.seconds <= meter.now_s() * (1 + 1e-9)
    if die_at != [1]:
        assert "J were spent after the last checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "c" / ".spent.json").exists(), "the last checkpoint has it all"


def test_a_recurring_job_does_not_inherit_the_energy_of_the_run_before(tmp_path: Path) -> None:
    more = {"meter": describe_gpus(tmp_path), "aim": "none", "checkpoints": tmp_path / "c", "group": "g"}
    spent = []
    for _ in range(2):
        with Session(**more) as run:  # type: ignore[arg-type]
            for _ in run.epochs(2):
                for _ in run.steps([BATCH] * 20):
                    pass
        spent.append(run.energy_j)
    assert spent[0] == pytest.approx(spent[1])


def test_a_damaged_or_older_file_changes_nothing(tmp_path: Path) -> None:
    spent, position = SpentEnergy(tmp_path), TrainingPosition(seconds=10.0, joules=100.0)
    for text in ("", "{", "[]", '{"seconds": 1}', '{"seconds": "nan", "joules": "inf"}', "null",
                 '{"seconds": 9.0, "joules": 90.0}'):  # fmt: skip
        (tmp_path / ".spent.json").write_text(text)
        spent.add_to(position)
        assert (position.seconds, position.joules, position.lost_joules) == (10.0, 100.0, 0.0)
    spent.write(TrainingPosition(seconds=12.0, joules=150.0))
    spent.add_to(position)
    spent.add_to(position)  # totals: the second time adds nothing
    assert (position.seconds, position.joules) == (12.0, 150.0)
    assert (position.lost_seconds, position.lost_joules) == (2.0, 50.0)
