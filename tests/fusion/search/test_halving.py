"""Brackets and rungs, compared with the closed form and with a plain implementation of the rule."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("torch")

from wattline.errors import ConfigError
from wattline.fusion.search.halving import ASHA, Hyperband, brackets, cutoff
from wattline.fusion.search.space import Float
from wattline.fusion.search.strategy import EpochResult, Search, TrialDecision, TrialTask

SPACE = {"lr": Float(0.1, 1)}


def task(trials: int | None, epochs: int, sign: int = 1) -> TrialTask:
    return TrialTask(SPACE, trials, epochs, seed=0, sign=sign)


def train_all(search: Search, epochs: int, values: dict[int, float]) -> dict[int, int]:
    """Return the epochs of each trial when all are trained side by side."""
    trained = {trial.number: 0 for trial in search.ask(1)}
    running = set(trained)
    while running:
        results = []
        for number in sorted(running):
            trained[number] += 1
            results.append(EpochResult(number, trained[number], values.get(number, math.nan)))
        decisions = search.decide(results)
        for item in results:
            over = item.failed or item.epochs >= epochs
            if over or decisions.get(item.number, TrialDecision.GO) is not TrialDecision.GO:
                running.discard(item.number)
        running |= {n for n, v in decisions.items() if v is TrialDecision.GO and trained[n] < epochs}
    return trained


def test_the_brackets_of_27_epochs_are_the_papers() -> None:
    found = [[(rung.count, rung.epochs) for rung in rungs] for rungs in brackets(27, 3)]
    assert found == [
        [(27, 1), (9, 3), (3, 9), (1, 27)],
        [(12, 3), (4, 9), (1, 27)],
        [(6, 9), (2, 27)],
        [(4, 27)],
    ]


@pytest.mark.parametrize(("epochs", "eta"), [(81, 3), (16, 2), (64, 4), (100, 3), (1, 3), (2, 3)])
def test_bracket_sizes_are_the_closed_form(epochs: int, eta: int) -> None:
    depth = int(math.log(epochs) / math.log(eta) + 1e-9)
    found = brackets(epochs, eta)
    assert len(found) == depth + 1
    for s, rungs in zip(range(depth, -1, -1), found, strict=True):
        count = math.ceil((depth + 1) / (s + 1) * eta**s - 1e-9)
        assert [rung.count for rung in rungs] == [count // eta**i for i in range(s + 1)]
        assert [rung.epochs for rung in rungs] == [math.floor(epochs / eta ** (s - i)) for i in range(s + 1)]


def test_hyperband_trains_as_many_for_as_long_as_the_brackets_say() -> None:
    values = {number: random.Random(number).random() for number in range(49)}
    trained = train_all(Hyperband()(task(None, 27)), 27, values)
    assert len(trained) == 49
    first = [trained[number] for number in range(27)]
    assert sorted(first, reverse=True) == [27] + [9] * 2 + [3] * 6 + [1] * 18
    assert trained[min(range(27), key=values.__getitem__)] == 27
    assert [trained[number] for number in range(45, 49)] == [27] * 4


def test_hyperband_repeats_its_brackets_and_cuts_the_last() -> None:
    trained = train_all(Hyperband()(task(60, 27)), 27, {number: float(number) for number in range(60)})
    assert len(trained) == 60
    assert sorted((trained[n] for n in range(49, 60)), reverse=True) == [27, 3, 3] + [1] * 8


def test_halving_keeps_the_largest_when_maximising() -> None:
    trained = train_all(Hyperband()(task(27, 27, sign=-1)), 27, {n: float(n) for n in range(27)})
    assert trained[26] == 27
    assert trained[0] == 1


def test_a_bracket_does_not_wait_for_failed_trials() -> None:
    values = {number: float(number) for number in range(27) if number % 2}
    trained = train_all(Hyperband()(task(27, 27)), 27, values)
    assert trained[1] == 27
    assert all(trained[number] == 1 for number in range(0, 27, 2))


def test_the_top_third_is_one_at_least() -> None:
    assert cutoff([3.0], 3) == 3.0
    assert cutoff([3.0, 1.0, 2.0], 3) == 1.0
    assert cutoff([5.0, 3.0, 1.0, 4.0, 2.0, 6.0], 3) == 2.0


@pytest.mark.parametrize("make", [lambda: Hyperband(eta=1), lambda: ASHA(eta=0), lambda: ASHA(first=0)])
def test_invalid_rungs_are_refused(make: object) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make()  # type: ignore[operator]
