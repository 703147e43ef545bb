"""The experiments themselves, quick, on stand-ins and on the public data."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from wattline.batch_size.bandit import Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.replay import replay, score
from wattline.papers import hfta_experiment
from wattline.papers.andreas_scenarios import build_cluster, draw_jobs, draw_times
from wattline.papers.hfta_experiment import reproduce_hfta
from wattline.papers.powerflow_experiment import read_jobs
from wattline.papers.reproductions import EXPERIMENTS
from wattline.papers.results import MEASURED, PUBLIC, SYNTHETIC, Experiments, PaperResult
from wattline.papers.synergy_experiment import draw_workload
from wattline.papers.together_experiment import STEPS, LeverTask, simulate_policy
from wattline.policy.parser import parse_policy
from wattline.testing.recurring import build_random_case

QUICK = Experiments(seeds=2, quick=True)


@cache
def run_quickly(name: str) -> PaperResult:
    """Run an experiment on its stand-in, once for all tests."""
    return EXPERIMENTS[name](QUICK)


@cache
def run_on_data(name: str, data: Path) -> PaperResult:
    """Run an experiment on the public data, once for all tests."""
    return EXPERIMENTS[name](Experiments((data,), seeds=1, quick=True))


def test_figures_of_zeus_are_those_of_its_replays() -> None:
    found = run_quickly("zeus")
    case = build_random_case(10_000)
    row = next(one for one in found.cases if one.case == f"{case.gpu} {case.name}")
    for seed in range(2):
        assert row.ours.values[seed] == score(case, replay(case, BayesianTuner(), seed, 20)).last_energy
        assert row.original is not None
        assert row.original.values[seed] == score(case, replay(case, Zeus(), seed, 20)).last_energy


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "hfta"])
def test_without_data_every_row_is_labelled_synthetic(name: str) -> None:
    found = run_quickly(name)
    assert found.cases
    assert {case.data for case in found.cases} == {SYNTHETIC}
    for case in found.cases:
        assert len(case.ours.values) == 2
        assert all(math.isfinite(value) for value in case.ours.values)


@pytest.mark.slow
def test_with_data_rows_are_labelled_public(data: Path) -> None:
    for name in ("zeus", "andreas", "powerflow"):
        assert {case.data for case in run_on_data(name, data).cases} == {PUBLIC}
    assert [case.data for case in run_on_data("synergy", data).cases].count(PUBLIC) == 4


@pytest.mark.slow
def test_the_published_tune_gives_the_makespans_that_synergy_has(data: Path) -> None:
    found = run_on_data("synergy", data)
    static = next(case for case in found.cases if case.case == "static FIFO, rounds")
    assert static.original is not None
    assert static.original.mean == pytest.approx(15.3 / 11.1, abs=0.01)


def test_without_torch_hfta_is_left_out_and_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hfta_experiment, "find_spec", lambda name: None)
    found = reproduce_hfta(QUICK)
    assert found.cases == ()
    assert "pip install" in found.left_out


@pytest.mark.slow
def test_hfta_measures_this_machine() -> None:
    found = run_quickly("hfta")
    (case,) = found.cases
    assert case.data == MEASURED
    assert case.original is not None
    assert min(*case.ours.values, *case.original.values) > 0
    assert "fusion_gpu.py" in found.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny MLP", "PointNet", "transformer"])
def test_models_fused_by_hand_compute_what_separate_models_compute(name: str) -> None:
    import hfta_operators

    hfta_operators.check_hand_fused(name)


def test_every_step_of_the_ablation_is_a_policy() -> None:
    for step in STEPS:
        for text in filter(None, (step.policy, step.alone)):
            parse_policy(text.partition("@")[0])


@pytest.mark.slow
def test_the_first_lever_is_not_compared_with_itself_and_the_joint_policy_is() -> None:
    found = run_quickly("together")
    levers = [effect["lever"] for effect in found.extra["effects"]]
    assert levers == ["+ caps", "+ fusion", "+ elasticity", "+ due dates", "market"]
    base = simulate_policy(LeverTask(STEPS[0].policy, 0, 30))[1]
    assert found.extra["steps"][0]["jct_mean_h"]["values"][0] == base[0]


def test_stand_ins_differ_by_seed_and_not_by_process() -> None:
    assert draw_times(1) == draw_times(1)
    assert draw_times(1) != draw_times(2)
    nodes = build_cluster("servers", 4, None)
    jobs, _ = draw_jobs(draw_times(1), nodes, 5, 0.5, 1.0, seed=1)
    assert len(jobs) == 5
    first, second = (draw_workload("20/70/10", "one GPU", 1.0, 20, 8, seed) for seed in (0, 1))
    assert first.submit_s.tolist() != second.submit_s.tolist()


def test_pollux_table_of_philly_is_read_in_the_order_of_submission(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.0,2,5902.0,6214e9\n"
    )
    jobs = read_jobs(str(path), "submit=timestamp,gpus=num_gpus,team=cluster")
    assert jobs.submit_s.tolist() == [0.0, 2932.0]
    assert jobs.gpus.tolist() == [2, 1]
    assert jobs.team.words() == ["6214e9", "11cb48"]
