from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import os
import random
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion
from wattline.errors import NotFusible
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.step.train_step import Step

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(8) % 3
beta = 0.0
settings = {"nested": [0.0]}
weights = torch.ones(3, dtype=torch.float64)
numbers = itertools.cycle([1.0, 2.0])


def make(loss: Callable[..., Tensor], model: nn.Module | None = None, members: int = 4) -> Step:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3).double() if model is None else copy.deepcopy(model) for _ in range(members)]
    array = fusion.fuse(models)
    return fusion.train_step(array, loss, fusion.SGD(array, lr=0.0), compile="graph")


def penalise(o: Tensor, factor: float) -> Tensor:
    return F.cross_entropy(o, Y) + factor * o.pow(2).mean()


def check_schedule(step: Step, change: Callable[[float], None], versions: int = 2) -> None:
    """Check the losses of steps before each of which *change* is called, and the number of versions."""
    outputs = step.array(X).detach()
    for number in range(6):
        change(0.5 * number)
        expected = torch.stack([penalise(o, 0.5 * number) for o in outputs])
        torch.testing.assert_close(step(X), expected)
    assert step.way.compiled
    assert step._tracer.count == versions


def repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step(X)


def set_beta(value: float) -> None:
    global beta
    beta = value


@pytest.mark.slow
def test_a_global_variable_is_read_in_every_step() -> None:
    check_schedule(make(lambda o: penalise(o, beta)), set_beta)


@pytest.mark.slow
def test_an_item_of_nested_containers_is_read_in_every_step() -> None:
    def change(value: float) -> None:
        settings["nested"][0] = value

    check_schedule(make(lambda o: penalise(o, settings["nested"][0])), change)


@pytest.mark.slow
def test_closures_with_variables_of_one_name_are_distinguished() -> None:
    def make_factor() -> tuple[Callable[[], float], Callable[[float], None]]:
        value = 0.0

        def read() -> float:
            return value

        def write(new: float) -> None:
            nonlocal value
            value = new

        return read, write

    (first, set_first), (second, set_second) = make_factor(), make_factor()

    def change(value: float) -> None:
        set_first(value * 3)
        set_second(-value * 2)

    check_schedule(make(lambda o: penalise(o, first() + second())), change, versions=3)


@pytest.mark.slow
def test_a_closure_is_read_in_every_step() -> None:
    factor = 0.0

    def change(value: float) -> None:
        nonlocal factor
        factor = value

    check_schedule(make(lambda o: penalise(o, factor)), change)


@pytest.mark.slow
def test_an_attribute_of_an_object_is_read_in_every_step() -> None:
    config = types.SimpleNamespace(beta=0.0)
    check_schedule(make(lambda o: penalise(o, config.beta)), lambda value: setattr(config, "beta", value))


@pytest.mark.slow
def test_a_value_of_a_class_is_read_in_every_step_and_not_moved() -> None:
    class Config:
        beta = 0.0

    config = Config()
    check_schedule(make(lambda o: penalise(o, config.beta)), lambda v: setattr(Config, "beta", v), versions=5)
    assert "beta" not in vars(config)


@pytest.mark.slow
def test_a_replaced_object_is_read_in_every_step() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        beta: float

    config = Config(0.0)

    def change(value: float) -> None:
        nonlocal config
        config = Config(value)

    check_schedule(make(lambda o: penalise(o, config.beta)), change)


@pytest.mark.slow
def test_an_argument_that_is_a_number_is_read_in_every_step() -> None:
    step = make(penalise)
    outputs = step.array(X).detach()
    for number in range(6):
        expected = torch.stack([penalise(o, 0.5 * number) for o in outputs])
        torch.testing.assert_close(step(X, 0.5 * number), expected)
    assert step._tracer.count == 2


@pytest.mark.slow
def test_a_setting_of_a_criterion_is_read_in_every_step() -> None:
    criterion = nn.CrossEntropyLoss()
    step = make(criterion)
    outputs = step.array(X).detach()
    for number in range(5):
        criterion.label_smoothing = 0.1 * number
        torch.testing.assert_close(step(X, Y), torch.stack([criterion(o, Y) for o in outputs]))
    assert step.way.compiled


def test_an_attribute_of_the_model_is_read_in_every_step_even_if_set_on_the_array() -> None:
    class Scaled(nn.Linear):
        tau = 1.0

        def __init__(self) -> None:
            super().__init__(6, 3)
            self.tau = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / self.tau

    step = make(lambda o: o.mean(), Scaled().double())
    plain = step.array(X).detach()
    for tau in (1.0, 2.0, 4.0, 5.0):
        step.array.tau = tau
        torch.testing.assert_close(step(X), plain.flatten(1).mean(1) / tau)
    assert step.array.tau == 5.0
    assert step.array.member(0).tau == 5.0


def test_a_captured_tensor_is_an_input() -> None:
    global weights
    step = make(lambda o, y: F.cross_entropy(o, y, weight=weights))
    outputs = step.array(X).detach()
    for number in range(6):
        if number % 2:
            weights = torch.rand(3, dtype=torch.float64)
        else:
            weights[1] += 1.0
        expected = torch.stack([F.cross_entropy(o, Y, weight=weights) for o in outputs])
        torch.testing.assert_close(step(X, Y), expected)
    assert step._tracer.count == 1


def test_a_buffer_of_a_criterion_is_an_input() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    step = make(criterion)
    for _ in range(3):
        step(X, Y)
    criterion.weight[0] = 7.0
    torch.testing.assert_close(step(X, Y)[0], criterion(step.array(X)[0], Y).detach())
    assert step._tracer.count == 1


def test_a_mask_that_is_cached_in_the_first_step_is_compiled() -> None:
    class Masked(nn.Linear):
        mask: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.mask is None:
                self.mask = torch.arange(3, dtype=x.dtype)
            return super().forward(x) * self.mask

    step = make(lambda o: o.mean(), Masked(6, 3).double())
    losses = [step(X) for _ in range(4)]
    assert step.way.compiled
    torch.testing.assert_close(losses[0], losses[3])


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: np.random.beta(1.0, 1.0)])
def test_draws_of_python_and_numpy_in_a_loss_differ_by_step_and_member(draw: Callable[[], float]) -> None:
    step = make(lambda o: o.sum() * 0 + draw())
    with pytest.warns(FusionWarning, match="random numbers from Python or NumPy"):
        losses = torch.stack([step(X) for _ in range(12)])
    assert len(set(losses.flatten().tolist())) == losses.numel()
    assert not step.way.compiled


@pytest.mark.parametrize("compile", [False, "graph"])
def test_members_share_no_draws_of_a_generator_after_the_second_step(compile: bool | str) -> None:
    generator = np.random.default_rng(3)
    array = fusion.fuse([nn.Linear(6, 3).double() for _ in range(4)])
    optimiser = fusion.SGD(array, lr=0.0)
    step = fusion.train_step(array, lambda o: o.sum() * 0 + generator.random(), optimiser, compile=compile)
    with pytest.warns(FusionWarning, match="draws random numbers from generator"):
        repeat(step, 3)
    losses = torch.stack([step(X) for _ in range(3)])
    assert len(set(losses.flatten().tolist())) == losses.numel()


def test_a_model_that_draws_in_its_own_forward_returns() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + random.random() + np.random.rand())

    model = Noisy(6, 3).double()
    array = fusion.fuse([copy.deepcopy(model) for _ in range(4)])
    with pytest.warns(FusionWarning, match="random numbers"):
        out = array(X)
    ratios = out[:, 0, 0] / out[0, 0, 0]
    assert len(set(ratios.tolist())) == 4  # equal weights, different draws


def test_a_counter_in_a_plain_object_counts_every_step() -> None:
    state = types.SimpleNamespace(count=0)

    def loss(o: Tensor) -> Tensor:
        state.count += 1
        return o.sum() * 0 + state.count

    step = make(loss)
    with pytest.warns(FusionWarning, match=r"cannot be compiled: it changes state\.count"):
        losses = [float(step(X)[0]) for _ in range(6)]
    assert losses == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda: next(numbers), "is an iterator"),
        (time.perf_counter, r"calls time\.perf_counter\(\)"),
        (lambda: float(len(open(os.devnull).read())), r"calls open\(\)"),  # noqa: SIM115
        (lambda: print("") or 0.0, r"calls print\(\)"),
        (lambda: float(np.random.default_rng().random()), "default_rng"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_sources_that_cannot_be_compared_are_not_compiled(read: Callable[[], float], reason: str) -> None:
    step = make(lambda o: o.mean() + read())
    with pytest.warns(FusionWarning, match=reason):
        repeat(step, 3)
    assert not step.way.compiled


@pytest.mark.parametrize("compile", [False, "graph"])
def test_effects_of_a_loss_that_runs_for_each_member_are_refused(compile: bool | str) -> None:
    count = 0

    def loss(o: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return o.sum() * random.random() + count

    array = fusion.fuse([nn.Linear(6, 3).double() for _ in range(2)])
    step = fusion.train_step(array, loss, fusion.SGD(array, lr=0.1), compile=compile)
    with (
        pytest.warns(FusionWarning, match="runs separately"),
        pytest.raises(NotFusible, match="changes count, and parts of it run once for each member"),
    ):
        repeat(step, 2)


@pytest.mark.slow
def test_a_value_that_decides_branches_in_every_step_is_compiled_a_few_times_only() -> None:
    state = {"n": 0}

    def loss(o: Tensor) -> Tensor:
        return o.mean() * (2.0 if state["n"] % 3 == 0 else 1.0)

    step = make(loss)
    outputs = step.array(X).detach()

    def train() -> None:
        for number in range(14):
            state["n"] = number
            torch.testing.assert_close(step(X), torch.stack([loss(o) for o in outputs]))

    with pytest.warns(FusionWarning, match=r"state\['n'\] has another value in nearly every step"):
        train()


def test_a_value_that_alternates_has_two_versions() -> None:
    mode = {"name": "mean"}
    step = make(lambda o: getattr(o, mode["name"])())
    outputs = step.array(X).detach()
    for number in range(10):
        mode["name"] = ("mean", "sum")[number % 2]
        torch.testing.assert_close(step(X), torch.stack([getattr(o, mode["name"])() for o in outputs]))
    assert step._tracer.count == 2


def test_a_wrong_trace_is_found_by_comparing_and_not_used() -> None:
    hidden = [1.0]
    read = functools.lru_cache(maxsize=None)(lambda: hidden)  # no guard looks into a cache of C code
    read()
    step = make(lambda o: o.mean() * _peek(read))

    def train() -> None:
        for number in range(40):
            hidden[0] = float(number)
            step(X)

    with pytest.warns(FusionWarning, match="differs from the uncompiled one beyond rounding"):
        train()
    outputs = step.array(X).detach()
    torch.testing.assert_close(step(X), outputs.flatten(1).mean(1) * 39)


_peek: Any = eval("lambda read: read()[0]")


def test_a_loss_of_several_numbers_is_refused_as_by_backward() -> None:
    step = make(nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(RuntimeError, match=r"shape \(8,\), expected one number"):
        step(X, Y)


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    class Centres(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centre = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, o: Tensor) -> Tensor:
            return (o - self.centre).pow(2).mean()

    with pytest.raises(NotFusible, match="parameters of its own"):
        make(Centres())


def test_a_penalty_on_the_original_model_is_refused() -> None:
    model = nn.Linear(6, 3).double()
    array = fusion.fuse([model, nn.Linear(6, 3).double()])
    step = fusion.train_step(
        array, lambda o: o.mean() + model.weight.pow(2).sum(), fusion.SGD(array, lr=0.1), compile=False
    )
    with pytest.raises(NotFusible, match="not the array's"):
        step(X)


def test_differentiating_the_mean_of_the_losses_is_announced() -> None:
    array = fusion.fuse([nn.Linear(6, 3).double() for _ in range(4)])
    with pytest.warns(FusionWarning, match=r"losses\.sum\(\)"):
        array.loss(F.cross_entropy, array(X), Y).mean().backward()
    array.loss(F.cross_entropy, array(X), Y).sum().backward()


def test_clipping_all_members_by_one_norm_is_announced() -> None:
    array = fusion.fuse([nn.Linear(6, 3).double() for _ in range(4)])
    array.loss(F.cross_entropy, array(X), Y).sum().backward()
    with pytest.warns(FusionWarning, match=r"wattline\.fusion\.clip_grad_norm_"):
        nn.utils.clip_grad_norm_(array.parameters(), 1.0)


def test_a_batch_that_looks_stacked_is_announced() -> None:
    array = fusion.fuse([nn.Linear(6, 3).double() for _ in range(4)])
    step = fusion.train_step(array, F.mse_loss, fusion.SGD(array, lr=0.1), compile=False)
    with pytest.warns(FusionWarning, match="members=True"):
        step(torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(4, 5, 3, dtype=torch.float64))


@pytest.mark.slow
def test_arguments_of_the_model_may_be_passed_by_keyword() -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor, *, scale: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
            out = super().forward(x) * scale
            return {"logits": out, "loss": None if labels is None else F.cross_entropy(out, labels)}

    scale = torch.tensor(2.0, dtype=torch.float64)
    step = make(lambda out: out["loss"], Pair(6, 3).double())
    expected = F.cross_entropy(step.array.member(0)(X, scale=scale)["logits"], Y).detach()
    for _ in range(4):
        torch.testing.assert_close(step(x=X, scale=scale, labels=Y)[0], expected)
        torch.testing.assert_close(step(X, scale=scale, labels=Y)[0], expected)
    assert step.way.compiled


def test_a_torch_optimiser_is_refused_by_name() -> None:
    array = fusion.fuse([nn.Linear(6, 3) for _ in range(2)])
    with pytest.raises(Exception, match=r"torch\.optim\.adam\.Adam.*") as error:
        fusion.train_step(array, F.cross_entropy, torch.optim.Adam(array.parameters()))  # type: ignore[arg-type]
    assert "wattline.fusion.Adam(array" in error.value.hint  # type: ignore[attr-defined]


@pytest.mark.parametrize("compile", [False, "graph"])
def test_a_tensor_that_the_loss_writes_to_is_written_once_in_each_step(compile: bool | str) -> None:
    count = torch.zeros(())

    def loss(out: Tensor, target: Tensor) -> Tensor:
        count.add_(1)
        return F.cross_entropy(out, target) * (1 + 0 * count)

    array = fusion.fuse([nn.Linear(4, 3) for _ in range(3)])
    step = fusion.train_step(array, loss, fusion.SGD(array, lr=0.1), compile=compile)
    for _ in range(12):  # some of which are compared with uncompiled ones
        step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert step._tracer.count == 1 or compile is False  # replayed only if it is fast on this machine
    assert count == 12
