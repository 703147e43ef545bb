from __future__ import annotations

import datetime
import os

import pytest
import torch

from support.training_programs import compare_ways

PART, PARTS = 25, 4
COUNT = PART * PARTS
SEED = int(
    os.environ.get("WATTLINE_FUZZ_SEED", datetime.date.today().toordinal() * COUNT)
)  # another one daily


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_train_as_alone_however_they_are_run(part: int) -> None:
    first = SEED + part * PART
    print(f"WATTLINE_FUZZ_SEED={SEED}, programs {first} to {first + PART - 1}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcomes = {seed: compare_ways(seed) for seed in range(first, first + PART)}
    finally:
        torch.set_num_threads(threads)
    wrong = {seed: (o.program.kinds, o.difference) for seed, o in outcomes.items() if o.difference}
    assert not wrong, f"WATTLINE_FUZZ_SEED={SEED}: {wrong}"
    guardable = [o for o in outcomes.values() if o.program.is_guardable]
    assert sum(o.is_compiled for o in guardable) >= 0.9 * len(guardable)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 11, 24, 116])  # programs that were wrong once
def test_programs_that_were_wrong_once_train_as_alone(seed: int) -> None:
    assert compare_ways(seed).difference == ""


@pytest.mark.slow
def test_random_programs_in_compiled_functions_train_as_alone() -> None:
    first = SEED
    print(f"WATTLINE_FUZZ_SEED={SEED}, programs {first} to {first + PART - 1}")
    outcomes = {seed: compare_ways(seed, backend="function") for seed in range(first, first + PART)}
    wrong = {seed: (o.program.kinds, o.difference) for seed, o in outcomes.items() if o.difference}
    assert not wrong, f"WATTLINE_FUZZ_SEED={SEED}: {wrong}"
    guardable = [o for o in outcomes.values() if o.program.is_guardable]
    assert sum(o.is_compiled for o in guardable) >= 0.9 * len(guardable)
