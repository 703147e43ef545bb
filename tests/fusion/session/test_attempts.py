"""Sessions of arrays in an attempt of the service: newer attempts, and orders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.array_jobs import PreparedArray, train
from support.sessions import describe_gpus


@pytest.fixture
def array(three: PreparedArray, monkeypatch: pytest.MonkeyPatch) -> PreparedArray:
    """Return an array of three jobs in the first attempt at each."""
    monkeypatch.setenv("WATTLINE_ATTEMPT", str(three.folder("job-0")))
    return three


def start_newer(array: PreparedArray, name: str) -> None:
    (array.folder(name).parent / "2").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job-0", "job-2"])
def test_an_array_with_a_newer_attempt_at_a_member_neither_saves_nor_goes_on(
    array: PreparedArray, name: str
) -> None:
    steps: list[int] = []

    def after_step(run: Any, step: int) -> None:
        steps.append(step)
        if step == 6:  # in the second epoch
            start_newer(array, name)

    with pytest.raises(SystemExit, match="75"):
        train(after_step=after_step)
    assert 6 <= steps[-1] <= 8  # until the end of the epoch, or the next progress event
    positions = [array.position(one) for one in array.names]
    assert [one.epoch for one in positions if one is not None] == [1, 1, 1]
    assert "ended" not in array.event_names("job-1")


@pytest.mark.slow
def test_a_member_that_leaves_is_not_saved_once_there_is_a_newer_attempt(array: PreparedArray) -> None:
    def after_step(run: Any, step: int) -> None:
        if step == 6:
            start_newer(array, "job-1")
            array.cancel("job-1")

    with pytest.raises(SystemExit, match="75"):
        train(after_step=after_step)
    position = array.position("job-1")
    assert position is not None
    assert (position.epoch, position.step) == (1, 0)


@pytest.mark.slow
def test_orders_change_the_cap_of_a_running_array(array: PreparedArray, tmp_path: Path) -> None:
    caps: list[float] = []

    def after_step(run: Any, step: int) -> None:
        caps.append(run.process.gpus[0].cap_w())
        if step == 2:
            folder = array.folder("job-0")
            (folder / "new").write_text(json.dumps({"cap_w": 150}))
            (folder / "new").rename(folder / "orders.json")

    train(after_step=after_step, meter=describe_gpus(tmp_path), aim="none")
    assert caps[0] == 300.0
    assert caps[-1] == 150.0
