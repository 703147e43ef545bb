"""Wrong inputs, indices and members: each raises an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    build_members,
    normal_tensor,
)
from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError, NotFusible, WattlineError  # noqa: E402
from wattline.fusion import fuse  # noqa: E402

WRONG: list[tuple[Callable[[], nn.Module], Tensor, str]] = [
    (lambda: nn.Linear(4, 3), normal_tensor(5, 3), "shapes cannot be multiplied"),
    (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(4, 3)),
        normal_tensor(5, 4),
        "cannot be multiplied",
    ),
    (
        lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(3, 4, 3)),
        normal_tensor(5, 2, 6, 6),
        "expected input",
    ),
    (lambda: nn.BatchNorm1d(4), normal_tensor(1, 4), "Expected more than 1 value per channel"),
    (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        normal_tensor(1, 4),
        r"more than 1 value per channel.*\[1, 4\]",
    ),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm2d(4)), normal_tensor(5, 4), "expected 4D input"),
    (lambda: nn.Embedding(5, 3), torch.tensor([5]), "out of range"),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(5)), normal_tensor(5, 4), "normalized_shape"),
    (lambda: nn.LSTM(4, 3), normal_tensor(2, 2, 5), "input.size"),
    (lambda: nn.MultiheadAttention(4, 2), normal_tensor(2, 2, 4), "key"),
    (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(2, 4)), normal_tensor(2, 2, 5, 5), "."),
    (lambda: nn.Linear(4, 3), normal_tensor(5, 4).float(), "dtype"),
]


@pytest.mark.parametrize(("make", "x", "words"), WRONG)
def test_wrong_inputs_raise_the_error_of_a_single_member(
    make: Callable[[], nn.Module], x: Tensor, words: str
) -> None:
    models = build_members(make)
    with pytest.raises(Exception, match=words) as ordinary:
        models[0](x)
    models = build_members(make)
    array = fuse(models)
    with pytest.raises(type(ordinary.value)) as raised:  # a FusionWarning would be an error, too
        array(x)
    assert str(raised.value) == str(ordinary.value)
    assert_same_state(array, models)
    assert not any("forward" in vars(m) for m in array.body.modules())


def test_members_must_be_in_front() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match=r"shape \(5, 4\), expected 3 members in front"):
        array(normal_tensor(5, 4), members=True)
    with pytest.raises(NotFusible, match=r"shape \(\), expected 3 members"):
        array(torch.tensor(1.0), members=True)
    with pytest.raises(NotFusible, match="members has 2 entries, expected one for each of 1"):
        array(normal_tensor(5, 4), members=[True, False])
    with pytest.raises(NotFusible, match=r"shape \(4, 5\), expected 3 members"):
        array.loss(nn.functional.mse_loss, array(normal_tensor(5, 4)), normal_tensor(4, 5), members=True)


def test_a_wrong_state_dict_is_not_loaded() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    before = array.member_state_dict(1)
    for state, words in (
        (nn.Linear(4, 2).state_dict(), "size mismatch for weight"),
        ({"weight": normal_tensor(3, 4)}, "Missing key.*bias"),
        ({**before, "more": normal_tensor(1)}, "Unexpected key.*more"),
    ):
        with pytest.raises(NotFusible, match=rf"(?s)member 1 cannot be loaded: .*{words}"):
            array.load_member(1, state)
    assert_same(array.member_state_dict(1), before, "weights")


@pytest.mark.parametrize("index", [3, -4])
def test_a_member_index_out_of_range_is_refused(index: int) -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    calls: list[Callable[[], Any]] = [
        lambda: array.member(index),
        lambda: array.member_state_dict(index),
        lambda: array.drop([0, index]),
        lambda: array.load_member(index, {}),
    ]
    for call in calls:
        with pytest.raises(NotFusible, match=rf"no member {index}, the array has 3"):
            call()
    assert len(array) == 3


def test_dropping_all_members_is_refused() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match="all members would leave"):
        array.drop([0, 1, 2])
    assert len(array) == 3


def test_joining_members_must_have_the_same_architecture() -> None:
    array = fuse(build_members(lambda: nn.Linear(4, 3)))
    with pytest.raises(NotFusible, match=r"weight has the shape \(2, 4\), expected \(3, 4\)"):
        array.add([nn.Linear(4, 2).double()])
    with pytest.raises(NotFusible, match=r"torch\.float32, expected torch\.float64"):
        array.add([nn.Linear(4, 3)])
    array.add([])
    assert len(array) == 3


X, Y = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)


def build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def fuse_two() -> fusion.FusedArray:
    return fuse([build_mlp(), build_mlp()])


def make_step(loss: Any = F.cross_entropy, **options: Any) -> fusion.Step:
    array = fuse_two()
    return fusion.train_step(array, loss, fusion.Adam(array), **{"compile": "graph", **options})


def step_with_torch_adam() -> Any:
    array = fuse_two()
    return fusion.train_step(array, F.cross_entropy, torch.optim.Adam(array.parameters()))  # type: ignore[arg-type]


def step_with_swapped_arguments() -> Any:
    array = fuse_two()
    return fusion.train_step(array, fusion.Adam(array), F.cross_entropy)  # type: ignore[arg-type]


def step_under(mode: Any) -> Any:
    with mode:
        return make_step()(X, Y)


def update_without_lr() -> Any:
    array = fuse_two()
    optimiser = fusion.Adam(array)
    del optimiser.param_groups[0]["lr"]
    array(X).sum().backward()
    return optimiser.step()


def read_item(out: Tensor, target: Tensor) -> float:
    return F.cross_entropy(out, target).item()


MISTAKES: dict[str, tuple[Callable[[], Any], type[WattlineError], str, str]] = {
    "an optimiser of PyTorch": (
        step_with_torch_adam,
        ConfigError,
        "the optimiser is torch.optim.adam.Adam, which updates all members as one",
        "wattline.fusion.Adam(array",
    ),
    "models compiled before": (
        lambda: fuse([torch.compile(build_mlp()), torch.compile(build_mlp())]),  # type: ignore[list-item]
        NotFusible,
        "member 0 was compiled by torch.compile, expected an ordinary model",
        "without torch.compile",
    ),
    "a group without lr": (
        update_without_lr,
        ConfigError,
        "a parameter group has no lr",
        'param_groups[i]["lr"]',
    ),
    "one model": (
        lambda: fuse(build_mlp()),  # type: ignore[arg-type]
        NotFusible,
        "got one model, a Sequential, expected a list of models",
        "fuse([model",
    ),
    "models on two devices": (
        lambda: fuse([build_mlp(), build_mlp().to("meta")]),
        NotFusible,
        "member 1 differs from member 0: 0.weight is on meta, expected cpu",
        "",
    ),
    "a list of models as array": (
        lambda: fusion.train_step([build_mlp()], F.cross_entropy, fusion.Adam(fuse_two())),  # type: ignore[arg-type]
        ConfigError,
        "array is a list, expected one from wattline.fusion.fuse",
        "fusion.fuse(models)",
    ),
    "a list of models to train": (
        lambda: fusion.Adam([build_mlp(), build_mlp()]),
        ConfigError,
        "got a list of 2 models, expected one array",
        "fusion.fuse(models)",
    ),
    "an ordinary model to train": (
        lambda: fusion.Adam(nn.Linear(4, 8)),  # its tensors look like eight members
        ConfigError,
        "got a Linear, an ordinary model, expected an array",
        "fusion.fuse(models)",
    ),
    "an optimiser of another array": (
        lambda: fusion.train_step(fuse_two(), F.cross_entropy, fusion.Adam(fuse_two())),
        ConfigError,
        "the optimiser has parameters that do not belong to the array",
        "fusion.Adam(array",
    ),
    "swapped arguments": (
        step_with_swapped_arguments,
        ConfigError,
        "the loss is of type Adam, expected a function of (output, target)",
        "train_step(array, F.cross_entropy, optimiser)",
    ),
    "the name of a loss": (
        lambda: make_step("cross_entropy"),
        ConfigError,
        "the loss is 'cross_entropy', expected a function",
        "F.cross_entropy",
    ),
    "the name of a type": (
        lambda: make_step(amp="bf16"),
        ConfigError,
        "amp is 'bf16', expected a type",
        "amp=torch.bfloat16",
    ),
    "a scaler of PyTorch": (
        lambda: make_step(amp=torch.float16, scaler=torch.amp.GradScaler("cpu")),
        ConfigError,
        "scaler is a GradScaler, which has one scale for all members",
        "fusion.Scaler(len(array))",
    ),
    "a scheduler of PyTorch": (
        lambda: torch.optim.lr_scheduler.StepLR(fusion.Adam(fuse_two()), 10),
        ConfigError,
        "a scheduler of torch.optim.lr_scheduler sets one learning rate",
        "fusion.Schedule(optimiser, StepLR, step_size=10)",
    ),
    "no_grad": (
        lambda: step_under(torch.no_grad()),
        ConfigError,
        "a training step is called under torch.no_grad()",
        "outside",
    ),
    "inference_mode": (
        lambda: step_under(torch.inference_mode()),
        ConfigError,
        "a training step is called under torch.inference_mode()",
        "outside",
    ),
    "a loss that returns a number": (
        lambda: make_step(read_item)(X, Y),
        NotFusible,
        "read_item returns ",
        "without .item()",
    ),
    "a loss that returns None": (
        lambda: make_step(lambda out, target: None)(X, Y),
        NotFusible,
        "returns None, expected a tensor",
        "return the tensor itself",
    ),
    "a loss that returns a tuple": (
        lambda: make_step(lambda out, target: (F.cross_entropy(out, target), out.sum()))(X, Y),
        NotFusible,
        "the loss returns a tuple, expected a tensor with one number",
        "",
    ),
    "a loss without a gradient": (
        lambda: make_step(lambda out, target: F.cross_entropy(out.detach(), target))(X, Y),
        NotFusible,
        "the loss does not depend on any parameter of the array",
        "without detach()",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_in_the_users_words(mistake: str) -> None:
    make, kind, message, hint = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        make()
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_errors_of_the_model_and_of_the_loss_keep_their_words() -> None:
    with pytest.raises(TypeError, match=r"Sequential.forward\(\) got an unexpected keyword argument 'x'"):
        make_step()(x=X)
    with pytest.raises(
        TypeError, match=r"cross_entropy\(\) missing 1 required positional argument: 'target'"
    ):
        make_step()(X)


def test_a_batch_on_another_device_or_of_another_type_is_noted() -> None:
    with pytest.raises(RuntimeError, match="device") as caught:
        make_step()(X.to("meta"), Y)
    assert caught.value.__notes__[-1].startswith("a tensor of the batch is on meta, the array on cpu")
    with pytest.raises(RuntimeError, match="dtype") as caught:
        make_step()(X.long(), Y)
    assert caught.value.__notes__[-1].startswith("the first tensor of the batch is of type torch.int64")


def test_a_hidden_tensor_is_announced_with_the_users_line() -> None:
    hidden = [torch.ones(3)].__getitem__  # held by C code, which no guard looks into
    step = make_step(lambda out, target: F.cross_entropy(out, target, hidden(0)))
    step(X, Y)
    with pytest.warns(
        fusion.FusionWarning, match=r"reads a tensor that no variable .*test_wrong_use.py, line"
    ):
        step(X, Y)
