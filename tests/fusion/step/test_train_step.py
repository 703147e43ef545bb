"""One training step of all members, compiled or not, equals a step of each member by itself."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from wattline.errors import ConfigError, NotFusible  # noqa: E402
from wattline.fusion import SGD, Adam, FusionWarning, Scaler, Schedule, fuse, train_step  # noqa: E402
from wattline.fusion.lowering.rules import Ways  # noqa: E402
from wattline.fusion.step.execution_mode import ExecutionMode  # noqa: E402

RATES = [0.01, 0.02, 0.05, 0.1]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2),
        nn.Flatten(),
        nn.Linear(24, 3),
    ).double()


def batch(seed: int, size: int = 6, shape: tuple[int, ...] = (5,)) -> tuple[Any, Any]:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *shape, generator=chance, dtype=torch.float64)
    return x, torch.randint(0, 3, (size,), generator=chance)


class Twins:
    """Members that are trained by themselves, beside the array."""

    def __init__(self, models: list[nn.Module], rates: list[float]) -> None:
        self.models = [copy.deepcopy(m) for m in models]
        self.optimisers = [
            torch.optim.Adam(m.parameters(), lr=lr) for m, lr in zip(self.models, rates, strict=True)
        ]

    def step(self, x: Any, y: Any, clip: float | None = None) -> Any:
        losses = []
        for model, optimiser in zip(self.models, self.optimisers, strict=True):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def assert_equal(self, array: Any) -> None:
        for index, model in enumerate(self.models):
            for name, value in array.member_state_dict(index).items():
                torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-10, atol=1e-10)


def made(build: Any = net, **options: Any) -> tuple[Any, Any, Twins]:
    torch.manual_seed(0)
    models = [build() for _ in RATES]
    array = fuse(models)
    return array, train_step(array, F.cross_entropy, Adam(array, lr=RATES), **options), Twins(models, RATES)


@pytest.mark.parametrize("width", [None, 1, 2, 3])
def test_a_step_equals_that_of_each_member_at_any_width(width: int | None) -> None:
    array, step, twins = made(width=width, compile=False)
    for seed in range(5):
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-10, atol=1e-10)
    twins.assert_equal(array)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [ExecutionMode(None, Ways(), True), ExecutionMode(2, Ways(), True), ExecutionMode(None, None, True)],
)
def test_a_compiled_step_is_that_of_each_member(way: ExecutionMode) -> None:
    array, step, twins = made()
    step.way = way
    for seed in range(20):
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-10, atol=1e-10)
    twins.assert_equal(array)
    assert step.compile_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_compiled_step_of_images_is_that_of_each_member(last: bool) -> None:
    array, step, twins = made(images)
    step.way = ExecutionMode(2, Ways(last=last), True)
    for seed in range(20):
        x, y = batch(seed, shape=(2, 8, 8))
        torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-9, atol=1e-9)
    twins.assert_equal(array)


class Points(nn.Module):
    """Convolutions of kernel 1 with batch norm, and a maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv1d(3, 6, 1, bias=False), nn.BatchNorm1d(6), nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        return self.fc(torch.cat([torch.max(y, 2)[0], y.min(dim=-1, keepdim=True).values.squeeze(-1)], 1))


@pytest.mark.slow
def test_a_compiled_step_of_point_clouds_is_that_of_each_member() -> None:
    array, step, twins = made(lambda: Points().double())
    for seed in range(20):
        x, y = batch(seed, shape=(3, 7))
        torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-9, atol=1e-9)
    twins.assert_equal(array)


@pytest.mark.slow
def test_compiled_dropout_keeps_the_right_share_of_each_member() -> None:
    torch.manual_seed(0)
    array = fuse([nn.Sequential(nn.Dropout(0.25), nn.Linear(1, 1, bias=False)) for _ in range(3)])
    step = train_step(array, lambda y: (y / y.detach().abs().max()).abs().mean(), SGD(array, lr=0.0))
    x = torch.ones(20_000, 1)
    kept = torch.stack([step(x) for _ in range(4)][1:])  # share of nonzero entries
    assert ((kept - 0.75).abs() < 0.02).all()
    assert len(set(kept.flatten().tolist())) == 9  # every member draws its own mask in every step


@pytest.mark.slow
def test_another_rate_needs_no_compiling() -> None:
    array, step, twins = made(width=None)
    schedule = Schedule(
        step.optimiser, torch.optim.lr_scheduler.StepLR, step_size=1, gamma=[0.5, 0.9, 1.0, 0.1]
    )
    theirs = [
        torch.optim.lr_scheduler.StepLR(o, 1, g)
        for o, g in zip(twins.optimisers, [0.5, 0.9, 1.0, 0.1], strict=True)
    ]
    for seed in range(2):
        step(*batch(seed))
        twins.step(*batch(seed))
    spent_s = step.compile_s
    for seed in range(2, 6):
        schedule.step()
        for one in theirs:
            one.step()
        step(*batch(seed))
        twins.step(*batch(seed))
    twins.assert_equal(array)
    assert step.compile_s == spent_s


@pytest.mark.slow
def test_a_batch_of_another_size_runs_uncompiled_first() -> None:
    array, step, twins = made()
    for seed, size in enumerate([6, 6, 6, 4, 6, 4]):
        x, y = batch(seed, size)
        spent_s = step.compile_s
        step(x, y)
        twins.step(x, y)
        assert size == 6 or step.compile_s == spent_s
    twins.assert_equal(array)


@pytest.mark.slow
def test_a_compiled_step_continues_from_a_loaded_state() -> None:
    array, step, twins = made()
    for seed in range(3):
        step(*batch(seed))
        twins.step(*batch(seed))
    step.optimiser.load_state_dict(copy.deepcopy(step.optimiser.state_dict()))
    array.load_state_dict(copy.deepcopy(array.state_dict()))
    for seed in range(3, 6):
        step(*batch(seed))
        twins.step(*batch(seed))
    twins.assert_equal(array)


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_settings_changed_between_steps_take_effect_at_once(compile: bool) -> None:
    array, step, twins = made(compile=compile)
    for seed in range(6):
        if seed == 3:  # frozen statistics, another momentum, and a layer that is not trained any more
            array.body[1].eval()
            array.body[3].bias.requires_grad_(False)
            for model in twins.models:
                model[1].eval()
                model[3].bias.requires_grad_(False)
                model[3].bias.grad = None
        x, y = batch(seed)
        torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-10, atol=1e-10)
    twins.assert_equal(array)


def test_members_leave_and_join_between_steps() -> None:
    array, step, twins = made(compile=False)
    for seed in range(3):
        step(*batch(seed))
        twins.step(*batch(seed))
    array.drop([1, 3])
    for index in (3, 1):
        del twins.models[index], twins.optimisers[index]
    new = net()
    array.add([new], lr=0.07)
    late = Twins([new], [0.07])
    twins.models += late.models
    twins.optimisers += late.optimisers
    for seed in range(3, 6):
        step(*batch(seed))
        twins.step(*batch(seed))
    assert len(array) == 3
    twins.assert_equal(array)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_members_gradient_is_clipped_by_itself(compile: bool) -> None:
    array, step, twins = made(clip_norm=0.05, compile=compile)
    for seed in range(4):
        step(*batch(seed))
        twins.step(*batch(seed), clip=0.05)
    twins.assert_equal(array)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_scaler_skips_only_members_that_overflow(compile: bool) -> None:
    torch.manual_seed(0)
    array = fuse([net() for _ in RATES])
    scaler = Scaler(4, init_scale=[1.0, 1e308, 1.0, 1.0])  # 1e308 in float32 is infinite
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), scaler=scaler, compile=compile)
    before = [array.member_state_dict(i) for i in range(4)]
    for seed in range(3):
        step(*batch(seed))
    for index in range(4):
        same = torch.equal(array.member_state_dict(index)["0.weight"], before[index]["0.weight"])
        assert same == (index == 1)


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bfloat16_trains_nearly_as_well(compile: bool) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(3)]
    array = fuse(models)
    step = train_step(array, F.cross_entropy, Adam(array, lr=0.01), amp=torch.bfloat16, compile=compile)
    x, y = batch(0, 30)
    losses = [step(x.float(), y) for _ in range(30)]
    assert (losses[-1] < 0.8 * losses[0]).all()


@pytest.mark.slow
def test_without_a_compiler_training_continues_with_a_warning() -> None:
    from torch._inductor import config

    array, step, twins = made()
    step(*batch(0))
    twins.step(*batch(0))
    # PyTorch's own patch: pytest's deletes the original attribute on exit, which loses its settings.
    broken = config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True})
    with broken, pytest.warns(FusionWarning, match="cannot be compiled"):
        step(*batch(1))
    twins.step(*batch(1))
    twins.assert_equal(array)
    assert not step.way.compiled


class Depends(nn.Module):
    """A module with data-dependent control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        y = self.fc(x)
        return y * 2 if y.sum() > 0 else y


class Counts(nn.Module):
    """Its forward counts calls in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.fc(x) * (1 + self.calls % 2)


@pytest.mark.parametrize("kind", [Depends, Counts])
def test_a_forward_with_side_effects_is_not_compiled(kind: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        array, step, twins = made(lambda: kind().double())
        for seed in range(4):
            x, y = batch(seed)
            torch.testing.assert_close(step(x, y), twins.step(x, y), rtol=1e-10, atol=1e-10)
    twins.assert_equal(array)
    assert any("cannot be compiled" in str(w.message) for w in told)


@pytest.mark.slow
def test_auto_takes_the_fastest_mode_that_it_has_tried() -> None:
    array, step, twins = made(width="auto", compile=False)
    for seed in range(4):
        step(*batch(seed))
        twins.step(*batch(seed))
    twins.assert_equal(array)  # timing modes has changed nothing
    assert step.way == min(step.tried, key=lambda t: t.step_s).way
    assert any(t.way.ways is None for t in step.tried)


@pytest.mark.slow
def test_auto_compiles_only_where_enough_steps_are_to_come() -> None:
    _, few, _ = made(width="auto", steps=10)
    _, many, _ = made(width="auto", steps=10_000_000)
    for step in (few, many):
        for seed in range(3):
            step(*batch(seed))
    assert few.compile_s == 0
    assert not few.way.compiled
    assert many.compile_s > 0
    assert many.way.compiled


def test_each_member_may_have_its_own_batch() -> None:
    array, step, twins = made(compile=False)
    for seed in range(3):
        xs, ys = zip(*(batch(10 * seed + i) for i in range(4)), strict=True)
        step(torch.stack(xs), torch.stack(ys), members=True)
        for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
            one = Twins.__new__(Twins)
            one.models, one.optimisers = [twins.models[index]], [twins.optimisers[index]]
            one.step(x, y)
    twins.assert_equal(array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"width": "wide"}, "width is 'wide', expected a number of members or 'auto'"),
        ({"amp": torch.float16}, "float16 loses small gradients"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**options)


def test_an_optimiser_of_another_array_is_refused() -> None:
    one, other = fuse([net(), net()]), fuse([net(), net()])
    with pytest.raises(ConfigError, match="do not belong to the array"):
        train_step(one, F.cross_entropy, Adam(other))


def test_a_batch_for_another_number_of_members_is_refused() -> None:
    _, step, _ = made(compile=False)
    with pytest.raises(NotFusible, match="expected 4 members in front"):
        step(torch.zeros(3, 6, 5), torch.zeros(3, 6), members=True)


def test_members_that_leave_and_join_keep_their_own_norms() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(5, 3).double() for _ in range(3)]
    array = fuse(models)
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), clip_norm=[0.1, 0.2, 0.3], compile=False)
    held = [step(*batch(0))]
    array.drop([1])
    held.append(step(*batch(1)))
    assert step._clip == [0.1, 0.3]
    array.add([nn.Linear(5, 3).double()])
    held.append(step(*batch(2)))
    assert step._clip == [0.1, 0.3, 0.3]


def test_members_leave_while_a_graph_of_an_earlier_step_is_alive() -> None:
    torch.manual_seed(0)
    array = fuse([nn.Linear(5, 3).double() for _ in range(3)])
    optimiser = SGD(array, lr=0.1)
    x, y = batch(0)
    held = []
    for gone in ([], [0], []):
        if gone:
            array.drop(gone)
        losses = array.loss(F.cross_entropy, array(x), y)
        losses.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        held.append(losses)
    assert [len(losses) for losses in held] == [3, 2, 2]
