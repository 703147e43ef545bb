"""Brackets and rungs, held against the closed form and against the rule written down plainly."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("torch")

from wattline.errors import ConfigError
from wattline.fusion.search.halving import ASHA, Hyperband, brackets, cutoff
from wattline.fusion.search.space import Float
from wattline.fusion.search.strategy import News, Search, Task, Verdict

SPACE = {"lr": Float(0.1, 1)}


def task(trials: int | None, epochs: int, sign: int = 1) -> Task:
    return Task(SPACE, trials, epochs, seed=0, sign=sign)


def run_down(search: Search, epochs: int, worth: dict[int, float]) -> dict[int, int]:
    """How many epochs each trial gets when all are trained side by side."""
    trained = {asked.number: 0 for asked in search.ask(1)}
    going = set(trained)
    while going:
        news = []
        for number in sorted(going):
            trained[number] += 1
            news.append(News(number, trained[number], worth.get(number, math.nan)))
        verdicts = search.judge(news)
        for item in news:
            over = item.failed or item.epochs >= epochs
            if over or verdicts.get(item.number, Verdict.GO) is not Verdict.GO:
                going.discard(item.number)
        going |= {n for n, v in verdicts.items() if v is Verdict.GO and trained[n] < epochs}
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
    worth = {number: random.Random(number).random() for number in range(49)}
    trained = run_down(Hyperband()(task(None, 27)), 27, worth)
    assert len(trained) == 49
    first = [trained[number] for number in range(27)]
    assert sorted(first, reverse=True) == [27] + [9] * 2 + [3] * 6 + [1] * 18
    assert trained[min(range(27), key=worth.__getitem__)] == 27
    assert [trained[number] for number in range(45, 49)] == [27] * 4


def test_hyperband_repeats_its_brackets_and_cuts_the_last() -> None:
    trained = run_down(Hyperband()(task(60, 27)), 27, {number: float(number) for number in range(60)})
    assert len(trained) == 60
    assert sorted((trained[n] for n in range(49, 60)), reverse=True) == [27, 3, 3] + [1] * 8


def test_more_can_be_better() -> None:
    trained = run_down(Hyperband()(task(27, 27, sign=-1)), 27, {n: float(n) for n in range(27)})
    assert trained[26] == 27
    assert trained[0] == 1


def test_a_bracket_does_not_wait_for_who_has_failed() -> None:
    worth = {number: float(number) for number in range(27) if number % 2}
    trained = run_down(Hyperband()(task(27, 27)), 27, worth)
    assert trained[1] == 27
    assert all(trained[number] == 1 for number in range(0, 27, 2))


def test_the_top_third_is_one_at_least() -> None:
    assert cutoff([3.0], 3) == 3.0
    assert cutoff([3.0, 1.0, 2.0], 3) == 1.0
    assert cutoff([5.0, 3.0, 1.0, 4.0, 2.0, 6.0], 3) == 2.0


@pytest.mark.parametrize("make", [lambda: Hyperband(eta=1), lambda: ASHA(eta=0), lambda: ASHA(first=0)])
def test_rungs_that_cannot_be_are_refused(make: object) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make()  # type: ignore[operator]
