from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controllers import open_client, run_controller, wait_until
from wattline.backend.engine import power_samples
from wattline.backend.engine.protocol import GpuReading
from wattline.cluster import nodes
from wattline.service.power_history import KEPT_S, PowerHistory, read_power
from wattline.service.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def write(store: Store, at_s: float, *watts: float | None, jobs: tuple[str, ...] = ()) -> None:
    history = PowerHistory(store, nodes("a100", gpus=4, name="n"))
    history.record(at_s, [GpuReading(0, gpu, w, 300.0, jobs) for gpu, w in enumerate(watts)])


def test_samples_have_totals_and_an_unreadable_gpu_makes_them_unknown(store: Store) -> None:
    write(store, 100.0, 60.0, 250.0, jobs=("7",))
    write(store, 110.0, 60.0, None)
    points, next_s = read_power(store, 0.0, 1000.0, 10.0, 100)
    assert [(p.at_s, p.power_w, p.cap_w) for p in points] == [(100.0, 310.0, 600.0), (110.0, None, 600.0)]
    assert points[0].gpus[1][1:] == ("n-0", 1, 250.0, 300.0, ("7",))
    assert next_s is None


def test_samples_of_one_step_are_one_with_their_mean_and_all_jobs(store: Store) -> None:
    for number in range(6):
        write(store, 600.0 + 10 * number, 100.0 * number, jobs=("12",) if number % 2 else ("3", "4"))
    (point,), _ = read_power(store, 0.0, 1e9, 60.0, 100)
    assert (point.at_s, point.power_w) == (600.0, 250.0)
    assert point.gpus[0].jobs == ("3", "4", "12")


def test_pages_together_are_the_whole_history(store: Store) -> None:
    for number in range(25):
        write(store, 10.0 * number, float(number), 1.0)
    since_s, seen = 0.0, []
    while since_s is not None:
        points, since_s = read_power(store, since_s, 1e9, 10.0, 10)  # type: ignore[assignment]
        assert len(points) <= 10
        seen += [point.power_w for point in points]
    assert seen == [number + 1.0 for number in range(25)]


def test_old_samples_are_deleted(store: Store) -> None:
    write(store, 0.0, 1.0)
    write(store, 100.0, 1.0)
    write(store, KEPT_S + 50.0, 2.0)  # another hour has begun
    points, next_s = read_power(store, 0.0, 1e12, 10.0, 100)
    assert ([point.at_s for point in points], next_s) == ([100.0], KEPT_S + 50.0)
    store.delete_power_samples(1e12)
    assert read_power(store, 0.0, 1e12, 10.0, 100) == ([], None)


def test_power_is_recorded_whatever_the_policy_and_a_budget_deletes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_samples, "POWER_INTERVAL_S", 0.05)
    with run_controller(tmp_path, "simulated:2xa100") as controller, open_client(controller) as client:

        def count() -> int:
            return len(read_power(controller.store, 0.0, 1e12, 0.05, 1000)[0])

        before = wait_until(count)
        controller.set_budgets(["500W"])
        controller.set_budgets([])
        assert count() >= before
        wait_until(lambda: count() > before)
        answer = client.get("/api/v1/power", params={"step": 10}).json()
        assert answer["method"] == "simulated"
        first = answer["samples"][0]
        assert [gpu["gpu"] for gpu in first["gpus"]] == [0, 1]
        assert first["power_w"] == pytest.approx(2 * 59.0, rel=0.05)
        assert first["cap_w"] == 800.0
        assert client.get("/api/v1/power", params={"step": 1}).status_code == 422
        assert client.get("/api/v1/power", params={"sins": 1}).status_code in (400, 422)
