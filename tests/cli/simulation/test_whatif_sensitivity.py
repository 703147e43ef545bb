"""Pessimistic values of assumptions."""

import argparse

import pytest

from wattline.cli.simulation import simulate
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_sensitivity import count_checks, pessimise
from wattline.cli.simulation.whatif_study import split_policies
from wattline.reports.assumptions import Assumption


@pytest.fixture
def case() -> SimulationCase:
    """A case with the defaults of the command line."""
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    words = ["--trace", "synth:count=5", "--cluster", "1xv100:8", "--assume", "scaling=linear"]
    return SimulationCase.from_arguments(parser.parse_args(words), "las")


def test_a_pessimistic_value_changes_only_its_assumption(case: SimulationCase) -> None:
    assert (
        pessimise(case, Assumption("scaling", "linear", "", "request")).read_assumed().scaling.kind
        == "request"
    )
    assert pessimise(case, Assumption("watts", "kind", "", "limit")).read_assumed().watts == "limit"
    assert pessimise(case, Assumption("checkpoints", "always", "", "1h")).checkpoint_s == 3600
    assert pessimise(case, Assumption("span", "1", "", "1.2")).span_penalty == 1.2
    assert pessimise(case, Assumption("durations", "limit", "", "unknown")).durations == "unknown"


def test_slow_restarts_leave_every_attempt_time_to_progress(case: SimulationCase) -> None:
    slow = pessimise(case, Assumption("restart", "30s", "", "300s"))
    assert (slow.restart_s, slow.min_runtime_s) == (300, 600)


def test_two_runs_check_one_assumption() -> None:
    assert count_checks([Assumption("a", "", "", "x"), Assumption("b", "", "")]) == 2


def test_policies_are_separated_by_commas_unless_they_have_knobs() -> None:
    assert split_policies(["fifo,las", "srtf"]) == ["fifo", "las", "srtf"]
    assert split_policies(["las:quantum=10m", "tiresias:promote=2,quantum=60s"]) == [
        "las:quantum=10m",
        "tiresias:promote=2,quantum=60s",
    ]
    assert len(split_policies(["all", "fifo"])) == 14
