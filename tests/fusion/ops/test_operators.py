"""Every operator and its options: an array trains like its members by themselves."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from support.fusion_equality import ALL_WAYS, STEPS, assert_same_training  # noqa: E402
from support.operator_cases import ALL_CASES, CONVOLUTIONS  # noqa: E402
from support.operator_cases.base import Case, own_rows  # noqa: E402
from wattline.fusion import FusionWarning, Ways  # noqa: E402


def assert_case_trains_alike(case: Case, **more: Any) -> None:
    with case.expected_warning():
        assert_same_training(case.make, *case.args, **{"steps": STEPS, **case.options, **more})


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_operators_on_a_batch_that_members_share(case: Case) -> None:
    assert_case_trains_alike(case)


def per_member_options(case: Case) -> dict[str, Any]:
    kwargs = case.options.get("kwargs")
    return {"members": [True] * len(case.args), **({} if kwargs is None else {"kwargs": kwargs})}


def supports_per_member_batches(case: Case) -> bool:
    return case.name != "bag of rows with offsets" and not any(isinstance(a, tuple) for a in case.args)


@pytest.mark.parametrize("case", list(filter(supports_per_member_batches, ALL_CASES)), ids=str)
def test_operators_on_a_batch_of_each_member(case: Case) -> None:
    expected_warning = (
        pytest.warns(FusionWarning, match="nested") if "nested" in case.name else case.expected_warning()
    )
    with expected_warning:
        assert_same_training(
            case.make, *own_rows(case.args), **{"steps": STEPS, **case.options, **per_member_options(case)}
        )


@pytest.mark.parametrize("ways", ALL_WAYS, ids=str)
@pytest.mark.parametrize(
    "name", ["conv1d kernel 1 twice", "conv2d oblong", "conv2d depthwise", "conv_transpose2d groups"]
)
def test_convolutions_in_every_way(name: str, ways: Ways) -> None:
    case = next(c for c in CONVOLUTIONS if c.name == name)
    assert_same_training(case.make, *own_rows(case.args), members=True, ways=ways, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("ways", ALL_WAYS, ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_every_convolution_in_every_way(case: Case, ways: Ways) -> None:
    assert_same_training(case.make, *case.args, ways=ways)
    assert_same_training(case.make, *own_rows(case.args), members=True, ways=ways)


def supports_single_precision(case: Case) -> bool:
    """Return whether the case runs in single precision; others use float64 inside, or warn."""
    inside = ("one-hot", "fractional", "scatter", "solve", "mask", "as numbers", "projections")
    return not any(word in case.name for word in inside)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(filter(supports_single_precision, ALL_CASES)), ids=str)
def test_operators_in_single_precision(case: Case) -> None:
    def single(t: Any) -> Any:
        return t.float() if isinstance(t, Tensor) and t.is_floating_point() else t

    kwargs = {k: single(v) for k, v in case.options.get("kwargs", {}).items()}
    with case.expected_warning():
        assert_same_training(
            case.make,
            *map(single, case.args),
            **{**case.options, "kwargs": kwargs},
            dtype=torch.float32,
            tolerance=2e-4,
        )
