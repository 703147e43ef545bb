"""`torch.utils.checkpoint` in models of an array: parts that backward computes a second time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    assert_same_training,
    build_members,
    normal_tensor,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import SGD, FusionWarning, fuse, train_step  # noqa: E402
from wattline.fusion.lowering.rules import Ways  # noqa: E402
from wattline.fusion.step.execution_mode import ExecutionMode  # noqa: E402

X = normal_tensor(5, 4)
runs: list[str] = []


class Block(nn.Module):
    """A layer that counts its calls."""

    def __init__(self, p: float = 0.0, is_branching: bool = False) -> None:
        super().__init__()
        self.fc, self.drop, self.is_branching = nn.Linear(4, 4), nn.Dropout(p), is_branching

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        runs.append("block")
        if self.is_branching and x.sum() > 1e6:
            return x
        y = self.drop(torch.tanh(self.fc(x)).exp())
        return y if scale is None else y * scale


class Network(nn.Module):
    """Three blocks that are recomputed, or not; *how* calls one."""

    def __init__(self, how: Callable[..., Tensor], block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(x)
        for block in self.blocks:
            x = self.how(block, x, scale)
        return x


def plain(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return block(x, scale)


def recomputed(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(block, x, scale, use_reentrant=False)


def with_keyword(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(block, x, scale=scale, use_reentrant=False)


def with_closure(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(lambda y: block(y) * scale, x, use_reentrant=False)


def without_stopping(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(block, x, scale, use_reentrant=False, early_stop=False)


def nested(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(lambda y: recomputed(block, y, scale).sin(), x, use_reentrant=False)


def in_sequence(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint_sequential([block, torch.sin], 2, x, use_reentrant=False)


def reentrant(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
    return checkpoint(block, x, scale, use_reentrant=True)


HOW = [recomputed, with_keyword, with_closure, without_stopping, nested, in_sequence]


@pytest.mark.parametrize("how", HOW)
def test_recomputed_parts_train_like_separate_models(how: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        assert_same_training(lambda: Network(how), X)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.relu(self.bn(self.fc(x))) * scale


def test_statistics_of_recomputed_batch_norms_equal_those_of_separate_models() -> None:
    assert_same_training(lambda: Network(without_stopping, Normalised), X)


class Cooled(nn.Module):
    def __init__(self, tau: float) -> None:
        super().__init__()
        self.fc, self.tau = nn.Linear(4, 4), tau

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.leaky_relu(self.fc(x), self.tau / 10) / self.tau * scale


def test_recomputed_parts_see_the_numbers_of_members() -> None:
    models = [Network(recomputed, lambda tau=tau: Cooled(tau)).double() for tau in (0.5, 1.0, 3.0)]  # type: ignore[misc]
    assert_same_training(nn.Module, X, models=models)


def test_backward_runs_recomputed_parts_again_and_forward_keeps_fewer_tensors() -> None:
    kept = {}
    for how in (plain, recomputed):
        array = fuse(build_members(lambda how=how: Network(how)))  # type: ignore[misc]
        out = array(X)
        seen: dict[int, int] = {}
        waiting = [out.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or id(node) in seen:
                continue
            saved = [name for name in dir(node) if name.startswith("_raw_saved_")]
            data = [raw.data for name in saved if hasattr(raw := getattr(node, name), "data")]
            seen[id(node)] = sum(t.numel() for t in data if isinstance(t, Tensor) and t.grad_fn is not None)
            waiting += [following for following, _ in node.next_functions]
        kept[how] = sum(seen.values())
        runs.clear()
        array.loss(lambda o: o.square().mean(), out).sum().backward()
        assert len(runs) == (3 if how is recomputed else 0)
    assert kept[recomputed] < kept[plain]


def test_dropout_draws_the_same_mask_again() -> None:
    grads = []
    for how in (plain, recomputed):
        array = fuse(build_members(lambda how=how: Network(how, lambda: Block(0.5))))  # type: ignore[misc]
        torch.manual_seed(5)
        out = array(X)
        array.loss(lambda o: o.square().mean(), out).sum().backward()
        grads.append([out, torch.rand(3), *(p.grad for p in array.parameters())])
    assert_same(grads[0], grads[1], "outputs, later draws and gradients")


@pytest.mark.filterwarnings("ignore::wattline.fusion.FusionWarning")
def test_recomputed_parts_may_run_one_by_one() -> None:
    array = assert_same_training(lambda: Network(recomputed, lambda: Block(is_branching=True)), X)
    out = array(X)
    runs.clear()
    array.loss(lambda o: o.square().mean(), out).sum().backward()
    assert 3 < len(runs) <= 9  # once for each member, until all tensors are there again


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Network(recomputed)

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y if y.sum() < 1e6 else x


def test_models_that_run_one_by_one_may_recompute() -> None:
    with pytest.warns(FusionWarning, match="the whole model"):
        assert_same_training(Branching, X)


def test_a_whole_array_may_be_recomputed() -> None:
    grads = []
    for how in (lambda array: array(X), lambda array: checkpoint(array, X, use_reentrant=False)):
        array = fuse(build_members(lambda: Network(recomputed)))
        runs.clear()
        how(array).sum().backward()
        grads.append(([p.grad for p in array.parameters()], len(runs)))
    assert_same(grads[0][0], grads[1][0], "gradients")
    assert grads[1][1] > grads[0][1]


def test_a_loss_may_recompute() -> None:
    def loss(out: Tensor) -> Tensor:
        return checkpoint(lambda o: (runs.append("loss"), o.exp().sin().mean())[1], out, use_reentrant=False)

    runs.clear()
    array = assert_same_training(lambda: nn.Linear(4, 3), X, loss=loss, steps=1)
    assert len(runs) == 2 + 2 * len(array)


@pytest.mark.parametrize("is_branching", [False, True])
@pytest.mark.filterwarnings("ignore::wattline.fusion.FusionWarning")
def test_reentrant_checkpoints_are_refused(is_branching: bool) -> None:
    array = fuse(build_members(lambda: Network(reentrant, lambda: Block(is_branching=is_branching))))
    with pytest.raises(NotFusible, match="use_reentrant=True, which arrays do not support") as raised:
        array(X)
    assert "use_reentrant=False" in str(raised.value.hint)


def test_hooks_of_saved_tensors_are_refused_in_a_forward() -> None:
    def hooked(block: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t - t.mean(), lambda t: t):
            return block(x, scale)

    array = fuse(build_members(lambda: Network(hooked)))
    with pytest.raises(RuntimeError, match="hooks of saved tensors would get the tensors of all members"):
        array(X)


def test_recomputation_ends_with_the_forward() -> None:
    names = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
    before = [getattr(torch.utils.checkpoint, name) for name in names]
    array = fuse(build_members(lambda: Network(recomputed)))
    array(X).sum().backward()
    assert [getattr(torch.utils.checkpoint, name) for name in names] == before
    assert torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None
    model = build_members(lambda: Network(reentrant), 1)[0]
    model(X.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    "way",
    [
        ExecutionMode(None, Ways(), compiled=False),
        ExecutionMode(2, Ways(), compiled=False),
        ExecutionMode(None, None, compiled=False),
    ],
    ids=str,
)
def test_steps_recompute(way: ExecutionMode) -> None:
    models = build_members(lambda: Network(recomputed))
    array = fuse(models)
    step = train_step(array, lambda o: o.square().mean(), SGD(array, lr=0.1), compile=False)
    theirs = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for at in range(4):  # the first two steps find out what the code does
        runs.clear()
        step(X)
        assert len(runs) == (
            6 if at < 2 or (way.ways is not None and way.width is None) else 12 if way.width else 18
        )
        step.way = way
        for model, optimiser in zip(models, theirs, strict=True):
            optimiser.zero_grad()
            model(X).square().mean().backward()
            optimiser.step()
    assert_same_state(array, models)


class Quiet(nn.Module):
    """A block without counting, which a compiled step could not do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return torch.tanh(self.fc(x)) * scale


@pytest.mark.slow
def test_compiled_steps_keep_tensors_and_say_so() -> None:
    models = build_members(lambda: Network(recomputed, Quiet))
    array = fuse(models)
    step = train_step(array, lambda o: o.square().mean(), SGD(array, lr=0.1), compile="graph")
    theirs = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def train() -> None:
        for _ in range(3):
            step(X)
            for model, optimiser in zip(models, theirs, strict=True):
                optimiser.zero_grad()
                model(X).square().mean().backward()
                optimiser.step()

    with pytest.warns(FusionWarning, match=r"compiled steps keep the tensors that torch\.utils\.checkpoint"):
        train()
    assert step.way.compiled
    assert_same_state(array, models)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable:FutureWarning")
def test_models_of_hugging_face_recompute_their_layers() -> None:
    transformers = pytest.importorskip("transformers")

    def make() -> nn.Module:
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for block in model.transformer.h:
            block.mlp.register_forward_pre_hook(count)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model.train()

    def count(module: nn.Module, args: Any) -> None:
        runs.append("layer")

    ids = torch.arange(12).reshape(2, 6)
    models = build_members(make, dtype=torch.float32)
    array = fuse(models)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        out = array(input_ids=ids, labels=ids)
    runs.clear()
    out.loss.sum().backward()
    assert len(runs) == 2
    stacked = dict(array.body.named_parameters())
    for index, model in enumerate(models):
        model(input_ids=ids, labels=ids).loss.backward()
        for name, parameter in model.named_parameters():
            assert_same(stacked[name].grad[index], parameter.grad, name, 1e-5)
