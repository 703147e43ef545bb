"""Tables of jobs with any names for their columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.errors import ConfigError, TraceError
from wattline.trace import Trace, read
from wattline.trace.column_names import find_targets, split_unit


def trace(folder: Path, text: str, columns: str | None = None) -> Trace:
    path = folder / "jobs.any"
    path.write_text(text)
    return read(path, columns=columns)


def problem(folder: Path, text: str, columns: str | None = None) -> TraceError:
    with pytest.raises(TraceError) as caught:
        trace(folder, text, columns)
    return caught.value


def test_columns_are_guessed_from_their_names_and_shown(tmp_path: Path) -> None:
    found = trace(tmp_path, "job,arrival_s,service_sec,gpu_count,owner\na,5,60,2,ann\nb,0,70,1,bob\n")
    assert found.format == "table"
    assert str(found.columns) == "submit=arrival_s,duration=service_sec,gpus=gpu_count,id=job,user=owner"
    assert found.jobs.id.tolist() == ["b", "a"]
    assert found.jobs.submit_s.tolist() == [0.0, 5.0]
    assert found.jobs.user.words() == ["bob", "ann"]
    assert found.recorded is None


def test_start_and_end_as_dates_replace_a_duration(tmp_path: Path) -> None:
    header = "id\tcreatedAt\tstarted_at\tfinished_at\tgpus\tgpu_type\ttime_limit\n"
    text = (
        header + "a\t2024-01-01T00:00:00Z\t2024-01-01T00:01:00Z\t2024-01-01T00:03:00Z\t2\tTesla T4\t1:00:00\n"
    )
    text += "b\t2024-01-01T00:00:00Z\t\t\t2\t\t\nc\t2024-01-01T00:00:00Z\t2024-01-01T00:01:00Z\t\t2\t\t\n"
    found = trace(tmp_path, text)
    assert found.jobs.duration_s.tolist() == [120.0]
    assert found.jobs.gpu_kind.words() == ["t4"]
    assert found.recorded is not None
    assert (found.recorded.start_s[0], found.recorded.time_limit_s[0]) == (60.0, 3600.0)
    assert found.counts.dropped == {"never started": 1, "not ended": 1}
    assert found.origin_s == 1704067200.0


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("runtime", "90", 90.0),
        ("runtime_min", "90", 5400.0),
        ("Duration (h)", "1.5", 5400.0),
        ("elapsed_ms", "1500", 1.5),
        ("elapsed", "1-00:00:01", 86_401.0),
        ("run_time", "02:30", 150.0),
    ],
)
def test_durations_have_the_unit_of_their_name(tmp_path: Path, name: str, value: str, seconds: float) -> None:
    assert trace(tmp_path, f"submit,gpus,{name}\n0,1,{value}\n").jobs.duration_s.tolist() == [seconds]


@pytest.mark.parametrize(
    "submit", [("1700000000", "1700000060"), ("1700000000000", "1700000060000"), ("1.7e18", "1.70000006e18")]
)
def test_counts_since_1970_have_the_unit_of_their_size(tmp_path: Path, submit: tuple[str, str]) -> None:
    found = trace(tmp_path, f"submit,gpus,duration\n{submit[0]},1,5\n{submit[1]},1,5\n")
    assert found.jobs.submit_s == pytest.approx([0.0, 60.0])
    assert found.origin_s == pytest.approx(1.7e9)


def test_columns_can_be_named_with_units_and_products(tmp_path: Path) -> None:
    text = "a,b,c,d\n1,2,3,4\n"
    found = trace(tmp_path, text, "submit=a:min,duration=b:h,gpus=c*d")
    assert found.jobs.submit_s.tolist() == [60.0]
    assert found.jobs.duration_s.tolist() == [7200.0]
    assert found.jobs.gpus.tolist() == [12]
    assert str(found.columns) == "submit=a:min,duration=b:h,gpus=c*d"


def test_named_columns_also_read_our_own_csv_with_more_columns(tmp_path: Path) -> None:
    text = "submit_s,gpus,duration_s,colour\n0,1,60,red\n"
    assert "unknown column 'colour'" in problem(tmp_path, text).problem
    assert trace(tmp_path, text, "duration=duration_s").jobs.duration_s.tolist() == [60.0]


def test_json_lines_are_a_table(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "submit": 0, "resources": {"gpus": 2}, "runtime": 9.5, "user": None},
        {"id": 2, "submit": 5, "resources": {"gpus": 1}, "runtime": 8, "user": "ann"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    found = trace(tmp_path, text, "gpus=resources.gpus")
    assert found.jobs.gpus.tolist() == [2, 1]
    assert found.jobs.duration_s.tolist() == [9.5, 8.0]
    error = problem(tmp_path, text + "{\n", "gpus=resources.gpus")
    assert (error.line, error.problem) == (3, "is not a JSON object")


def test_a_share_of_a_gpu_is_a_whole_one_and_announced(tmp_path: Path) -> None:
    found = trace(tmp_path, "submit,num_gpus,runtime\n0,0.5,9\n0,2,9\n0,0,9\n")
    assert found.jobs.gpus.tolist() == [1, 2]
    assert found.counts.dropped == {"without GPUs": 1}
    assert list(found.counts.repaired.values()) == [1]


def test_ids_that_repeat_are_numbered_unless_the_user_named_them(tmp_path: Path) -> None:
    text = "job,submit,gpus,runtime\ntrain,0,1,9\ntrain,1,1,9\ntest,2,1,9\n"
    found = trace(tmp_path, text)
    assert found.jobs.id.tolist() == ["train", "train#2", "test"]
    assert found.counts.repaired == {"with an id that appears before, numbered": 1}
    assert "id 'train' is already used in line 2" in problem(tmp_path, text, "id=job").problem


def test_a_priority_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    text = "submit,gpus,runtime,priority\n0,1,9,5\n"
    assert trace(tmp_path, text).jobs.priority.tolist() == [0.0]
    assert trace(tmp_path, text, "priority=priority").jobs.priority.tolist() == [5.0]


def test_a_wait_gives_the_start(tmp_path: Path) -> None:
    found = trace(tmp_path, "submit,gpus,runtime,queue_time\n10,1,9,5\n").recorded
    assert found is not None
    assert (found.start_s.tolist(), found.end_s.tolist()) == ([15.0], [24.0])


def test_a_column_that_could_be_one_of_several_is_refused(tmp_path: Path) -> None:
    error = problem(tmp_path, "submit_time,arrival,duration,gpus\n1,2,3,4\n")
    assert "submit could be any of the columns submit_time, arrival" in error.problem
    assert error.hint.endswith("or choose one, as in --columns submit=submit_time")
    chosen = trace(tmp_path, "submit_time,arrival,duration,gpus\n1,2,3,4\n", "submit=arrival")
    assert chosen.jobs.submit_s.tolist() == [2.0]


def test_a_table_that_lacks_a_column_lists_those_it_has(tmp_path: Path) -> None:
    error = problem(tmp_path, "a,gpus,b\n1,2,3\n")
    assert "no column is known to hold submit, duration (or start and end)" in error.problem
    assert "the columns are: a, gpus, b" in error.problem
    assert "--columns submit=" in error.hint


def test_a_column_that_does_not_exist_names_the_nearest(tmp_path: Path) -> None:
    error = problem(tmp_path, "arrival,gpus,runtime\n1,2,3\n", "submit=arival")
    assert "there is no column 'arival'" in error.problem
    assert error.hint == "did you mean arrival?"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("submit", "cannot read 'submit', expected NAME=COLUMN"),
        ("sbmit=a", "unknown name 'sbmit', expected one of submit"),
        ("submit=a,submit=b", "submit is given twice"),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trace(tmp_path, "a,b,c\n1,2,3\n", columns)


def test_times_on_different_clocks_are_refused(tmp_path: Path) -> None:
    error = problem(tmp_path, "submit,start,gpus,duration\n0,1700000000,1,5\n")
    assert "count from another start" in error.problem


def test_columns_of_a_known_format_cannot_be_renamed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="columns cannot be named in the format swf"):
        read(path, "swf", columns="submit=a")


def test_a_name_says_what_a_column_holds() -> None:
    assert find_targets("Submit Time") == ("submit",)
    assert find_targets("submitTime_ms") == ("submit",)
    assert "gpus" in find_targets("NumGPUs")
    assert set(find_targets("gpu")) == {"gpus", "kind"}
    assert split_unit("duration_hours") == ("duration", 3600.0)
    assert find_targets("colour") == ()


def test_the_values_decide_between_number_and_kind(tmp_path: Path) -> None:
    found = trace(tmp_path, "submit,gpu,num_gpus,runtime\n0,A100,2,9\n")
    assert (found.jobs.gpu_kind.words(), found.jobs.gpus.tolist()) == (["a100"], [2])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.floats(0, 1e8), st.integers(1, 64), st.floats(0, 1e7)), min_size=1, max_size=8)
)
def test_numbers_read_back_exactly(tmp_path: Path, rows: list[tuple[float, int, float]]) -> None:
    text = "arrival,gpu_count,runtime\n" + "".join(f"{a!r},{g},{d!r}\n" for a, g, d in rows)
    jobs = trace(tmp_path, text).jobs
    order = np.argsort([row[0] for row in rows], kind="stable")
    assert jobs.submit_s.tolist() == [rows[i][0] for i in order]
    assert jobs.gpus.tolist() == [rows[i][1] for i in order]
    assert jobs.duration_s.tolist() == [rows[i][2] for i in order]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(
        st.lists(
            st.sampled_from(["", "0", "7", "nan", "x", "2024-01-01", "1-00:00:00", '"']),
            min_size=4,
            max_size=4,
        ),
        max_size=5,
    )
)
def test_no_cell_raises_anything_but_a_trace_error(tmp_path: Path, cells: list[list[str]]) -> None:
    text = "submit,gpus,duration,start\n" + "".join(",".join(row) + "\n" for row in cells)
    path = tmp_path / "jobs.any"
    path.write_text(text)
    try:
        read(path, skip_bad=True, columns="gpus=gpus")
    except TraceError:
        return
