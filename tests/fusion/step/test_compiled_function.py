"""`fusion.compile`: training steps of the user, compared with runs as written and with single models."""

from __future__ import annotations

import copy
import dataclasses
import io
import random
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion
from wattline.errors import ConfigError

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
LRS = [1e-3, 1e-2, 3e-2]
GRAPH = fusion.compile(backend="graph")


def build_mlp(seed: int, inputs: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def fuse_mlps(**sizes: int) -> fusion.FusedArray:
    return fusion.fuse([build_mlp(seed, **sizes) for seed in range(len(LRS))])


def draw_batches(count: int, seed: int = 7) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    return [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(count)]


def run_as_written(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def states_of(*arrays: fusion.FusedArray) -> list[Tensor]:
    return [t.detach().clone() for array in arrays for t in array.state_dict().values()]


def assert_equal_runs(program: Callable[[Wrap], tuple[Any, list[Tensor]]], wrap: Wrap = GRAPH) -> Any:
    """Run *program* as written and compiled; both must return equal tensors. Return the compiled function."""
    _, expected = program(run_as_written)
    fn, actual = program(wrap)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)
    assert fn.is_compiled
    assert fn._tracer.count >= 1
    return fn


def train_classifier(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.Adam(array, lr=LRS)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimiser.zero_grad()
        losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        optimiser.step()
        return losses

    fn = wrap(step)
    losses = [fn(x, y).detach() for x, y in draw_batches(6)]
    return fn, [*losses, *states_of(array), *(p.grad for p in array.parameters() if p.grad is not None)]


def train_gan(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    def generator(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.ConvTranspose2d(4, 6, 4, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 1, 4, 2, 1),
        )

    def critic(seed: int) -> nn.Module:
        torch.manual_seed(100 + seed)
        return nn.Sequential(nn.Conv2d(1, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 4), nn.Flatten(0))

    g_array = fusion.fuse([generator(s) for s in range(2)])
    d_array = fusion.fuse([critic(s) for s in range(2)])
    g_opt = fusion.Adam(g_array, lr=[1e-3, 2e-3], betas=(0.5, 0.999))
    d_opt = fusion.Adam(d_array, lr=[2e-3, 1e-3], betas=(0.5, 0.999))

    def loss(logits: Tensor, real: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))

    def step(images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        d_opt.zero_grad()
        fake = g_array(noise)
        d_loss = d_array.each(lambda out: loss(out, 1.0), d_array(images))
        d_loss = d_loss + d_array.each(lambda out: loss(out, 0.0), d_array(fake.detach(), members=True))
        d_loss.sum().backward()
        d_opt.step()
        g_opt.zero_grad()
        g_loss = d_array.each(lambda out: loss(out, 1.0), d_array(fake, members=True))
        g_loss.sum().backward()
        g_opt.step()
        return d_loss, g_loss

    fn = wrap(step)
    torch.manual_seed(3)
    results = []
    for _ in range(4):
        results += fn(torch.randn(5, 1, 8, 8), torch.randn(5, 4, 1, 1))
    return fn, [*(t.detach() for t in results), *states_of(g_array, d_array)]


def accumulate_gradients(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.SGD(array, lr=LRS, momentum=0.9)

    def step(x: Tensor, y: Tensor, *, update: bool) -> Tensor:
        losses = array.loss(F.cross_entropy, array(x), y)
        (losses / 2).sum().backward()
        if update:
            optimiser.step()
            optimiser.zero_grad()
        return losses

    fn = wrap(step)
    losses = [fn(x, y, update=at % 2 == 1).detach() for at, (x, y) in enumerate(draw_batches(10))]
    fn(*draw_batches(1)[0], update=False)
    return fn, [*losses, *states_of(array), *(p.grad for p in array.parameters() if p.grad is not None)]


def train_with_two_optimisers(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    sgd = fusion.SGD([p for p in array.parameters() if p.ndim == 3], lr=LRS)
    adamw = fusion.AdamW([p for p in array.parameters() if p.ndim != 3], lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        for optimiser in (sgd, adamw):
            optimiser.step()
            optimiser.zero_grad()
        return losses

    fn = wrap(step)
    return fn, [*(fn(x, y).detach() for x, y in draw_batches(5)), *states_of(array)]


@dataclasses.dataclass
class Report:
    loss: Tensor
    norms: Tensor
    name: str


def train_with_dicts(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.Adam(array, lr=LRS)

    def step(batch: dict[str, Tensor], *, scale: float = 1.0) -> Report:
        losses = array.loss(F.cross_entropy, array(batch["x"]), batch["y"])
        (losses * scale).sum().backward()
        norms = fusion.clip_grad_norm_(array.parameters(), [0.5, 1.0, 2.0])
        optimiser.step()
        optimiser.zero_grad()
        return Report(losses, norms, name="training")

    fn = wrap(step)
    reports = [fn({"x": x, "y": y}, scale=2.0) for x, y in draw_batches(4)]
    assert all(report.name == "training" for report in reports)
    return fn, [*(t.detach() for r in reports for t in (r.loss, r.norms)), *states_of(array)]


def average_weights(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.Adam(array, lr=LRS)
    averages = [p.detach().clone() for p in array.parameters()]

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            for average, param in zip(averages, array.parameters(), strict=True):
                average.mul_(0.9).add_(param, alpha=0.1)
        return losses

    fn = wrap(step)
    return fn, [*(fn(x, y).detach() for x, y in draw_batches(6)), *states_of(array), *averages]


def scale_losses(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.SGD(array, lr=LRS)
    scaler = fusion.Scaler(len(array), init_scale=[2.0**10, 2.0**140, 4.0], growth_interval=2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = array.loss(F.cross_entropy, array(x), y)
        scaler.scale(losses).sum().backward()
        scaler.unscale_(optimiser)
        fusion.clip_grad_norm_(optimiser.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        return losses

    fn = wrap(step)
    losses = [fn(x, y).detach() for x, y in draw_batches(6)]
    return fn, [*losses, *states_of(array), scaler.scales, scaler.streaks]


def evaluate(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps().eval()

    @torch.no_grad()
    def accuracy(x: Tensor, y: Tensor) -> Tensor:
        return (array(x).argmax(-1) == y).double().mean(-1)

    fn = wrap(accuracy)
    return fn, [fn(x, y) for x, y in draw_batches(4)]


def train_under_autocast(wrap: Wrap) -> tuple[Any, list[Tensor]]:
    array = fuse_mlps()
    optimiser = fusion.SGD(array, lr=LRS)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        optimiser.step()
        return losses

    fn = wrap(step)
    return fn, [*(fn(x, y).detach() for x, y in draw_batches(4)), *states_of(array)]


PROGRAMS = [
    train_classifier,
    train_gan,
    accumulate_gradients,
    train_with_two_optimisers,
    train_with_dicts,
    average_weights,
    scale_losses,
    evaluate,
    train_under_autocast,
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled_functions_compute_what_they_compute_as_written(program: Any) -> None:
    assert_equal_runs(program)


@pytest.mark.slow
@pytest.mark.parametrize("program", [train_gan, accumulate_gradients], ids=lambda program: program.__name__)
def test_functions_compiled_by_inductor_compute_what_they_compute_as_written(program: Any) -> None:
    assert_equal_runs(program, fusion.compile())


@pytest.mark.slow
def test_members_train_as_ordinary_models_do() -> None:
    fn, results = train_classifier(GRAPH)
    assert fn._tracer.count == 1
    weights = results[6 : 6 + 4]
    for member, lr in enumerate(LRS):
        model = build_mlp(member)
        optimiser = torch.optim.Adam(model.parameters(), lr=lr)
        for at, (x, y) in enumerate(draw_batches(6)):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
            torch.testing.assert_close(results[at][member], loss.detach(), rtol=1e-4, atol=1e-5)
        for stacked, own in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(stacked[member], own.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_ordinary_models() -> None:
    _, results = accumulate_gradients(GRAPH)
    model = build_mlp(1)
    optimiser = torch.optim.SGD(model.parameters(), lr=LRS[1], momentum=0.9)
    for at, (x, y) in enumerate(draw_batches(10)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if at % 2 == 1:
            optimiser.step()
            optimiser.zero_grad()
    x, y = draw_batches(1)[0]
    (F.cross_entropy(model(x), y) / 2).backward()
    for stacked, own in zip(results[-4:], model.parameters(), strict=True):
        torch.testing.assert_close(stacked[1], own.grad, rtol=1e-4, atol=1e-6)


class Trainer:
    """A step as a method, with everything in attributes."""

    def __init__(self) -> None:
        self.array = fuse_mlps()
        self.optimiser = fusion.SGD(self.array, lr=LRS)
        self.smoothing = 0.0
        self.weight = torch.ones(3)

    @fusion.compile(backend="graph")
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        def loss(out: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(out, target, self.weight, label_smoothing=self.smoothing)

        losses = self.array.loss(loss, self.array(x), y)
        losses.sum().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return losses


@pytest.mark.slow
def test_methods_see_changes_of_attributes_and_learning_rates() -> None:
    trainer, twin = Trainer(), Trainer()
    as_written = Trainer.__dict__["step"]._fn
    for at, (x, y) in enumerate(draw_batches(10)):
        for one in (trainer, twin):
            one.smoothing = 0.2 if at >= 4 else 0.0
            one.weight = torch.tensor([1.0, 1.0 + at, 2.0])
            one.optimiser.param_groups[0]["lr"] = 0.01 * (at + 1)
        torch.testing.assert_close(trainer.step(x, y), as_written(twin, x, y).detach())
    assert Trainer.step.is_compiled
    torch.testing.assert_close(states_of(trainer.array), states_of(twin.array))


@pytest.mark.slow
def test_a_schedule_between_calls_changes_the_learning_rates() -> None:
    def program(wrap: Wrap) -> tuple[Any, list[Tensor]]:
        array = fuse_mlps()
        optimiser = fusion.SGD(array, lr=LRS)
        schedule = fusion.Schedule(optimiser, torch.optim.lr_scheduler.ExponentialLR, gamma=[0.5, 0.9, 0.1])

        def step(x: Tensor, y: Tensor) -> None:
            array.loss(F.cross_entropy, array(x), y).sum().backward()
            optimiser.step()
            optimiser.zero_grad()

        fn = wrap(step)
        for x, y in draw_batches(6):
            assert fn(x, y) is None
            schedule.step()
        return fn, states_of(array)

    assert_equal_runs(program)


@pytest.mark.slow
def test_members_that_leave_and_join_are_followed() -> None:
    def program(wrap: Wrap) -> tuple[Any, list[Tensor]]:
        array = fuse_mlps()
        optimiser = fusion.Adam(array, lr=LRS)

        def step(x: Tensor, y: Tensor) -> Tensor:
            losses = array.loss(F.cross_entropy, array(x), y)
            losses.sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            return losses

        fn, results = wrap(step), []
        for at, (x, y) in enumerate(draw_batches(9)):
            results.append(fn(x, y).detach())
            if at == 3:
                array.drop([1])
            if at == 6:
                array.add([build_mlp(9)], lr=0.05)
        return fn, [*results, *states_of(array)]

    assert_equal_runs(program)


def test_a_variable_that_is_another_parameter_takes_effect() -> None:
    array = fusion.fuse([nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)])
    weights = [p for p in array.parameters() if p.ndim == 3]
    chosen = SimpleNamespace(weight=weights[0])
    fn = GRAPH(lambda x: array(x).sum() * 0 + chosen.weight.square().sum())
    x = torch.ones(2, 4)
    for _ in range(3):
        torch.testing.assert_close(fn(x).detach(), weights[0].square().sum().detach())
    chosen.weight = weights[1]
    for _ in range(3):
        torch.testing.assert_close(fn(x).detach(), weights[1].square().sum().detach())
    assert fn.is_compiled


def test_dropout_is_drawn_anew_in_each_call() -> None:
    torch.manual_seed(0)
    array = fusion.fuse([nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)) for _ in range(2)])
    fn = GRAPH(lambda x: array(x))
    x = torch.ones(3, 4)
    outs = [fn(x) for _ in range(4)]
    assert fn._tracer.count == 1
    assert not torch.equal(outs[2], outs[3])


def _step_with(array: fusion.FusedArray, optimiser: Any, extra: Callable[[], None]) -> Callable[..., Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        extra()
        return losses

    return step


def _effects() -> dict[str, tuple[Callable[[], None], str]]:
    log: list[int] = []
    counter = SimpleNamespace(value=0)

    def count() -> None:
        counter.value += 1

    return {
        "a list": (lambda: log.append(1), "changes log"),
        "a counter": (count, "changes counter.value"),
        "a clock": (lambda: print(time.time(), file=io.StringIO()), r"calls .*\(\), with another result"),
        "a draw": (lambda: random.seed(random.random()), "draws random numbers"),
    }


@pytest.mark.parametrize("effect", _effects())
def test_functions_with_effects_run_as_written_and_say_so(effect: str) -> None:
    extra, message = _effects()[effect]
    array, twin = fuse_mlps(), fuse_mlps()
    fn = GRAPH(_step_with(array, fusion.Adam(array, lr=LRS), extra))
    as_written = _step_with(twin, fusion.Adam(twin, lr=LRS), lambda: None)
    with pytest.warns(fusion.FusionWarning, match=message) as caught:
        losses = [fn(x, y).detach() for x, y in draw_batches(5)]
    assert not fn.is_compiled
    assert caught[0].filename == __file__
    expected = [as_written(x, y).detach() for x, y in draw_batches(5)]
    torch.testing.assert_close(losses, expected)


def call_with_batches(fn: Callable[..., Any], count: int) -> list[Any]:
    return [fn(x, y) for x, y in draw_batches(count)]


def test_a_schedule_inside_the_function_is_announced() -> None:
    array = fuse_mlps()
    optimiser = fusion.SGD(array, lr=LRS)
    schedule = fusion.Schedule(optimiser, torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    fn = GRAPH(_step_with(array, optimiser, schedule.step))
    with pytest.warns(fusion.FusionWarning, match=r"calls Schedule.step\(\)"):
        call_with_batches(fn, 4)
    torch.testing.assert_close(optimiser.param_groups[0]["lr"], torch.tensor(LRS).double() * 0.5**4)


def test_a_number_read_from_a_tensor_is_announced() -> None:
    array = fuse_mlps()
    fn = GRAPH(lambda x: array(x).sum().item())
    with pytest.warns(fusion.FusionWarning, match=r"returns a number that is read from a tensor"):
        assert len({fn(x) for x, _ in draw_batches(3)}) == 3


def test_ordinary_models_trained_besides_are_announced_and_trained() -> None:
    array, head = fuse_mlps(), nn.Linear(3, 3)
    optimiser, other = fusion.SGD(array, lr=LRS), torch.optim.SGD(head.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> None:
        head(array(x)).square().sum().backward()
        optimiser.step()
        other.step()
        optimiser.zero_grad()
        other.zero_grad()

    fn = GRAPH(step)
    before = head.weight.detach().clone()
    with pytest.warns(fusion.FusionWarning, match="other is an ordinary optimiser, SGD of torch.optim"):
        call_with_batches(fn, 3)
    assert not torch.equal(before, head.weight)


@pytest.mark.slow
def test_a_frozen_teacher_is_an_input() -> None:
    def program(wrap: Wrap) -> tuple[Any, list[Tensor]]:
        array, teacher = fuse_mlps(), build_mlp(11)
        optimiser = fusion.SGD(array, lr=LRS)

        def step(x: Tensor) -> Tensor:
            with torch.no_grad():
                target = teacher(x)
            losses = array.loss(F.mse_loss, array(x), target)
            losses.sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            return losses

        fn, results = wrap(step), []
        for at, (x, _) in enumerate(draw_batches(6)):
            if at == 4:
                with torch.no_grad():
                    teacher[0].weight.mul_(2.0)
            results.append(fn(x).detach())
        return fn, [*results, *states_of(array)]

    assert_equal_runs(program)


@pytest.mark.slow
def test_a_wrong_trace_is_found_and_the_result_as_written_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = copy.copy(LRS)
    array, twin = fuse_mlps(), fuse_mlps()

    def make(own: fusion.FusedArray) -> Callable[..., Tensor]:
        optimiser = fusion.SGD(own, lr=LRS)
        read = hidden.__getitem__  # held by C code, which guards do not look into

        def step(x: Tensor, y: Tensor) -> Tensor:
            losses = own.loss(F.cross_entropy, own(x), y) * read(0)
            losses.sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            return losses

        return step

    fn, as_written = GRAPH(make(array)), make(twin)
    batches = draw_batches(6)
    for x, y in batches[:3]:
        fn(x, y), as_written(x, y)
    hidden[0] = 5.0
    with pytest.warns(fusion.FusionWarning, match="differs from the uncompiled one"):
        ours = [fn(x, y) for x, y in batches[3:]]
    theirs = [as_written(x, y) for x, y in batches[3:]]
    torch.testing.assert_close(ours[-1].detach(), theirs[-1].detach(), rtol=0.2, atol=0.1)
    assert not fn.is_compiled


def test_values_that_are_not_functions_are_refused() -> None:
    array = fuse_mlps()
    with pytest.raises(ConfigError, match="got a FusedArray, expected a function") as caught:
        fusion.compile(array)
    assert "def step" in caught.value.hint
    with pytest.raises(ConfigError, match="backend is 'eager', expected"):
        fusion.compile(backend="eager")


def test_functions_without_arrays_are_announced() -> None:
    fn = GRAPH(lambda x: x + 1)
    with pytest.warns(fusion.FusionWarning, match="it uses no array"):
        assert [fn(torch.ones(())) for _ in range(3)] == [2, 2, 2]


def test_errors_of_the_function_are_raised_as_they_are() -> None:
    array = fuse_mlps()
    fn = GRAPH(lambda x: array(x))
    for _ in range(3):
        fn(torch.ones(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"shape|size"):
            fn(torch.ones(2, 5))
