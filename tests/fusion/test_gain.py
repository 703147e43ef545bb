"""The gain of fusing, measured against ordinary models, with a clock that the models advance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch._C._functorch import is_batchedtensor  # noqa: E402

from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion.gain import Gain, StepSpeed, measure_gain, measure_training  # noqa: E402

X, Y = torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)
SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from wattline import fusion

def build(config):
    return nn.Sequential(nn.Linear(4, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 2))

def train(array, configs):
    step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), compile=False)
    for _ in range(STEPS):
        step(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))

fusion.main(build, train)
"""


class FakeClock:
    """A clock that only advances when it is asked to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SlowLinear(nn.Module):
    """A layer with a call that takes *fused_s* in an array and *ordinary_s* in an ordinary model."""

    def __init__(self, clock: FakeClock, fused_s: float, ordinary_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.seconds = (clock, fused_s, ordinary_s)

    def __deepcopy__(self, memo: dict[int, Any]) -> SlowLinear:
        copy = SlowLinear(*self.seconds)
        for name in ("weight", "bias"):
            old = getattr(self.linear, name)
            setattr(copy.linear, name, memo.get(id(old), old))
        return copy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clock, fused_s, ordinary_s = self.seconds
        clock.now_s += fused_s if is_batchedtensor(self.linear.weight) else ordinary_s
        return self.linear(x)


def train_with_step(array: fusion.FusedArray, configs: list[Any]) -> None:
    step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), compile=False)
    while True:
        step(X, Y)


def train_in_own_loop(array: fusion.FusedArray, configs: list[Any]) -> None:
    optimiser = fusion.SGD(array, lr=0.1)
    while True:
        optimiser.zero_grad()
        array.loss(F.cross_entropy, array(X), Y).sum().backward()
        optimiser.step()


def measure(clock: FakeClock, train: Callable[..., None], fused_s: float, ordinary_s: float) -> Gain:
    return measure_training(
        lambda config: SlowLinear(clock, fused_s, ordinary_s), train, [{}] * 4, seconds=20.0, clock=clock
    )


@pytest.mark.parametrize("train", [train_with_step, train_in_own_loop])
@pytest.mark.parametrize(("fused_s", "gain"), [(1.0, 4.0), (2.0, 2.0), (8.0, 0.5)])
def test_the_gain_is_that_against_ordinary_models_one_after_another(
    train: Callable[..., None], fused_s: float, gain: float
) -> None:
    found = measure(FakeClock(), train, fused_s, ordinary_s=1.0)
    assert found.alone == StepSpeed(1.0, 1.0, 1.0)
    assert found.serial == StepSpeed(0.25, 0.25, 0.25)
    assert found.fused.steps_s == pytest.approx(1 / fused_s)
    assert found.gain == pytest.approx(gain)
    assert found.has_loss
    assert found.batch == 3
    assert found.compiled is None


def test_time_between_steps_is_not_counted() -> None:
    clock = FakeClock()

    def train(array: fusion.FusedArray, configs: list[Any]) -> None:
        step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), compile=False)
        while True:
            clock.now_s += 3.0  # a slow loader
            step(X, Y)
            with torch.no_grad():
                array(X)  # an evaluation of one second

    found = measure(clock, train, 1.0, 1.0)
    assert found.gain == pytest.approx(4.0)
    assert found.outside_fraction == pytest.approx(0.8, abs=0.05)


def test_the_spread_is_the_middle_half_of_the_steps() -> None:
    assert StepSpeed.from_seconds([1.0, 2.0, 4.0, 8.0, 16.0]) == StepSpeed(1 / 4, 1 / 8, 1 / 2)


def test_compiled_ordinary_models_count_if_they_are_faster() -> None:
    gain = measure(FakeClock(), train_with_step, 1.0, 1.0)
    values = {**vars(gain), "compiled": StepSpeed(2.0, 2.0, 2.0)}
    assert Gain(**values).gain == pytest.approx(2.0)
    assert Gain(**{**values, "compiled": StepSpeed(0.5, 0.5, 0.5)}).gain == pytest.approx(4.0)


@pytest.mark.slow
def test_members_that_leave_end_the_measurement_of_the_array() -> None:
    def train(array: fusion.FusedArray, configs: list[Any]) -> None:
        optimiser = fusion.SGD(array, lr=0.1)
        step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
        for _ in range(8):
            step(X, Y)
        array.drop([1, 3])
        while True:
            step(X, Y)

    found = measure_training(lambda config: nn.Linear(4, 2), train, [{}] * 4, seconds=0.0)
    assert found.width == 4
    assert found.gain == pytest.approx(found.fused.steps_s / found.serial.steps_s)


def test_a_loss_that_cannot_be_repeated_is_reported() -> None:
    def train(array: fusion.FusedArray, configs: list[Any]) -> None:
        optimiser = fusion.SGD(array, lr=0.1)
        while True:
            optimiser.zero_grad()
            array(X).square().mean().backward()
            optimiser.step()

    assert not measure(FakeClock(), train, 1.0, 1.0).has_loss


@pytest.mark.slow
def test_parts_and_the_key_describe_the_architecture(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("STEPS", "10_000_000"))
    gain = measure_gain(script, 2, ["hidden=3"], seconds=0.0)
    assert [part.how for part in gain.parts] == ["container", "direct", "vmap", "direct"]
    assert measure_gain(script, 2, ["hidden=5"], seconds=0.0).key != gain.key
    with pytest.raises(ConfigError, match="build needs 'hidden'"):
        measure_gain(script, 2, [], seconds=0.0)
    with pytest.raises(ConfigError, match="describe 3 members, expected one or 2"):
        measure_gain(script, 2, ["hidden=3,4,5"], seconds=0.0)


def test_a_training_too_short_to_measure_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(SCRIPT.replace("STEPS", "2"))
    with pytest.raises(ConfigError, match="train made 2 steps"):
        measure_gain(script, 2, ["hidden=3"], seconds=0.0)


def test_a_wide_spread_is_reported() -> None:
    gain = measure(FakeClock(), train_with_step, 1.0, 1.0)
    assert not gain.is_noisy
    assert Gain(**{**vars(gain), "fused": StepSpeed(1.0, 0.5, 1.5)}).is_noisy


@pytest.mark.slow
def test_an_ordinary_model_is_also_compiled_if_the_script_compiles() -> None:
    def train(array: fusion.FusedArray, configs: list[Any]) -> None:
        step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1))
        while True:
            step(X, Y)

    found = measure_training(lambda config: nn.Linear(4, 2), train, [{}] * 2, seconds=0.0)
    assert found.is_fused_compiled
    assert found.compiled is not None
