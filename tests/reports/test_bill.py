"""Costs of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wattline as wl
from wattline import policy as p
from wattline.core.events import (
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_VERB,
    FINISHED,
    METERED,
)
from wattline.energy.time_series import KWH_J, TimeSeries

NODES = wl.nodes("v100", count=1, gpus=2, base_w=100.0, idle_w=50.0, busy_w=250.0)
# Two jobs of an hour, the second of which waits for an hour, because each wants both GPUs.
JOBS = wl.Jobs.of(
    submit_s=[0.0, 0.0],
    gpus=[2, 2],
    duration_s=[3600.0, 3600.0],
    deadline_s=[3600.0, 5400.0],
    late_per_h=[5.0, 3.0],
)


def priced(price: wl.Price | None) -> wl.Log:
    return wl.run(wl.Sim(JOBS, NODES), p.fifo, price=price)


def test_a_run_costs_its_energy_and_its_lateness() -> None:
    result = wl.report(priced(wl.Price.flat(0.25, pue=2.0)))
    assert result.energy_cost == pytest.approx(2 * 0.6 * 0.25 * 2.0)  # 600 W for two hours
    assert result.tardiness_cost == pytest.approx(0.5 * 3.0)
    assert result.cost == pytest.approx(0.6 + 1.5)
    assert "cost        2.10: 0.60 for energy at 0.25 per kWh, PUE 2, 1.50 for being late" in str(result)


def test_without_a_price_only_lateness_is_known() -> None:
    result = wl.report(priced(None))
    assert np.isnan(result.cost)
    assert result.tardiness_cost == pytest.approx(1.5)
    assert "1.50 for being late, and energy, of which no price was given" in str(result)


def test_a_tariff_charges_by_the_hour() -> None:
    tariff = wl.Price(TimeSeries((0.0, 5400.0), (0.1, 0.4)))
    result = wl.report(priced(tariff))
    assert result.energy_cost == pytest.approx(0.6 * (1.5 * 0.1 + 0.5 * 0.4))


@pytest.mark.parametrize("policy", [p.fifo, p.Las(), p.Andreas(method="search")])
@pytest.mark.parametrize("place", [wl.Pack(), wl.Power()])
def test_the_bill_agrees_with_the_log_to_the_cent(policy: object, place: object) -> None:
    jobs = wl.synth(count=60, seed=3, gpus_total=16, deadlines=1.0)
    late_per_h = np.random.default_rng(0).uniform(0.5, 2.0, len(jobs))
    jobs = wl.Jobs.of(
        submit_s=jobs.submit_s,
        gpus=jobs.gpus,
        duration_s=jobs.duration_s,
        deadline_s=jobs.deadline_s,
        late_per_h=late_per_h,
    )
    nodes = wl.join_nodes(wl.nodes("v100", count=1, gpus=8), wl.nodes("a100", count=2, gpus=4))
    log = wl.run(wl.Sim(jobs, nodes), policy, place=place, price=wl.Price.flat(0.3, pue=1.2))
    result = wl.report(log)
    readings = (log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] < 0)
    metered = log.events[readings, EVENT_ENERGY_J][-1]
    finished = log.events[log.events[:, EVENT_VERB] == FINISHED]
    ends = {int(event[EVENT_JOB]): event[EVENT_AT_S] for event in finished}
    late = sum(
        max(0.0, ends[job] - jobs.deadline_s[job]) / 3600 * late_per_h[job] for job in range(len(jobs))
    )
    assert result.cost == pytest.approx(metered / KWH_J * 0.3 * 1.2 + late, abs=0.005)
    # A price with (almost) equal steps is charged by the power over time; the result must be the same.
    assert wl.report(_with_price(log, (0.3, 0.3 + 1e-12))).energy_cost == pytest.approx(
        result.energy_cost, abs=0.005
    )


def _with_price(log: wl.Log, per_kwh: tuple[float, float]) -> wl.Log:
    again = wl.Log(log.header, log.jobs, log.nodes)
    again.header["price"] = wl.Price(TimeSeries((0.0, 90_000.0), per_kwh), pue=1.2).as_dict()
    for name in (
        "_now_s",
        "_events",
        "_actions",
        "_held",
        "_event_end",
        "_action_end",
        "_held_end",
        "_gap",
        "_prices",
    ):
        setattr(again, name, getattr(log, name))
    return again


def test_a_log_keeps_prices_gaps_and_tardiness_costs(tmp_path: Path) -> None:
    tariff = wl.Price(TimeSeries((0.0, 5400.0), (0.1, 0.4), every_s=86_400.0), pue=1.1)
    log = wl.run(wl.Sim(JOBS, NODES), p.Andreas(), place=wl.Power(), price=tariff)
    wl.write_log(log, tmp_path / "run.jsonl")
    again = wl.read_log(tmp_path / "run.jsonl")
    assert wl.report(again).as_dict() == wl.report(log).as_dict()
    assert wl.report(again).gap_max <= 1e-3
    assert '"gap":' in (tmp_path / "run.jsonl").read_text()


def test_a_broken_price_in_a_log_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    wl.write_log(priced(wl.Price.flat(0.25)), path)
    path.write_text(path.read_text().replace('"per_kwh":[0.25]', '"per_kwh":[-1]'))
    with pytest.raises(wl.WattlineError, match=r"run.jsonl:1: .*price must be at least 0"):
        wl.read_log(path)


def test_comparisons_show_money_where_there_is_a_price() -> None:
    price = wl.Price.flat(0.25, pue=2.0)
    dear, cheap = (wl.run(wl.Sim(JOBS, NODES), policy, price=price) for policy in (p.fifo, p.edf))
    assert " cost " in str(wl.compare(dear, cheap))
    assert "cost: energy at 0.25 per kWh, PUE 2, and what jobs pay for being late" in str(wl.compare(dear))
    assert wl.compare(dear, cheap).as_dict()["ratios"]["cost"] == [1.0, 1.0]
    assert " cost " not in str(wl.compare(priced(None)))
