"""The integer program of Sia against all choices of tiny ones."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.policy.sia.program import GroupProgram, solve_program


@st.composite
def programs(draw: st.DrawFn) -> GroupProgram:
    """Generate up to three groups with up to three options each on two kinds of GPU."""
    groups = draw(st.integers(1, 3))
    rows = [
        (group, draw(st.integers(0, 1)), draw(st.sampled_from((1, 2, 4))), draw(st.integers(1, 40)) / 10)
        for group in range(groups)
        for _ in range(draw(st.integers(1, 3)))
    ]
    group, kind, gpus, saved = zip(*rows, strict=True)
    return GroupProgram(
        members=np.array(draw(st.lists(st.integers(1, 3), min_size=groups, max_size=groups))),
        room=np.array([draw(st.integers(0, 6)), draw(st.integers(0, 6))]),
        group=np.array(group),
        kind=np.array(kind),
        gpus=np.array(gpus),
        saved=np.array(saved, dtype=np.float64),
    )


def is_feasible(program: GroupProgram, count: np.ndarray) -> bool:
    members = np.bincount(program.group, count, len(program.members))
    used = np.bincount(program.kind, count * program.gpus, len(program.room))
    return bool((members <= program.members).all() and (used <= program.room).all())


@pytest.mark.slow
@given(program=programs())
@settings(deadline=None, max_examples=60)
def test_the_choice_saves_as_much_as_the_best_of_all(program: GroupProgram) -> None:
    choice = solve_program(program, gap=0.0, node_limit=1000)
    assert is_feasible(program, choice.jobs)
    most = program.members[program.group]
    every = (np.array(counts) for counts in itertools.product(*(range(m + 1) for m in most.tolist())))
    best = max(float(program.saved @ count) for count in every if is_feasible(program, count))
    assert math.isclose(float(program.saved @ choice.jobs), best, abs_tol=1e-6)
    assert choice.gap <= 1e-6


def test_a_search_that_is_cut_short_states_its_gap() -> None:
    draw = np.random.default_rng(0)
    groups, options = 60, 8
    program = GroupProgram(
        members=draw.integers(1, 4, groups),
        room=np.array([37, 53]),
        group=np.repeat(np.arange(groups), options),
        kind=draw.integers(0, 2, groups * options),
        gpus=draw.integers(3, 17, groups * options),
        saved=draw.random(groups * options) + 1.0,
    )
    short = solve_program(program, gap=0.0, node_limit=1)
    long = solve_program(program, gap=0.0, node_limit=100_000)
    assert is_feasible(program, short.jobs)
    reached, best = program.saved @ short.jobs, program.saved @ long.jobs
    assert long.gap <= 1e-6
    assert reached <= best + 1e-9
    assert best <= reached * (1 + short.gap) + 1e-6
