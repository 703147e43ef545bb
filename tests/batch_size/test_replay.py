"""Replay of batch-size optimisers on recorded trainings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattline.batch_size.bandit import BatchTrial, Outcome, TuningTask, Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import read_tables
from wattline.batch_size.replay import TuningCase, build_cases, default_regret, replay, score
from wattline.testing.recurring import build_random_case

SIMPLE = TuningCase(
    gpu="x", name="simple", task=TuningTask((8, 16), 16, 20),
    epochs=(np.array([4.0, 4.0]), np.array([8.0, np.inf])),
    caps_w=np.array([100.0, 200.0]), seconds=np.array([[2.0, 1.0], [1.0, 1.0]]),
    watts=np.array([[100.0, 200.0], [100.0, 150.0]]), max_w=200.0, eta=0.5,
)  # fmt: skip


class Always:
    """An optimiser that always runs one batch size for a fixed number of epochs."""

    def __init__(self, batch: int, epochs: int = 20) -> None:
        self.batch, self.limit = batch, epochs

    def start(self, task: TuningTask) -> list[Outcome]:
        return []

    def next(self, state: list[Outcome], rng: np.random.Generator) -> BatchTrial:
        return BatchTrial(self.batch)

    def epoch_limit(self, state: list[Outcome], trial: BatchTrial, epoch_j: float) -> int:
        return self.limit

    def start_trial(self, state: list[Outcome], trial: BatchTrial) -> list[Outcome]:
        return state

    def observe(self, state: list[Outcome], outcome: Outcome) -> list[Outcome]:
        return [*state, outcome]


def test_the_best_limit_is_the_one_with_the_cheapest_epoch() -> None:
    assert SIMPLE.epoch_j.tolist() == [[300.0, 200.0], [150.0, 175.0]]
    assert SIMPLE.best_cap.tolist() == [1, 0]


def test_the_oracle_is_a_batch_size_that_always_reaches_the_target() -> None:
    assert SIMPLE.expected_j.tolist() == [800.0, 1200.0]
    assert SIMPLE.oracle == 0
    assert default_regret(SIMPLE) == pytest.approx(8 * (8 * 175 / 800 - 1))


def test_the_first_epoch_of_a_batch_size_costs_the_mean_over_the_limits() -> None:
    done = replay(SIMPLE, Always(8), 0, 3)
    assert done.cost_j.tolist() == [850.0, 800.0, 800.0]
    assert done.energy_j.tolist() == [800.0, 800.0, 800.0]
    assert done.time_s.tolist() == [4.5, 4.0, 4.0]


def test_runs_that_fail_are_tried_again_and_their_cost_adds_up() -> None:
    done = replay(SIMPLE, Always(16), 3, 10)
    assert done.tries.max() > 1
    extra = 20 * 150.0 * (done.tries - 1) + 8 * 150
    extra[0] += 12.5
    assert done.cost_j.tolist() == pytest.approx(extra.tolist())


def test_the_same_seed_draws_the_same_runs_for_all_optimisers() -> None:
    case = build_random_case(3)
    a, b = (replay(case, Zeus(), 5, 30) for _ in range(2))
    assert a.cost_j.tolist() == b.cost_j.tolist()
    first = [replay(case, optimizer, 7, 1).cost_j[0] for optimizer in (Zeus(), BayesianTuner())]
    assert first[0] == first[1]


def test_staying_at_the_oracle_has_no_regret_but_the_sweep() -> None:
    found = score(SIMPLE, replay(SIMPLE, Always(8), 0, 8))
    assert found.regret == pytest.approx(50 / 800)
    assert (found.settled, found.settles10, found.settles5, found.pure_regret) == (1.0, 1.0, 1.0, 0.0)


def test_an_optimiser_that_never_settles_scores_nan() -> None:
    assert np.isnan(score(SIMPLE, replay(SIMPLE, Always(16), 0, 8)).settles10)


def build_partial(missing: tuple[tuple[int, int], ...]) -> TuningCase:
    """Return a job of two batch sizes and three limits without the measurements of these cells."""
    seconds, watts = np.array([[4.0, 3.0, 2.0], [2.0, 1.5, 1.2]]), np.array([[80.0, 140.0, 180.0]] * 2)
    for cell in missing:
        seconds[cell] = watts[cell] = np.nan
    return TuningCase(
        "x", "partial", TuningTask((8, 16), 16, 20), (np.array([5.0, 6.0]), np.array([7.0, 9.0])),
        np.array([100.0, 150.0, 200.0]), seconds, watts, 200.0, 0.5,
    )  # fmt: skip


def test_limits_that_were_not_measured_are_left_out_of_their_batch_size() -> None:
    case = build_partial(((1, 2), (0, 0)))
    assert (case.recurrences, case.full_cap.tolist()) == (8, [2, 1])
    assert case.best_cap.tolist() == [2, 1]
    assert case.default_run == pytest.approx((8 * 1.5 * 140, 8 * 1.5, 8 * 1.5 * 0.5 * (140 + 200)))
    done = replay(case, Always(8), 0, 1)
    mean_first = np.mean([3.0 * 0.5 * (140 + 200), 2.0 * 0.5 * (180 + 200)])
    assert done.cost_j[0] in [pytest.approx(mean_first + n * 380.0) for n in (4, 5)]
    for optimizer in (Zeus(), BayesianTuner()):
        found = score(case, replay(case, optimizer, 0))
        assert np.isfinite([found.last_energy, found.regret]).all()


def test_without_a_sure_batch_size_the_oracle_is_the_cheapest_with_the_runs_that_fail() -> None:
    case = replace(
        build_partial(()), epochs=(np.array([5.0, np.inf, np.inf, np.inf]), np.array([9.0, 9.0, 9.0, np.inf]))
    )
    assert case.price_epochs.tolist() == pytest.approx([5 + 60, 9 + 20 / 3])
    assert case.oracle == 1
    assert case.oracle_j == pytest.approx(case.price_epochs[1] * case.epoch_j[1].min())


def test_a_default_that_never_reaches_the_target_is_left_for_another_batch_size() -> None:
    case = replace(build_partial(()), epochs=(np.array([5.0, 6.0]), np.array([np.inf, np.inf])))
    done = replay(case, BayesianTuner(), 0, 12)
    assert (done.batch == 0).all()
    assert done.tries.tolist() == [2] + [1] * 11
    found = score(case, done)
    assert np.isnan(found.last_energy)
    assert default_regret(case) == np.inf


@pytest.mark.slow
def test_a_batch_size_that_fails_in_two_of_five_runs_is_given_up_after_few_tries() -> None:
    runs = np.array([[10.0, 12.0, 12.0, 12.0, 13.0], [9.0, 9.0, 10.0, 31.0, 31.0]])
    case = replace(build_partial(()), epochs=tuple(runs[::-1]), task=TuningTask((8, 16), 16, 100))
    case = replace(case, seconds=np.array([[3.0, 2.0, 1.5], [3.0, 2.0, 1.5]]))
    zeus, ours = (
        [score(case, replay(case, tuner, seed, 60)).regret for seed in range(10)]
        for tuner in (Zeus(), BayesianTuner())
    )
    assert np.mean(ours) < min(0.5 * np.mean(zeus), default_regret(case, 60) + 1.5)
    assert max(ours) < 5


@pytest.mark.slow
def test_on_synthetic_jobs_the_tuner_has_a_fraction_of_zeus_regret() -> None:
    regrets: dict[str, list[float]] = {"zeus": [], "ours": []}
    for seed in range(300, 312):
        case = build_random_case(seed)
        regrets["zeus"].append(score(case, replay(case, Zeus(), 0)).regret)
        regrets["ours"].append(score(case, replay(case, BayesianTuner(), 0)).regret)
    assert np.mean(regrets["ours"]) < 0.6 * np.mean(regrets["zeus"])


TABLE_7A = {  # default J, s; oracle batch, W, J, s; per cent of energy, time, cost (spec, section 7a)
    ("v100", "cifar100"): (112458, 599.17, 128, 100, 28478, 339.21, 74.7, 43.4, 56.8),
    ("v100", "imagenet"): (16412549, 74518, 360, 175, 13233277, 80111, 19.4, -7.5, 5.1),
    ("v100", "squad"): (1621829, 7106, 12, 200, 1341226, 7158, 17.3, -0.7, 7.9),
    ("v100", "librispeech"): (9528122, 59344, 48, 150, 5846868, 45777, 38.6, 22.9, 29.0),
    ("v100", "movielens-1m"): (3229, 84.91, 16384, 175, 1119, 30.88, 65.3, 63.6, 63.9),
    ("v100", "sentiment140"): (2758293, 12345, 64, 175, 2180791, 13386, 20.9, -8.4, 5.4),
    ("a40", "cifar100"): (146841, 670.92, 128, 225, 48409, 309.19, 67.0, 53.9, 59.4),
    ("a40", "imagenet"): (19184897, 81567, 256, 225, 16278536, 82881, 15.1, -1.6, 5.8),
    ("a40", "squad"): (995432, 3729, 32, 225, 832940, 3966, 16.3, -6.4, 4.3),
    ("a40", "librispeech"): (15673814, 93409, 32, 175, 5280183, 38099, 66.3, 59.2, 61.8),
    ("a40", "movielens-1m"): (7480, 89.48, 16384, 100, 2900, 36.28, 61.2, 59.5, 59.8),
    ("a40", "sentiment140"): (1649560, 6007, 128, 200, 1309892, 6681, 20.6, -11.2, 4.0),
}
ENERGY_7A = {  # least energy: batch, W; per cent saved by both, by the batch size alone, by the limit alone
    ("v100", "cifar100"): (128, 100, 74.7, 63.2, 31.4),
    ("v100", "imagenet"): (360, 150, 23.8, 3.0, 22.5),
    ("v100", "squad"): (8, 125, 27.6, 6.7, 17.8),
    ("v100", "librispeech"): (32, 100, 42.8, 18.0, 16.2),
    ("v100", "movielens-1m"): (16384, 150, 66.6, 65.0, 3.0),
    ("v100", "sentiment140"): (32, 125, 26.4, 3.4, 21.2),
    ("a40", "cifar100"): (128, 125, 72.2, 65.7, 21.0),
    ("a40", "imagenet"): (360, 200, 19.4, 1.4, 19.1),
    ("a40", "squad"): (16, 200, 21.4, 0.0, 20.4),
    ("a40", "librispeech"): (32, 175, 66.3, 59.3, 1.7),
    ("a40", "movielens-1m"): (16384, 100, 61.2, 58.2, 6.3),
    ("a40", "sentiment140"): (128, 200, 20.6, 0.0, 20.6),
}
LAST_5 = {  # per cent of energy that Zeus saves in its last five recurrences
    ("v100", "cifar100"): 74.8, ("v100", "imagenet"): 19.1, ("v100", "squad"): 18.1,
    ("v100", "librispeech"): 38.2, ("v100", "movielens-1m"): 65.2, ("v100", "sentiment140"): 20.9,
    ("a40", "cifar100"): 66.9, ("a40", "imagenet"): 14.0, ("a40", "squad"): 15.7,
    ("a40", "librispeech"): 66.3, ("a40", "movielens-1m"): 61.2, ("a40", "sentiment140"): 20.6,
}  # fmt: skip
TABLE_7B = {  # Zeus' regret: mean, least, most
    ("v100", "cifar100"): (10.0, 7.5, 11.8), ("v100", "imagenet"): (4.4, 3.3, 5.5),
    ("v100", "squad"): (1.7, -0.6, 4.0), ("v100", "librispeech"): (8.1, 5.2, 13.3),
    ("v100", "movielens-1m"): (14.0, 9.7, 18.6), ("v100", "sentiment140"): (1.7, 1.7, 1.7),
    ("a40", "cifar100"): (10.6, 8.7, 12.6), ("a40", "imagenet"): (5.1, 4.1, 7.4),
    ("a40", "squad"): (3.2, 1.5, 5.9), ("a40", "librispeech"): (8.2, 7.7, 8.9),
    ("a40", "movielens-1m"): (12.0, 9.4, 14.5), ("a40", "sentiment140"): (4.4, 4.4, 4.5),
}  # fmt: skip


@pytest.fixture(scope="session")
def published(data: Path) -> dict[tuple[str, str], TuningCase]:
    found = read_tables(data / "zeus")
    return {(gpu, case.name): case for gpu in found.gpus for case in build_cases(found, gpu)[0]}


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "numbers"), TABLE_7A.items(), ids=lambda each: "-".join(map(str, each[:2])))
def test_the_published_tables_give_the_known_savings(
    published: dict[tuple[str, str], TuningCase], cell: tuple[str, str], numbers: tuple[Any, ...]
) -> None:
    case = published[cell]
    base_j, base_s, base = case.expected_run(case.default_index, -1)
    at, cap = case.oracle, int(case.best_cap[case.oracle])
    best_j, best_s, best = case.expected_run(at, cap)
    saved = [100 * (1 - a / b) for a, b in ((best_j, base_j), (best_s, base_s), (best, base))]
    found = (base_j, base_s, case.task.batches[at], case.caps_w[cap], best_j, best_s, *saved)
    for value, expected in zip(found, numbers, strict=True):
        places = len(str(expected).partition(".")[2]) if isinstance(expected, float) else 0
        assert round(value, places) == expected


@pytest.mark.slow
@pytest.mark.parametrize("cell", ENERGY_7A, ids="-".join)
def test_the_published_tables_give_the_known_least_energies(
    published: dict[tuple[str, str], TuningCase], cell: tuple[str, str]
) -> None:
    case = published[cell]
    sure = np.array([bool(np.isfinite(runs).all()) for runs in case.epochs])
    energy = np.where(sure, case.mean_epochs, np.inf)[:, None] * case.seconds * case.watts
    at, cap = np.unravel_index(int(np.argmin(energy)), energy.shape)
    least = (energy[at, cap], energy[:, -1].min(), energy[case.default_index].min())
    saved = [abs(round(100 * (1 - value / energy[case.default_index, -1]), 1)) for value in least]
    assert (case.task.batches[at], case.caps_w[cap], *saved) == ENERGY_7A[cell]


@pytest.mark.slow
@pytest.mark.parametrize("cell", TABLE_7B, ids="-".join)
def test_zeus_regrets_and_savings_are_those_of_its_own_simulator(
    published: dict[tuple[str, str], TuningCase], cell: tuple[str, str]
) -> None:
    case, (mean, _, _) = published[cell], TABLE_7B[cell]
    scores = [score(case, replay(case, Zeus(), seed)) for seed in range(20)]
    for found, expected in (
        ([one.regret for one in scores], mean),
        ([one.last_energy for one in scores], LAST_5[cell]),
    ):
        off = 0.06 + 3 * np.std(found) * np.sqrt(1 / 20 + 1 / (20 if cell[0] == "v100" else 8))
        assert np.mean(found) == pytest.approx(expected, abs=off)


@pytest.mark.slow
def test_the_tuner_loses_at_most_a_run_against_the_default_and_less_than_half_of_zeus(
    published: dict[tuple[str, str], TuningCase],
) -> None:
    ours, zeus = [], []
    for case in published.values():
        mine = [score(case, replay(case, BayesianTuner(), seed)).regret for seed in range(10)]
        assert np.mean(mine) <= default_regret(case) + 1, (case.gpu, case.name)
        ours.append(np.mean(mine))
        zeus.append(np.mean([score(case, replay(case, Zeus(), seed)).regret for seed in range(10)]))
    assert np.mean(ours) <= 0.5 * np.mean(zeus)
