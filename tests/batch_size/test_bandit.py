"""Batch-size optimisers: Zeus as published, and the Bayesian tuner."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wattline.batch_size.bandit import BatchTrial, Outcome, TuningTask, Zeus, ZeusState, scaled_lr
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.posterior import compute_posterior
from wattline.batch_size.tuner_state import TunerState
from wattline.errors import ConfigError

TASK = TuningTask((8, 16, 32, 64, 128), 32, 100)
RNG = np.random.default_rng(0)


def outcome_of(batch: int, cost_j: float, reached: bool = True, epochs: int = 10) -> Outcome:
    return Outcome(batch, epochs, reached, cost_j, cost_j / epochs, 1.2 * cost_j / epochs, power=0.8)


def prune(costs: dict[int, float], rounds: int = 2) -> tuple[ZeusState, list[int]]:
    """Return Zeus' state after pruning with these costs (missing: not reached), and the batches tried."""
    zeus, tried = Zeus(rounds=rounds), []
    state = zeus.start(TASK)
    while state.pruning_batch is not None:
        batch = zeus.next(state, RNG).batch
        tried.append(batch)
        state = zeus.observe(state, outcome_of(batch, costs.get(batch, 500.0), batch in costs))
    return state, tried


def test_pruning_goes_down_from_the_default_then_up_and_starts_again_from_the_cheapest() -> None:
    _, tried = prune({8: 90.0, 16: 50.0, 32: 100.0, 64: 120.0, 128: 150.0})
    assert tried == [32, 16, 8, 64, 128, 16, 8, 32, 64, 128]


def test_a_failure_ends_its_direction_and_is_never_tried_again() -> None:
    state, tried = prune({32: 100.0, 64: 80.0})
    assert tried == [32, 16, 64, 128, 64, 32]
    assert state.arms == (32, 64)


def test_every_arm_has_two_costs_after_pruning() -> None:
    state, _ = prune({16: 50.0, 32: 100.0, 64: 120.0})
    assert {arm: len(state.costs[arm]) for arm in state.arms} == {16: 2, 32: 2, 64: 2}


def test_a_default_that_does_not_converge_is_refused() -> None:
    zeus = Zeus()
    with pytest.raises(ConfigError, match="default batch size 32 did not reach the target"):
        zeus.observe(zeus.start(TASK), outcome_of(32, 10.0, reached=False))


def test_sampling_freezes_on_costs_that_never_vary_and_takes_the_cheapest() -> None:
    state, _ = prune({16: 50.0, 32: 100.0, 64: 120.0})
    assert {Zeus().next(state, RNG).batch for _ in range(20)} == {16}


def test_sampling_tries_arms_as_often_as_they_may_be_best() -> None:
    zeus = Zeus()
    state, _ = prune({16: 50.0, 32: 51.0})
    for batch, cost_j in ((16, 60.0), (32, 60.0)):
        state = zeus.observe(state, outcome_of(batch, cost_j))
    picks = [zeus.next(state, RNG).batch for _ in range(200)]
    assert 60 < picks.count(16) < 140


def test_runs_stop_at_twice_the_least_cost() -> None:
    state, _ = prune({16: 50.0, 32: 100.0})
    assert Zeus().epoch_limit(state, BatchTrial(32), 7.0) == 14
    assert Zeus().epoch_limit(state, BatchTrial(32), 1e-3) == TASK.max_epochs
    assert Zeus().epoch_limit(state, BatchTrial(32), 101.0) == 0
    assert Zeus(beta=math.inf).epoch_limit(state, BatchTrial(32), 101.0) == TASK.max_epochs


def test_a_run_that_was_not_even_started_counts_as_a_hundred_bounds() -> None:
    state, _ = prune({16: 50.0, 32: 100.0})
    state = Zeus().observe(state, Outcome(32, 0, False, 0.0, 300.0, 300.0))
    assert state.costs[32][-1] == 100 * 2 * 50


def test_the_least_cost_counts_the_tries_before() -> None:
    zeus = Zeus()
    state = zeus.observe(zeus.start(TASK), outcome_of(32, 100.0))
    state = zeus.observe(state, replace(outcome_of(16, 40.0), earlier_j=30.0))
    assert (state.cheapest_j, state.cheapest) == (70.0, 16)


def test_a_concurrent_run_during_pruning_uses_the_cheapest_so_far() -> None:
    zeus = Zeus()
    state = zeus.observe(zeus.start(TASK), outcome_of(32, 100.0))
    trial = zeus.next(state, RNG)
    state = zeus.start_trial(state, trial)
    assert (trial.batch, zeus.next(state, RNG).batch) == (16, 32)
    beside = zeus.observe(zeus.start_trial(state, BatchTrial(32)), outcome_of(32, 90.0))
    assert (beside.pruning_batch, beside.pending) == (16, (16,))
    assert beside.costs[32] == (100.0, 90.0)


def test_a_window_forgets_what_is_old() -> None:
    state, _ = prune({16: 50.0, 32: 100.0})
    for cost_j in (200.0, 200.0, 200.0):
        state = Zeus().observe(state, outcome_of(16, cost_j))
    assert {Zeus(window=2).next(state, RNG).batch for _ in range(20)} == {32}


@pytest.mark.parametrize(
    "wrong", [{"beta": 1.0}, {"beta": math.nan}, {"window": 1}, {"window": -1}], ids=lambda w: str(w)
)
def test_invalid_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Zeus(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batches", "default", "max_epochs"),
    [((), 1, 1), ((8, 4), 4, 1), ((8, 16), 32, 1), ((8,), 8, 0), ((0, 8), 8, 5)],
)
def test_an_invalid_task_is_refused(batches: tuple[int, ...], default: int, max_epochs: int) -> None:
    with pytest.raises(ConfigError):
        TuningTask(batches, default, max_epochs)


def test_learning_rates_follow_the_batch_by_root_for_adam_and_in_proportion_for_sgd() -> None:
    assert scaled_lr(0.1, 32, 128, "AdamW") == pytest.approx(0.2)
    assert scaled_lr(0.1, 32, 128, "adadelta") == pytest.approx(0.2)
    assert scaled_lr(0.1, 128, 32, "sgd") == pytest.approx(0.025)
    with pytest.raises(ConfigError, match="at least 1"):
        scaled_lr(0.1, 0, 32, "sgd")


# -- the Bayesian tuner


def state_after(
    *outcomes: Outcome, optimizer: BayesianTuner | None = None, state: TunerState | None = None
) -> TunerState:
    optimizer = optimizer or BayesianTuner()
    state = state or optimizer.start(TASK)
    for outcome in outcomes:
        state = optimizer.observe(state, outcome)
    return state


def test_the_tuner_starts_with_the_default_without_a_limit() -> None:
    tuner = BayesianTuner()
    state = tuner.start(TASK)
    assert tuner.next(state, RNG) == BatchTrial(32)
    assert tuner.epoch_limit(state, BatchTrial(32), 1.0) == TASK.max_epochs


def test_a_default_that_fails_is_followed_by_its_nearest_neighbours_and_an_error_when_all_fail() -> None:
    tuner = BayesianTuner()
    state, tried = tuner.start(TASK), []
    for _ in range(2 * len(TASK.batches)):
        tried.append(tuner.next(state, RNG).batch)
        state = tuner.observe(state, outcome_of(tried[-1], 1.0, reached=False))
    assert tried == [32, 16, 64, 8, 128] * 2
    with pytest.raises(ConfigError, match="none of the batch sizes 8, 16, 32, 64, 128 reached the target"):
        tuner.next(state, RNG)


def test_the_batch_size_that_reaches_the_target_is_kept_if_the_default_failed() -> None:
    tuner = BayesianTuner()
    state = state_after(outcome_of(32, 1000.0, reached=False, epochs=100), outcome_of(16, 100.0))
    assert compute_posterior(state).best == TASK.batches.index(16)
    assert tuner.next(state, RNG).batch != 32


def test_a_batch_size_is_priced_by_all_that_its_runs_cost_with_those_that_fail() -> None:
    sure = [outcome_of(32, 100.0, epochs=10)] * 5
    cheaper = [outcome_of(16, 80.0, epochs=8)] * 3
    cut_off = [outcome_of(16, 200.0, reached=False, epochs=20)] * 2
    reliable, unreliable = (state_after(*sure, *cheaper, *more) for more in ([], cut_off))
    at = TASK.batches.index(16)
    assert compute_posterior(reliable).best == at
    posterior = compute_posterior(unreliable)
    assert posterior.best == TASK.batches.index(32)
    spent_per_success_j = (3 * 80 + 2 * 200) / 3
    assert 110 < posterior.mean_j[at] < spent_per_success_j + 20
    assert float(posterior.weight @ posterior.normal[:, at]) == pytest.approx(4 / 7, abs=0.1)


def test_the_allowance_counts_what_was_really_spent() -> None:
    tuner = BayesianTuner()
    state = state_after(outcome_of(32, 100.0), outcome_of(32, 100.0))
    worse = state_after(outcome_of(16, 170.0, reached=False, epochs=17), outcome_of(32, 100.0), state=state)
    before, now = (tuner._remaining_allowance_j(each, compute_posterior(each)) for each in (state, worse))
    assert now == pytest.approx(before - 170 + 120 - 100, abs=5)  # the default costs 120 J at full power


def test_with_nothing_left_to_lose_the_default_runs_unless_another_is_surely_cheaper() -> None:
    tuner = BayesianTuner(allowance=0.0)
    doubtful = state_after(
        *[outcome_of(32, 100.0)] * 3,
        *[outcome_of(8, 300.0, reached=False)] * 3,
        outcome_of(16, 97.0),
    )
    assert tuner.next(doubtful, RNG) == BatchTrial(32)
    assert "the default" in tuner.explain(doubtful)
    assert tuner.epoch_limit(doubtful, BatchTrial(32), 10.0) >= 20
    sure = state_after(*[outcome_of(16, 60.0)] * 3, state=doubtful)
    assert tuner.next(sure, RNG).batch == 16


def test_the_tuner_explores_only_while_recurrences_are_left() -> None:
    state = state_after(outcome_of(32, 100.0))
    assert BayesianTuner(expected=100).next(state, RNG).explores
    assert BayesianTuner(expected=0).next(state, RNG) == BatchTrial(32)


def test_the_tuner_is_immutable_and_deterministic() -> None:
    tuner = BayesianTuner()
    state = state_after(outcome_of(32, 100.0))
    before = state.runs.tolist(), state.epoch_j.tolist()
    assert tuner.next(state, RNG) == tuner.next(state, RNG)
    tuner.observe(state, outcome_of(16, 50.0))
    assert repr(before) == repr((state.runs.tolist(), state.epoch_j.tolist()))


def test_a_stopped_run_raises_the_expected_epochs() -> None:
    state = state_after(outcome_of(32, 100.0, epochs=10))
    worse = state_after(Outcome(64, 30, False, 300.0, 10.0, 12.0), state=state)
    before, now = (compute_posterior(each) for each in (state, worse))
    at = TASK.batches.index(64)
    assert now.weight @ now.epochs[:, at] > max(25.0, before.weight @ before.epochs[:, at])


def test_after_a_stopped_run_the_best_known_batch_size_follows() -> None:
    tuner = BayesianTuner()
    state = state_after(outcome_of(32, 100.0), outcome_of(16, 80.0), outcome_of(64, 150.0, reached=False))
    assert tuner.next(state, RNG) == BatchTrial(16)
    again = tuner.observe(state, outcome_of(16, 160.0, reached=False))
    assert tuner.epoch_limit(again, BatchTrial(16), 8.0) == TASK.max_epochs


def test_an_exploration_is_not_started_twice() -> None:
    tuner = BayesianTuner()
    state = state_after(outcome_of(32, 100.0))
    first = tuner.next(state, RNG)
    second = tuner.next(tuner.start_trial(state, first), RNG)
    assert first.explores
    assert second.batch != first.batch
    assert tuner.observe(tuner.start_trial(state, first), outcome_of(first.batch, 90.0)).pending == ()


def test_no_more_is_lost_than_the_allowance() -> None:
    tuner = BayesianTuner(allowance=0.0)
    poor = state_after(
        outcome_of(32, 100.0), outcome_of(64, 200.0, reached=False), outcome_of(32, 100.0), optimizer=tuner
    )
    poor = replace(poor, full_j=poor.epoch_j)  # nothing is saved by a power limit
    trial = tuner.next(poor, RNG)
    assert not trial.explores or tuner._value_trials(poor, compute_posterior(poor)).saving_j.max() > 0


def test_epochs_are_known_from_another_kind_of_gpu_but_not_what_they_cost() -> None:
    tuner = BayesianTuner()
    there = state_after(
        *[outcome_of(32, 100.0, epochs=20)] * 4,
        *[outcome_of(16, 40.0, epochs=10)] * 6,
        *[outcome_of(8, 90.0, epochs=30)] * 2,
    )
    here = tuner.start(TuningTask((16, 32, 64), 32, 100), elsewhere=there)
    assert tuner.next(here, RNG).batch == 16
    assert np.isnan(here.epoch_j).all()
    assert here.runs.tolist() == [6, 4, 0]
    assert not here.local_runs.any()
    state = tuner.observe(here, outcome_of(16, 70.0, epochs=10))
    belief = compute_posterior(state)
    assert belief.weight @ belief.epochs[:, 1] == pytest.approx(20, rel=0.2)


def test_data_that_drifts_is_noticed_and_old_runs_forgotten() -> None:
    state = state_after(*[outcome_of(32, 100.0, epochs=10)] * 8, *[outcome_of(16, 130.0, epochs=13)] * 3)
    drifted = state_after(*[outcome_of(32, 200.0, epochs=20)] * 6, state=state)
    assert drifted.runs.tolist() == [0, 0, 6, 0, 0]
    assert drifted.log_epochs_sum[2] / 6 == pytest.approx(math.log(20))
    assert not np.isnan(drifted.epoch_j[1])


def test_single_bad_runs_are_no_drift() -> None:
    runs = [outcome_of(32, 100.0, epochs=10)] * 8 + [
        outcome_of(32, 150.0, epochs=15),
        outcome_of(32, 100.0, epochs=10),
    ] * 5
    assert state_after(*runs).runs[2] == 18


def test_the_reason_of_a_choice_is_explained_as_text() -> None:
    tuner = BayesianTuner()
    assert "no run has ended" in tuner.explain(tuner.start(TASK))
    assert "exploration" in tuner.explain(state_after(outcome_of(32, 100.0)))
    assert "stopped" in tuner.explain(
        state_after(outcome_of(32, 100.0), outcome_of(64, 100.0, reached=False))
    )
    assert "no trial" in BayesianTuner(expected=0).explain(state_after(outcome_of(32, 100.0)))


def test_an_invalid_expectation_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected must be at least 0"):
        BayesianTuner(expected=-1)
