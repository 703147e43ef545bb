from collections.abc import Sequence
from typing import Any

import pytest

from support.ruled_simulations import RuledRun, simulate_ruled
from wattline.core.reasons import Reason
from wattline.rules.dependencies import AFTER, AFTERANY, AFTEROK, parse_dependency
from wattline.rules.rule_set import RuleSet
from wattline.trace.submit_line import find_dependency_option


def simulate(dependency: Sequence[str], **more: Any) -> RuledRun:
    """Simulate jobs of 100 s on one GPU each, submitted every second, with room for all."""
    count = len(dependency)
    jobs: dict[str, Any] = {
        "id": [str(10 + n) for n in range(count)],
        "submit_s": list(range(count)),
        "gpus": [1] * count,
        "duration_s": [100.0] * count,
    }
    recorded = {name: more.pop(name) for name in ("name", "array") if name in more}
    return simulate_ruled(RuleSet(), "1xv100:8", jobs | more, dependency=dependency, **recorded)


def test_the_argument_of_sbatch_is_parsed() -> None:
    one = parse_dependency("afterok:12:13,after:14+5,afterany:15_*(unfulfilled)")
    assert [item.kind for item in one.items] == [AFTEROK, AFTEROK, AFTER, AFTERANY]
    assert [item.job for item in one.items] == ["12", "13", "14", "15"]
    assert one.items[2].delay_s == 300.0
    assert not one.any_of
    assert parse_dependency("afterok:1?afterok:2").any_of
    assert parse_dependency("singleton").singleton
    assert parse_dependency("expand:3").unknown == ("expand:3",)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sbatch --dependency=afterok:12 run.sh", "afterok:12"),
        ("sbatch -d afterany:12:13 run.sh", "afterany:12:13"),
        ("sbatch -dsingleton run.sh", "singleton"),
        ("sbatch --dependency afterok:1,afternotok:2 a.sh", "afterok:1,afternotok:2"),
        ("sbatch run.sh -d data/train", ""),
        ("sbatch run.sh", ""),
    ],
)
def test_the_option_is_found_in_a_command_line(line: str, found: str) -> None:
    assert find_dependency_option(line) == found


def test_a_job_starts_when_those_that_it_depends_on_have_ended() -> None:
    run = simulate(["", "afterany:10", "afterok:10:11", ""])
    assert run.start_s == [0.0, 100.0, 200.0, 3.0]
    assert run.reasons[1] == [Reason.DEPENDENCY]
    assert run.reasons[3] == []


def test_success_and_failure_are_as_recorded() -> None:
    run = simulate(
        ["", "afterok:10", "afternotok:10", ""], status=["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    )
    assert run.start_s == [0.0, float("inf"), 100.0, 3.0]
    assert run.reasons[1] == [Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER]


def test_any_of_several_is_enough() -> None:
    run = simulate(
        ["", "", "afterok:10?afterok:11"],
        status=["FAILED", "COMPLETED", "COMPLETED"],
        duration_s=[50, 80, 10],
    )
    assert run.start_s[2] == 81.0


def test_after_waits_for_the_start_and_minutes_more() -> None:
    run = simulate(["", "after:10", "after:10+1"])
    assert run.start_s == [0.0, 1.0, 60.0]


def test_singletons_of_one_user_and_name_run_one_after_the_other() -> None:
    run = simulate(
        ["singleton"] * 4, name=["train", "train", "other", "train"], user=["ann", "ann", "ann", "bob"]
    )
    assert run.start_s == [0.0, 100.0, 2.0, 3.0]


def test_a_job_waits_for_all_tasks_of_an_array() -> None:
    run = simulate(["", "", "afterok:7"], array=["7", "7", ""], duration_s=[10, 50, 5])
    assert run.start_s[2] == 51.0


def test_jobs_that_are_not_in_the_trace_count_as_met_and_are_counted() -> None:
    run = simulate(["", "afterok:99"])
    assert run.start_s == [0.0, 1.0]
    assert run.bound is not None
    assert any("1 dependencies name jobs that are not in the trace" in note for note in run.bound.notes)


def test_a_trace_without_dependencies_binds_nothing() -> None:
    assert simulate(["", ""]).bound is None
