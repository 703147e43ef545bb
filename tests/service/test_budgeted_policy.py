from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.cap_sums import sum_caps
from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_running
from wattline.errors import ConfigError
from wattline.loop.log_reader import read_log
from wattline.policy.chain import spell
from wattline.policy.knobs import get_knob
from wattline.service.budgeted_policy import bound_caps, build_policy, check_metered


@pytest.mark.parametrize(
    ("text", "asked", "overshoot"),
    [
        ("auto", None, 1.0),
        ("auto", 1.2, 1.2),
        ("powerflow:overshoot=1.5+fuse", None, 1.5),
        ("powerflow:overshoot=1.5+fuse", 1.2, 1.2),
    ],
)
def test_a_budget_of_watts_bounds_the_sum_of_caps(text: str, asked: float | None, overshoot: float) -> None:
    policy = build_policy(text, ["500W", "red:200W", "1kWh/day"], asked, 0.0)
    assert get_knob(policy, "overshoot") == overshoot
    bounds = bound_caps(policy, ["500W", "red:200W", "1kWh/day"])
    assert bounds == {"": 500 * overshoot, "red": 200 * overshoot}


def test_budgets_of_energy_bound_no_caps() -> None:
    policy = build_policy("auto", ["1kWh/day"], None, 0.0)
    assert get_knob(policy, "overshoot") == math.inf
    assert bound_caps(policy, ["1kWh/day"]) == {}


def test_a_budget_of_energy_is_refused_without_a_meter() -> None:
    check_metered(["500W", "eta=0.5"], "unmetered")
    check_metered(["5GJ"], "nvml energy counter")
    with pytest.raises(ConfigError, match="'5GJ' cannot be held: the energy of these GPUs is not metered"):
        check_metered(["5GJ"], "unmetered")


@pytest.mark.slow
def test_the_caps_of_the_service_are_within_its_watts_in_the_log_and_on_the_gpus(tmp_path: Path) -> None:
    with run_controller(tmp_path / "state") as controller, open_client(controller) as client:
        # Idle jobs draw little, so measured watts alone would let all of them run without a cap.
        jobs = [submit_text(controller, "run: sleep 60")[0].id for _ in range(4)]
        for job in jobs:
            wait_until_running(controller, job)
        answer = client.put("/api/v1/budgets", json={"budgets": ["500W"], "overshoot": 1.2}).json()
        assert (answer["budgets"], answer["overshoot"]) == (["500W"], 1.2)
        assert client.get("/api/v1/cluster").json()["overshoot"] == 1.2
        gpus = controller.backend.engine.machine.meter.gpus

        def sum_set() -> float:
            held = {row.id: row.allocation["gpus"] for row in controller.store.jobs(states=["RUNNING"])}
            used = {gpu for some in held.values() for gpu in some}
            return sum(gpu.cap_w() if gpu.index in used else 59.0 for gpu in gpus)

        wait_until(lambda: sum_set() <= 600.0)
        controller.set_budgets(["500W"])  # the bound is tighter now
        wait_until(lambda: sum_set() <= 500.0)
        path = tmp_path / "log.jsonl"

        def sum_logged() -> list[float]:
            path.write_text("".join(controller.run_log()))
            return sum_caps(read_log(path))

        wait_until(lambda: sum_logged()[-1] <= 500.0)
        sums_w = sum_logged()  # the first round is what the epoch starts from
        assert max(sums_w[1 + (sums_w[1] > 500.0) :]) <= 500.0


def test_auto_is_the_market_unless_a_budget_is_an_eta() -> None:
    for budgets in ([], ["1kW"], ["vision:2kWh/day"]):
        assert "market" in spell(build_policy("auto", budgets, None, 0.0))
    assert "powerflow" in spell(build_policy("auto", ["eta=0.5"], None, 0.0))
