"""Steps that run out of memory and go on with fewer members at a time.

No GPU is needed: `Greedy` is a stand-in that raises PyTorch's own exceptions when its batch is too wide. The
last test lets the real allocator of the CPU fail.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

import wattline  # noqa: E402
from support.fusion_equality import assert_same, assert_same_state, integer_tensor, normal_tensor  # noqa: E402
from wattline.fusion import SGD, Adam, FusionWarning, Scaler, fuse, train_step  # noqa: E402
from wattline.fusion.step.execution_mode import ExecutionMode  # noqa: E402

X, Y = normal_tensor(6, 4), integer_tensor(3, 6)
SIZE = 5


def raise_on_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def raise_on_cpu() -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")


class Memory:
    """The stand-in: *fail* is called for more than *limit* members, in forward or backward."""

    limit = 100
    phase = "forward"
    fail: Callable[[], None] = staticmethod(raise_on_gpu)
    widths: list[int] = []  # noqa: RUF012


class _Allocate(torch.autograd.Function):
    """Passes a tensor on, and allocates in forward and backward. A stand-in for large tensors."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        Memory.widths.append(info.batch_size)
        if Memory.phase == "forward" and info.batch_size > Memory.limit:
            Memory.fail()
        return _AllocateStacked.apply(x, info.batch_size), in_dims[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _AllocateStacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if Memory.phase == "backward" and ctx.size > Memory.limit:
            Memory.fail()
        return grad, None


class Greedy(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.fc, self.bn, self.drop, self.out = (
            nn.Linear(4, 5, bias=False),
            nn.BatchNorm1d(5),
            nn.Dropout(p),
            nn.Linear(5, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(_Allocate.apply(self.drop(F.relu(self.bn(self.fc(x))))))


@pytest.fixture(autouse=True)
def memory() -> Any:
    Memory.limit, Memory.phase, Memory.fail, Memory.widths = 100, "forward", staticmethod(raise_on_gpu), []
    return Memory


def members(size: int = SIZE, p: float = 0.0) -> list[nn.Module]:
    models = []
    for seed in range(size):
        torch.manual_seed(seed)
        models.append(Greedy(p).double())
    return models


def alone() -> list[nn.Module]:
    """Return separate models: the same weights, without the stand-in."""
    models = members()
    for model in models:
        model.forward = lambda x, m=model: m.out(F.relu(m.bn(m.fc(x))))  # type: ignore[method-assign]
    return models


def train_alone(models: list[nn.Module], steps: int, lr: Any) -> list[Tensor]:
    losses = []
    for model, own in zip(models, lr, strict=True):
        optimiser = torch.optim.Adam(model.parameters(), lr=own)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    return losses


LR = [0.01, 0.02, 0.03, 0.04, 0.05]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("fail", [raise_on_gpu, raise_on_cpu])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_without_memory_is_repeated_with_half_the_members(
    memory: Any, phase: str, fail: Any, at: int
) -> None:
    memory.phase, memory.fail = phase, staticmethod(fail)
    array = fuse(members())
    step = train_step(array, F.cross_entropy, Adam(array, lr=LR), compile=False)
    for _ in range(at):
        step(X, Y)
    memory.limit = 2
    with pytest.warns(FusionWarning, match="out of memory with 5 members at a time; 2 are trained at a time"):
        step(X, Y)
    memory.widths.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        for _ in range(2):
            losses = step(X, Y)
    assert max(memory.widths) == 2
    assert step.way.width == 2
    models = alone()
    assert_same(losses, torch.stack(train_alone(models, at + 3, LR)), "losses")
    assert_same_state(array, models)


@pytest.mark.slow
def test_the_width_is_halved_until_a_step_fits(memory: Any) -> None:
    memory.limit = 1
    array = fuse(members())
    step = train_step(array, F.cross_entropy, Adam(array, lr=LR), compile=False)
    with pytest.warns(FusionWarning) as caught:
        losses = step(X, Y)
    texts = [str(w.message) for w in caught]
    assert [text.partition(";")[0] for text in texts] == [
        "out of memory with 5 members at a time",
        "out of memory with 2 members at a time",
    ]
    assert_same(losses, torch.stack(train_alone(models := alone(), 1, LR)), "losses")
    assert_same_state(array, models)


@pytest.mark.slow
@pytest.mark.parametrize("fail", [raise_on_gpu, raise_on_cpu])
def test_one_member_without_memory_is_an_error(memory: Any, fail: Any) -> None:
    memory.limit, memory.fail = 0, staticmethod(fail)
    array = fuse(members(2))
    before = [model.state_dict() for model in array.split()]
    step = train_step(array, F.cross_entropy, Adam(array, lr=0.1), compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        with pytest.raises(RuntimeError, match=r"out of memory|allocate memory"):
            step(X, Y)
    assert_same([array.member_state_dict(i) for i in range(2)], before, "nothing has changed")


@pytest.mark.slow
def test_generators_are_as_before_the_failed_attempt(memory: Any) -> None:
    drawn = []
    for limit in (2, 100):
        memory.limit = limit
        array = fuse(members(p=0.5))
        step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), compile=False)
        if limit == 100:
            step.memory_width = 2  # two at a time from the start
        torch.manual_seed(3)
        random.seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FusionWarning)
            losses = step(X, Y)
        drawn.append((losses, torch.rand(3), random.random()))
    assert_same(drawn[0], drawn[1], "losses and later draws")


@pytest.mark.slow
def test_a_narrow_first_step_finds_what_cannot_be_fused(memory: Any) -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Greedy()

        def forward(self, x: Tensor) -> Tensor:
            y = self.net(x)
            return y * 2 if y.sum() < 1e6 else y

    memory.limit = 2
    array = fuse([Deciding().double() for _ in range(4)])
    expected = [F.cross_entropy(m.net(X) * 2, Y) for m in _without_stand_in(array.split())]
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.0), compile=False)
    with pytest.warns(FusionWarning) as caught:
        losses = step(X, Y)
    texts = " ".join(str(w.message) for w in caught)
    assert "out of memory with 4 members" in texts
    assert "the whole model (Deciding) cannot be fused" in texts
    assert_same(losses, torch.stack(expected), "losses")


def _without_stand_in(models: list[nn.Module]) -> list[nn.Module]:
    for model in models:
        net: Any = model.net
        net.forward = lambda x, m=net: m.out(F.relu(m.bn(m.fc(x))))
    return models


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_clipping_and_loss_scales_are_those_of_a_wide_step(memory: Any, scaled: bool) -> None:
    states = []
    for limit in (2, 100):
        memory.limit = limit
        array = fuse(members())
        scaler = Scaler(SIZE) if scaled else None
        step = train_step(
            array,
            F.cross_entropy,
            Adam(array, lr=LR),
            compile=False,
            clip_norm=[0.1, 9, 9, 0.2, 0.3],
            scaler=scaler,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FusionWarning)
            for _ in range(3):
                step(X, Y)
        states.append([array.member_state_dict(i) for i in range(SIZE)])
    assert_same(states[0], states[1], "state")


@pytest.mark.slow
def test_members_with_rows_of_their_own_get_them(memory: Any) -> None:
    memory.limit = 2
    array = fuse(members())
    x = normal_tensor(SIZE, 6, 4)
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.0), compile=False)
    with pytest.warns(FusionWarning, match="out of memory"):
        losses = step(x, Y, members=[True, False])
    assert_same(losses, torch.stack([F.cross_entropy(m(x[i]), Y) for i, m in enumerate(alone())]), "losses")


def test_a_failure_during_the_update_is_not_repeated(monkeypatch: Any) -> None:
    """Stand-in: the optimiser fails after it has written to the weights."""
    array = fuse(members())
    optimiser = SGD(array, lr=0.1)
    step = train_step(array, F.cross_entropy, optimiser, compile=False)

    def fail(*_: Any) -> None:
        with torch.no_grad():
            array.body.fc.weight.mul_(2)
        raise_on_gpu()

    monkeypatch.setattr(optimiser, "step", fail)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        step(X, Y)
    assert "half a step" in " ".join(raised.value.__notes__)


@pytest.mark.slow
def test_a_compiled_step_without_memory_takes_the_uncompiled_result(monkeypatch: Any) -> None:
    """Stand-in: the first compiled step writes to a weight and then fails."""
    array = fuse(alone_without_lambda())
    step = train_step(array, F.cross_entropy, Adam(array, lr=LR), compile="graph")
    real = step._tracer.add_version

    def add_version(*args: Any, **kwargs: Any) -> Any:
        def fail(*tensors: Tensor) -> Tensor:
            tensors[0].mul_(2)
            raise torch.OutOfMemoryError("CUDA out of memory.")

        version = real(*args, **kwargs)
        version._compiled = fail
        return version

    step(X, Y)
    monkeypatch.setattr(step._tracer, "add_version", add_version)
    with pytest.warns(FusionWarning, match="out of memory with 5 members at a time; 2 are"):
        step(X, Y)
    monkeypatch.undo()
    step(X, Y)
    models = alone()
    train_alone(models, 3, LR)
    assert_same_state(array, models)
    assert step.way == ExecutionMode(2, array.ways, compiled=True)


class Modest(nn.Module):
    """`Greedy` without the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.out = nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.bn(self.fc(x))))


def alone_without_lambda() -> list[nn.Module]:
    models = []
    for seed in range(SIZE):
        torch.manual_seed(seed)
        models.append(Modest().double())
    return models


@pytest.mark.slow
def test_steps_are_compiled_for_the_width_that_fits(monkeypatch: Any) -> None:
    """Stand-in: the step of all members fails."""
    array = fuse(alone_without_lambda())
    step = train_step(array, F.cross_entropy, Adam(array, lr=LR), compile="graph")
    monkeypatch.setattr("wattline.fusion.step.train_step.run_all_members", lambda *_: raise_on_gpu())
    with pytest.warns(FusionWarning, match="out of memory with 5 members at a time; 2 are"):
        step(X, Y)
    for _ in range(3):
        step(X, Y)
    assert step.way == ExecutionMode(2, array.ways, compiled=True)
    assert step._tracer.count == 2  # of two members and of one
    models = alone()
    train_alone(models, 4, LR)
    assert_same_state(array, models)


def test_a_later_failure_of_a_compiled_step_is_an_error(monkeypatch: Any) -> None:
    """Stand-in: a compiled step that has worked before fails."""
    array = fuse(alone_without_lambda())
    step = train_step(array, F.cross_entropy, Adam(array, lr=LR), compile="graph")
    for _ in range(3):
        step(X, Y)
    version = next(iter(step._tracer._versions.values()))[0]
    monkeypatch.setattr(step._verification, "is_due", lambda function: False)
    monkeypatch.setattr(version.call, "_compiled", lambda *tensors: raise_on_gpu())
    with pytest.raises(torch.OutOfMemoryError) as raised:
        step(X, Y)
    assert "half a step" in " ".join(raised.value.__notes__)


@pytest.mark.slow
def test_modes_without_memory_are_not_chosen(memory: Any) -> None:
    memory.limit = 2
    array = fuse(members())
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), width="auto", compile=False)
    with pytest.warns(FusionWarning, match="out of memory with 5"):
        step(X, Y)
    for _ in range(2):  # the second step finds out what the code does
        step(X, Y)
    wide = [t.step_s for t in step.tried if t.way.ways is not None and t.way.width is None]
    assert wide == [float("inf")]
    assert step.way.ways is None


SCRIPT = """
import resource, warnings
import torch
from torch import nn
from wattline.fusion import SGD, fuse, train_step

torch.set_num_threads(1)
x = torch.randn(1000, 8)
models = [nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Linear(1000, 1)) for _ in range(8)]
array = fuse(models)
step = train_step(array, lambda out: out.square().mean(), SGD(array, lr=0.01), compile=False)
with torch.no_grad():
    expected = torch.stack([model(x).square().mean() for model in models])
fuse(models[:1])(x).sum().backward()  # threads and libraries are loaded
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    losses = step(x)
torch.testing.assert_close(losses, expected)
print([str(w.message) for w in caught], step.way.width)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.slow
def test_the_allocator_of_the_cpu_really_fails() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(Path(wattline.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "out of memory with 8 members at a time; 4 are trained at a time" in run.stdout
