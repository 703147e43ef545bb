"""`tune` as a whole: the value of a trial does not depend on the trials trained with it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError, NotFound, NotFusible  # noqa: E402

LR = fusion.Float(1e-3, 1e-1, log=True)
DECAY = fusion.Float(0, 0.1)
SMALL = {"lr": LR, "weight_decay": DECAY}
SPACE = {**SMALL, "hidden": fusion.Choice([3, 4]), "batch_size": fusion.Choice([16, 24])}
tune = partial(fusion.tune, compile=False)


def same(one: Any, other: Any) -> None:
    assert [t.config for t in one.trials] == [t.config for t in other.trials]
    assert [t.state for t in one.trials] == [t.state for t in other.trials]
    for mine, yours in zip(one.trials, other.trials, strict=True):
        assert mine.history == pytest.approx(yours.history, abs=1e-10, rel=0)
    assert one.best.number == other.best.number
    for name, tensor in one.best.state_dict.items():
        torch.testing.assert_close(tensor, other.best.state_dict[name], atol=1e-9, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 8])
def test_random_search_finds_the_same_at_any_width(problem: Any, width: int) -> None:
    alone = tune(problem(), SPACE, trials=10, epochs=3, width=1)
    same(alone, tune(problem(), SPACE, trials=10, epochs=3, width=width))
    assert all(trial.state == "complete" and trial.epochs == 3 for trial in alone.trials)


@pytest.mark.slow
def test_hyperband_finds_the_same_at_any_width_although_members_pause_and_resume(problem: Any) -> None:
    alone = tune(problem(), SMALL, sampler="hyperband", epochs=9, width=1)
    assert len(alone.trials) == 9 + 5 + 3
    for width in (4, 8):
        same(alone, tune(problem(), SMALL, sampler="hyperband", epochs=9, width=width))


@pytest.mark.slow
def test_a_trial_equals_ordinary_training(problem: Any) -> None:
    found = tune(problem(), SMALL, trials=5, epochs=2, width=4, seed=3)
    for trial in found.trials:
        objective = problem()({})
        torch.manual_seed(3 + trial.number)
        model = objective.build({})
        optimiser = torch.optim.Adam(model.parameters(), **trial.config)
        for epoch in range(2):
            torch.manual_seed(3 + epoch)
            for points, labels in objective.batches(epoch):
                optimiser.zero_grad()
                F.cross_entropy(model(points), labels).backward()
                optimiser.step()
        value = objective.evaluate(fusion.fuse([model])).item()
        assert trial.value == pytest.approx(value, abs=1e-10)


@pytest.mark.slow
def test_a_shuffling_loader_gives_every_trial_the_same_order(problem: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(24, 2), torch.randint(0, 2, (24,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    make = problem(batches=lambda epoch: loader)
    found = [tune(make, SMALL, trials=6, epochs=4, width=w, sampler=fusion.Hyperband(2)) for w in (1, 4)]
    same(*found)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result_and_leaves_the_callers_generator_unchanged(problem: Any) -> None:
    torch.manual_seed(1)
    first = tune(problem(), SPACE, sampler="asha", trials=6, epochs=3, seed=5)
    here = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(here, torch.rand(1))
    torch.manual_seed(2)
    again = tune(problem(), SPACE, sampler="asha", trials=6, epochs=3, seed=5)
    other = tune(problem(), SPACE, sampler="asha", trials=6, epochs=3, seed=6)
    assert first == again
    assert first.trials[0].config != other.trials[0].config


def in_top_third(value: float, seen: list[float]) -> bool:
    better = sum(other < value for other in seen)
    return better < max(1, math.floor(len(seen) / 3))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 8])
def test_asha_stops_exactly_the_trials_below_the_top_third(problem: Any, width: int) -> None:
    seen: dict[int, list[float]] = {1: [], 3: []}
    stopped: dict[int, int] = {}

    def watch(progress: Any) -> None:
        rows = list(zip(progress.numbers, progress.epochs, progress.values, strict=True))
        for _, epochs, value in rows:
            seen.get(epochs, []).append(value)
        at_rungs = [row for row in rows if row[1] in seen]
        stopped.update({n: at for n, at, value in at_rungs if not in_top_third(value, seen[at])})

    found = tune(problem(), SMALL, sampler="asha", trials=20, epochs=9, width=width, report=watch)
    assert {t.number: t.epochs for t in found.trials if t.state == "pruned"} == stopped
    assert all(t.epochs == 9 for t in found.trials if t.state == "complete")
    assert len(stopped) > 8
    whole = tune(problem(), SMALL, trials=20, epochs=9, width=20)
    for trial in found.trials:
        assert trial.history == pytest.approx(whole.trials[trial.number].history[: trial.epochs], abs=1e-10)


@pytest.mark.slow
def test_the_array_stays_full_while_trials_wait(problem: Any) -> None:
    seen: list[Any] = []
    tune(problem(), SMALL, sampler="asha", trials=30, epochs=9, width=4, report=seen.append)
    assert seen[-1].ended == 30
    assert all(progress.width == 4 for progress in seen if progress.waiting)
    assert len({progress.epochs for progress in seen}) > 3
    assert any(len(set(progress.epochs)) > 1 for progress in seen)


def test_trials_are_partitioned_by_infusible_hyper_parameters(problem: Any) -> None:
    seen: list[Any] = []
    made: list[dict[str, Any]] = []

    def objective(shared: Any) -> Any:
        made.append(shared)
        return problem()(shared)

    found = tune(objective, SPACE, trials=16, epochs=1, width=3, report=seen.append)
    parts = {(t.config["hidden"], t.config["batch_size"]) for t in found.trials}
    assert sorted((m["hidden"], m["batch_size"]) for m in made) == sorted(parts)
    for progress in seen:
        assert set(progress.shared) == {"hidden", "batch_size"}
        for number in progress.numbers:
            config = found.trials[number].config
            assert {name: config[name] for name in progress.shared} == progress.shared
    sizes = [sum(t.config.items() >= p.shared.items() for t in found.trials) for p in seen]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(progress.width for progress in seen) == 16


def test_hyper_parameters_that_only_build_uses_can_be_fused(problem: Any) -> None:
    def build(config: dict[str, Any]) -> nn.Module:
        model = nn.Linear(2, 2)
        nn.init.normal_(model.weight, std=config["scale"])
        return model

    seen: list[Any] = []
    space = {**SMALL, "scale": fusion.Float(0.1, 2)}
    make = problem(build=build, fusible=("scale",))
    tune(make, space, trials=4, epochs=1, width=4, report=seen.append)
    assert [progress.width for progress in seen] == [4]
    seen.clear()
    tune(problem(build=build), space, trials=4, epochs=1, width=4, report=seen.append)
    assert [progress.width for progress in seen] == [1] * 4


@pytest.mark.slow
def test_a_member_that_diverges_fails_alone(problem: Any) -> None:
    class Brittle(nn.Module):
        def __init__(self, bad: float) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("bad", torch.tensor(bad))

        def forward(self, points: Any) -> Any:
            return self.linear(points) * self.bad

    def build(broken: set[int], config: dict[str, Any]) -> nn.Module:
        return Brittle(math.inf if round(config["lr"] * 1e6) in broken else 1.0)

    healthy = tune(problem(build=partial(build, set())), SMALL, trials=7, epochs=3, width=3)
    broken = {round(healthy.trials[n].config["lr"] * 1e6) for n in (1, 4)}
    found = tune(problem(build=partial(build, broken)), SMALL, trials=7, epochs=3, width=3)
    assert [t.state for t in found.trials].count("failed") == 2
    for sick, well in zip(found.trials, healthy.trials, strict=True):
        if sick.number in (1, 4):
            assert sick.state == "failed"
            assert math.isnan(sick.value)
            assert sick.epochs == 1
            assert "nan" in sick.why
        else:
            assert sick.history == pytest.approx(well.history, abs=1e-10)


@pytest.mark.slow
def test_a_model_that_cannot_be_built_fails_alone(problem: Any) -> None:
    def build(config: dict[str, Any]) -> nn.Module:
        if config["weight_decay"] > 0.05:
            raise ValueError("too much of it")
        return nn.Linear(2, 2)

    found = tune(problem(build=build), SMALL, sampler="hyperband", trials=9, epochs=9)
    failed = [t for t in found.trials if t.config["weight_decay"] > 0.05]
    assert 0 < len(failed) < 9
    assert all(
        t.state == "failed" and t.why == "ValueError: too much of it" and t.epochs == 0 for t in failed
    )
    assert found.best.epochs == 9
    with pytest.raises(NotFound, match="none of 2 trials") as error:
        _ = tune(problem(build=lambda config: 1 / 0), SMALL, trials=2, epochs=1).best
    assert "ZeroDivisionError" in error.value.hint


@pytest.mark.slow
def test_batches_that_are_one_iterable_are_shared_by_all_ages(problem: Any) -> None:
    data = [(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(2)]
    listed = tune(problem(batches=data), SMALL, sampler="hyperband", epochs=9, width=5)
    called = tune(problem(batches=lambda epoch: data), SMALL, sampler="hyperband", epochs=9, width=1)
    same(listed, called)


def test_maximize_and_a_table_with_the_best_first(problem: Any) -> None:
    found = tune(
        problem(evaluate=lambda array: [p.item() for p in array.stacked["0.weight"][:, 0, 0]]),
        {**SMALL, "extra": "fixed"},
        trials=5,
        epochs=1,
        direction="maximize",
    )
    assert found.best.value == max(trial.value for trial in found.trials)
    lines = str(found).splitlines()
    assert lines[0].split() == ["trial", "lr", "weight_decay", "extra", "epochs", "value", "state"]
    assert lines[1].split()[0] == str(found.best.number)
    assert len(lines) == 6
    assert found.table(rows=2).endswith("and 3 more")


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        (lambda epoch: [(torch.zeros(4, 2), torch.zeros(4).long())] * (1 + epoch), "number of batches"),
        (lambda epoch: [(torch.zeros(4 + epoch, 2), torch.zeros(4 + epoch).long())], "differ in shape"),
        (lambda epoch: [], "no batches"),
    ],
)
def test_batches_that_cannot_be_stacked_are_refused(problem: Any, epochs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(problem(batches=epochs), SMALL, sampler="asha", trials=8, epochs=3, width=2)


def test_an_error_of_the_loss_is_raised(problem: Any) -> None:
    def loss(output: Any, target: Any) -> Any:
        raise RuntimeError("no loss today")

    with pytest.raises(RuntimeError, match="no loss today"):
        tune(problem(loss=loss), SMALL, trials=2, epochs=1)


def test_fusible_hyper_parameters_that_change_shapes_are_refused(problem: Any) -> None:
    space = {**SMALL, "hidden": fusion.Choice([3, 4])}
    with pytest.raises(NotFusible, match="shape") as error:
        tune(problem(fusible=("hidden",)), space, trials=8, epochs=1)
    assert "fusible" in error.value.hint


def test_reading_a_per_member_hyper_parameter_from_the_shared_config_is_refused(problem: Any) -> None:
    def objective(shared: Any) -> Any:
        _ = shared["lr"]
        return problem()(shared)

    with pytest.raises(ConfigError, match="lr was read from the shared config"):
        tune(objective, SMALL, trials=2, epochs=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"space": {}}, "the space is empty"),
        ({"space": {"lr": 0.1, "weight_decay": 0.0}}, "the space is empty"),
        ({"space": {**SMALL, "hidden": [3, 4]}}, r"hidden is \[3, 4\]"),
        ({"space": {"lr": LR}}, "hyper names weight_decay"),
        ({"width": 0}, "width is 0, expected"),
        ({"trials": 0}, "trials is 0, expected"),
        ({"epochs": 0}, "epochs is 0, expected"),
        ({"trials": None}, "needs a number of trials"),
        ({"sampler": "rondom"}, "sampler is 'rondom', expected one of random"),
        ({"sampler": 7}, "sampler is 7, expected"),
        ({"direction": "up"}, "direction is 'up', expected"),
    ],
)
def test_invalid_arguments_of_tune_are_refused_by_name(
    problem: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(problem(), **{"space": SMALL, "trials": 2, "epochs": 1, **given})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fusion.Float(2, 1), "low=2 above high=1"),
        (lambda: fusion.Float(0, 1, log=True), "low=0, expected low > 0"),
        (lambda: fusion.Float(0, math.inf), "not finite"),
        (lambda: fusion.Int(1, 2.5), "2.5, expected a whole number"),
        (lambda: fusion.Choice([]), "no values"),
    ],
)
def test_invalid_domains_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hyper": ("momentum",)}, "Adam has no per-member momentum"),
        ({"hyper": "lr"}, "expected a tuple of names"),
        ({"fusible": ("sede",)}, "fusible names sede"),
        ({"evaluate": lambda array: [0.0]}, "expected one number for each of 2"),
    ],
)
def test_invalid_objectives_are_refused(problem: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(problem(**given), SMALL, trials=2, epochs=1)


def test_drawn_values_lie_in_their_domain() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    rates = [fusion.Float(1e-4, 1e-1, log=True).draw(rng) for _ in range(300)]
    assert 1e-4 <= min(rates) < 2e-4
    assert 5e-2 < max(rates) <= 1e-1
    assert 0.35 < sum(rate < 10**-2.5 for rate in rates) / 300 < 0.65
    assert {fusion.Int(1, 4).draw(rng) for _ in range(100)} == {1, 2, 3, 4}
    assert {fusion.Int(1, 4, log=True).draw(rng) for _ in range(100)} == {1, 2, 3, 4}
    assert {fusion.Choice("ab").draw(rng) for _ in range(20)} == {"a", "b"}


@pytest.mark.slow
def test_compiled_steps_find_the_same(problem: Any) -> None:
    for sampler in ("random", "hyperband"):
        plain = tune(problem(), SMALL, sampler=sampler, trials=9, epochs=9, width=4)
        same(plain, fusion.tune(problem(), SMALL, sampler=sampler, trials=9, epochs=9, width=4))
