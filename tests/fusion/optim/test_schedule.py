"""Schedules, compared with ordinary schedulers of ordinary optimisers."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler as lrs  # noqa: E402

from support.optimiser_pairs import NAMES, ordinary_class  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402
from wattline.fusion.optim.schedule import Schedule  # noqa: E402

B = 3
RATES = [0.1, 0.02, 0.5]
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (lrs.StepLR, {"step_size": [2, 3, 5], "gamma": 0.5}),
    (lrs.MultiStepLR, {"milestones": [[1, 4], [2], [3, 5, 6]], "gamma": [0.5, 0.1, 0.9]}),
    (lrs.ConstantLR, {"factor": [0.5, 0.1, 0.2], "total_iters": 4}),
    (lrs.LinearLR, {"start_factor": [0.5, 0.1, 0.2], "total_iters": [3, 4, 5]}),
    (lrs.ExponentialLR, {"gamma": torch.tensor([0.9, 0.8, 0.5], dtype=torch.float64)}),
    (lrs.PolynomialLR, {"total_iters": [3, 7, 9], "power": 2.0}),
    (lrs.CosineAnnealingLR, {"T_max": [4, 8, 12], "eta_min": [0.0, 0.001, 0.1]}),
    (lrs.CosineAnnealingWarmRestarts, {"T_0": [2, 3, 4], "T_mult": 2}),
    (lrs.CyclicLR, {"base_lr": [0.01, 0.02, 0.03], "max_lr": 0.1, "step_size_up": 3}),
    (lrs.OneCycleLR, {"max_lr": [0.1, 0.2, 0.3], "total_steps": 12, "anneal_strategy": "linear"}),
    (lrs.LambdaLR, {"lr_lambda": [lambda k: 0.9**k, lambda k: 1 / (k + 1), lambda k: math.cos(k)]}),
    (lrs.MultiplicativeLR, {"lr_lambda": lambda k: 0.9}),
]


def own(given: dict[str, Any], member: int) -> dict[str, Any]:
    row = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    return {k: v[member] if isinstance(v, list) else v for k, v in row.items()}


def pairs(name: str) -> tuple[Any, list[Any]]:
    extra = {"momentum": 0.9} if name == "SGD" else {}
    first, second = nn.Parameter(torch.zeros(B, 2, 3)), nn.Parameter(torch.zeros(B, 1, 1))
    array = getattr(optim, name)([{"params": [first]}, {"params": [second], "lr": 0.3}], lr=RATES, **extra)
    singles = [
        ordinary_class(name)(
            [
                {"params": [nn.Parameter(torch.zeros(2, 3))]},
                {"params": [nn.Parameter(torch.zeros(1, 1))], "lr": 0.3},
            ],
            lr=rate,
            **extra,
        )
        for rate in RATES
    ]
    return array, singles


def agree(array: Any, singles: list[Any]) -> None:
    for place, group in enumerate(array.param_groups):
        for member, single in enumerate(singles):
            alone = single.param_groups[place]
            assert group["lr"][member].item() == pytest.approx(alone["lr"], rel=1e-12, abs=1e-15)
            if "momentum" in group:
                assert group["momentum"][member].item() == pytest.approx(alone["momentum"], rel=1e-12)
            if "betas" in group:
                assert [row[member].item() for row in group["betas"]] == pytest.approx(
                    alone["betas"], rel=1e-12
                )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "given"), KINDS)
def test_every_member_has_the_rates_of_its_own_scheduler(kind: Any, given: dict[str, Any], name: str) -> None:
    array, singles = pairs(name)
    if kind in (lrs.CyclicLR, lrs.OneCycleLR) and not {"momentum", "betas"} & set(array.keys):
        given = {**given, "cycle_momentum": False}
    schedule = Schedule(array, kind, **given)
    schedulers = [kind(single, **own(given, member)) for member, single in enumerate(singles)]
    agree(array, singles)
    for _ in range(10):
        for single in singles:
            single.step()
        schedule.step()
        for scheduler in schedulers:
            scheduler.step()
        agree(array, singles)
    for place, rates in enumerate(schedule.get_last_lr()):
        assert rates.tolist() == pytest.approx([scheduler.get_last_lr()[place] for scheduler in schedulers])


def test_plateaus_are_those_of_each_members_metric() -> None:
    array, singles = pairs("Adam")
    given = {"patience": [0, 1, 2], "factor": 0.5}
    schedule = Schedule(array, lrs.ReduceLROnPlateau, **given)
    schedulers = [lrs.ReduceLROnPlateau(single, **own(given, i)) for i, single in enumerate(singles)]
    for metrics in ([1, 2, 3], [2, 2, 2], [1.5, 3, 1], [0.5, 4, 5], [0.6, 5, 6], [1, 1, 6]):
        schedule.step(torch.tensor(metrics))
        for scheduler, metric in zip(schedulers, metrics, strict=True):
            scheduler.step(metric)
        agree(array, singles)
    with pytest.raises(ConfigError, match="metrics has 2 values, expected 3"):
        schedule.step([1.0, 2.0])


def sequence(one: Any, member: int) -> Any:
    first = lrs.LinearLR(one, start_factor=0.1, total_iters=2 + member)
    return lrs.SequentialLR(one, [first, lrs.ExponentialLR(one, 0.9)], milestones=[2 + member])


def chain(one: Any, member: int) -> Any:
    return lrs.ChainedScheduler(
        [lrs.ExponentialLR(one, 0.9), lrs.ConstantLR(one, 0.5, total_iters=member + 1)]
    )


@pytest.mark.parametrize("make", [sequence, chain])
def test_schedulers_may_be_made_by_a_function(make: Any) -> None:
    array, singles = pairs("SGD")
    schedule = Schedule(array, make)
    schedulers = [make(single, member) for member, single in enumerate(singles)]
    for _ in range(8):
        schedule.step()
        for single, scheduler in zip(singles, schedulers, strict=True):
            single.step()
            scheduler.step()
        agree(array, singles)
    assert isinstance(schedule.member(1), type(schedulers[1]))


def test_a_rate_set_by_hand_is_scheduled_on() -> None:
    array, _ = pairs("SGD")
    schedule = Schedule(array, lrs.ExponentialLR, gamma=0.5)
    array.param_groups[0]["lr"] = [1.0, 2.0, 4.0]
    schedule.step()
    assert array.param_groups[0]["lr"].tolist() == [0.5, 1.0, 2.0]


def widened(array: Any, width: int) -> dict[Any, Any]:
    old = [param for group in array.param_groups for param in group["params"]]
    return {param: nn.Parameter(torch.zeros(width, *param.shape[1:])) for param in old}


def test_members_leave_and_join() -> None:
    array, singles = pairs("Adam")
    schedule = Schedule(array, lrs.StepLR, step_size=[2, 3, 4], gamma=0.5)
    schedulers = [lrs.StepLR(single, k, 0.5) for single, k in zip(singles, [2, 3, 4], strict=True)]
    schedule.step()
    array.keep([2, 1], widened(array, 2))
    assert len(schedule) == 2
    with pytest.raises(ConfigError, match="step_size differs between members"):
        array.extend(1, widened(array, 3), lr=0.8)
    array.extend(1, widened(array, 3), lr=0.8, step_size=[1])
    assert len(schedule) == 3
    for single, scheduler in zip(singles, schedulers, strict=True):
        single.step()
        scheduler.step()
    for _ in range(3):
        schedule.step()
        for scheduler in schedulers:
            scheduler.step()
    rates = array.param_groups[0]["lr"].tolist()
    assert rates == [singles[2].param_groups[0]["lr"], singles[1].param_groups[0]["lr"], 0.1]


def test_a_saved_schedule_continues() -> None:
    array, _ = pairs("SGD")
    schedule = Schedule(array, lrs.OneCycleLR, max_lr=[0.1, 0.2, 0.3], total_steps=[10, 12, 14])
    for _ in range(3):
        schedule.step()
    saved, state = schedule.state_dict(), array.state_dict()
    other, _ = pairs("SGD")
    again = Schedule(other, lrs.OneCycleLR, max_lr=1.0, total_steps=20)
    again.load_state_dict(saved)
    other.load_state_dict(state)
    for _ in range(4):
        schedule.step()
        again.step()
    for mine, theirs in zip(array.param_groups, other.param_groups, strict=True):
        assert mine["lr"].tolist() == theirs["lr"].tolist()
        assert mine["momentum"].tolist() == theirs["momentum"].tolist()
    with pytest.raises(ConfigError, match="the saved state has 1 members, this schedule has 3"):
        again.load_state_dict({"members": saved["members"][:1]})


def test_a_list_that_is_not_one_per_member_is_refused_with_a_hint() -> None:
    array, _ = pairs("SGD")
    with pytest.raises(ConfigError, match="milestones has 2 values, expected one or 3") as caught:
        Schedule(array, lrs.MultiStepLR, milestones=[10, 20])
    assert "once per member" in caught.value.hint


def test_an_ordinary_optimiser_is_refused() -> None:
    optimiser = torch.optim.AdamW([nn.Parameter(torch.zeros(2))])
    with pytest.raises(ConfigError, match=r"got torch\.optim\.adamw\.AdamW, expected an opt") as caught:
        Schedule(optimiser, lrs.StepLR, step_size=3)  # type: ignore[arg-type]
    assert caught.value.hint == "create it for the array: fusion.AdamW(array, lr=...)"


def test_a_scheduler_object_or_none_is_refused() -> None:
    array, singles = pairs("SGD")
    with pytest.raises(ConfigError, match="expected a class of torch") as caught:
        Schedule(array, lrs.StepLR(singles[0], step_size=3))  # type: ignore[arg-type]
    assert "Schedule(optimiser, StepLR, step_size=10)" in caught.value.hint
    with pytest.raises(ConfigError, match="the scheduler of member 0 is None"):
        Schedule(array, lambda one, member: None)


def test_a_plateau_needs_metrics_of_all_members() -> None:
    schedule = Schedule(pairs("Adam")[0], lrs.ReduceLROnPlateau)
    with pytest.raises(ConfigError, match="needs a metric of every member, got none") as caught:
        schedule.step()
    assert "schedule.step(losses)" in caught.value.hint
    with pytest.raises(ConfigError, match=r"metrics is 0\.5, expected 3 values"):
        schedule.step(0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected 3 values"):
        schedule.step(torch.tensor(0.5))


def test_a_state_of_something_else_is_refused() -> None:
    array, singles = pairs("SGD")
    schedule = Schedule(array, lrs.StepLR, step_size=3)
    with pytest.raises(ConfigError, match=r"expected a state_dict\(\) of fusion\.Schedule") as caught:
        schedule.load_state_dict(lrs.StepLR(singles[0], step_size=3).state_dict())
    assert "schedule.member(i).load_state_dict(state)" in caught.value.hint
    saved = schedule.state_dict()
    narrow = optim.SGD([nn.Parameter(torch.zeros(B, 2))])
    with pytest.raises(ConfigError, match="the saved state has 2 parameter groups, the optimiser has 1"):
        Schedule(narrow, lrs.StepLR, step_size=3).load_state_dict(saved)
