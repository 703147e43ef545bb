"""Prices of the market in the run log: written, read and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import wattline as wl
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.simulator import Sim
from wattline.core.jobs import Jobs
from wattline.energy.budgets import parse_budget
from wattline.errors import TraceError
from wattline.loop.log_reader import read_log
from wattline.loop.log_writer import write_log
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.library import library

POLICY = p.Market(budgets=(parse_budget("2kW"),))


def simulate(policy: p.Market = POLICY) -> Log:
    jobs = Jobs.of(
        submit_s=[0, 0, 0, 600, 900, 1200],
        gpus=[4, 4, 2, 8, 1, 2],
        duration_s=[3000, 2000, 900, 1500, 4000, 600],
        model=["elasticflow/bert", "elasticflow/vgg16", "elasticflow/resnet50"] * 2,
    )
    return run(Sim(jobs, wl.nodes("a100"), truth=library()), policy, library())


@pytest.fixture(scope="module")
def log() -> Log:
    return simulate()


def test_every_decision_logs_a_price_of_each_resource(log: Log) -> None:
    decided = [prices for prices in log.prices[:-1] if prices is not None]
    assert len(decided) == len(log) - 1  # the last round is the meter's
    for prices in decided:
        assert prices.names == ("a100", "watts", "energy")
        assert min(prices.values) >= 0
    assert any(prices.as_dict()["watts"] > 0 for prices in decided)
    assert any(np.isfinite(prices.bound) for prices in decided)


def test_without_a_budget_there_is_no_price_of_watts() -> None:
    prices = [found.as_dict() for found in simulate(p.Market()).prices if found is not None]
    assert set(prices[0]) == {"a100", "energy"}
    assert max(found["a100"] for found in prices) > 0
    assert {found["energy"] for found in prices} == {0.0}


def test_logged_prices_are_read_and_written_as_the_same_bytes(log: Log, tmp_path: Path) -> None:
    write_log(log, tmp_path / "once.jsonl")
    again = read_log(tmp_path / "once.jsonl")
    write_log(again, tmp_path / "twice.jsonl")
    assert (tmp_path / "once.jsonl").read_bytes() == (tmp_path / "twice.jsonl").read_bytes()
    assert again.prices == log.prices
    second = json.loads((tmp_path / "once.jsonl").read_text().splitlines()[1])
    assert set(second["prices"]) == {"a100", "watts", "energy"}


def test_a_replay_repeats_the_prices(log: Log) -> None:
    again = run(Replay(log), POLICY, library())
    assert again.now_s.tolist() == log.now_s.tolist()
    assert again.prices == log.prices


def test_a_price_that_is_no_number_is_refused_with_its_line(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    write_log(log, path)
    lines = path.read_text().splitlines()
    second = json.loads(lines[1])
    second["prices"]["watts"] = "high"
    path.write_text("\n".join([lines[0], json.dumps(second), *lines[2:]]))
    with pytest.raises(TraceError, match=r"bad.jsonl:2: .*the price of watts is 'high', expected a number"):
        read_log(path)


def test_a_price_passes_through_the_stages_behind_the_market() -> None:
    policy = p.chain(p.srtf, p.Market(), p.Demand())
    jobs = Jobs.of(submit_s=[0], gpus=[4], duration_s=[3000], model=["elasticflow/bert"])
    log = run(Sim(jobs, wl.nodes("a100"), truth=library()), policy, library())
    assert any(prices is not None for prices in log.prices)
