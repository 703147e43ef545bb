"""What happens when a file is not what it should be."""

from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.errors import ConfigError, TraceError
from wattline.trace import FORMATS, read, read_trace

HEADER = "job_id,vc,submit_time,submit_s,gpus,duration_s\n"
GOOD = "a,vc1,2017-09-04 10:30:41,0,1,60\n"


def written(folder: Path, data: str | bytes) -> Path:
    path = folder / "some.file"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def problem(folder: Path, data: str | bytes, format: str | None = None) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(written(folder, data), format)
    return caught.value


def philly_row(name: str, **fields: object) -> str:
    row = {"job_id": name, "vc": "v", "submit_time": "", "submit_s": 0, "gpus": 1, "duration_s": 60} | fields
    return ",".join(str(value) for value in row.values()) + "\n"


def tar_of(**members: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def test_an_empty_file_is_a_trace_error(tmp_path: Path) -> None:
    assert problem(tmp_path, "").problem == "the file is empty"
    assert problem(tmp_path, gzip.compress(b"")).problem == "the file is empty"
    assert problem(tmp_path, "\n \n").problem == "the file is empty"


def test_a_header_without_rows_holds_no_jobs(tmp_path: Path) -> None:
    for header in (HEADER, "submit_s,gpus,duration_s", "name,time,application,num_replicas,batch_size\n\n"):
        assert "no jobs" in problem(tmp_path, header).problem


def test_a_truncated_gz_is_a_trace_error(tmp_path: Path) -> None:
    packed = gzip.compress((HEADER + GOOD * 50).encode())
    for end in (3, 12, len(packed) // 2, len(packed) - 1):
        assert "gzip" in problem(tmp_path, packed[:end]).problem


def test_a_damaged_gz_is_a_trace_error(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((HEADER + GOOD).encode()))
    packed[20] ^= 0xFF
    assert "gzip" in problem(tmp_path, bytes(packed)).problem


def test_a_broken_tar_is_a_trace_error(tmp_path: Path) -> None:
    whole = tar_of(a__csv=HEADER + GOOD, b__csv=HEADER + GOOD)
    assert "tar" in problem(tmp_path, whole[:600]).problem
    torn = bytearray(whole)
    torn[1024 + 148] ^= 0x55  # the checksum in the header of the second member
    assert "tar" in problem(tmp_path, bytes(torn)).problem


def test_a_directory_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory"):
        read(tmp_path)


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv: cannot be read"):
        read(tmp_path / "nowhere.csv")


def test_binary_junk_is_a_trace_error(tmp_path: Path) -> None:
    assert "binary" in problem(tmp_path, bytes(range(256)) * 20).problem
    assert "none of the formats" in problem(tmp_path, b"\xfe\xed\xfa\xce" * 99).problem


def test_foreign_packing_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path, b"PK\x03\x04rest").problem == "is a zip archive"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), format=st.sampled_from([None, *FORMATS]))
def test_no_bytes_raise_anything_but_a_trace_error(tmp_path: Path, data: bytes, format: str | None) -> None:
    for skip_bad in (False, True):
        with suppress(TraceError):
            read(written(tmp_path, data), format, skip_bad)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(
        st.lists(st.sampled_from(["0", "-1", "7", "2.5", "nan", "inf", "1e400", "", '"', "x"]), max_size=6),
        max_size=5,
    )
)
def test_no_row_raises_anything_but_a_trace_error(tmp_path: Path, text: list[list[str]]) -> None:
    rows = "".join(",".join(row) + "\n" for row in text)
    try:
        trace = read(written(tmp_path, "id,submit_s,gpus,duration_s,priority,batch\n" + rows), skip_bad=True)
        assert len(trace.jobs) + len(trace.skipped) <= len(text)
    except TraceError:
        pass


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(st.sampled_from(["0", "-1", "7", "2.5", "nan", "", "x"]), min_size=6, max_size=6))
)
def test_no_bound_that_a_job_sets_itself_raises_anything_but_a_trace_error(
    tmp_path: Path, rows: list[list[str]]
) -> None:
    lines = "".join(f"0,{','.join(row)},60\n" for row in rows)
    header = "submit_s,gpus,batch,min_gpus,max_gpus,max_batch,noise,duration_s\n"
    with suppress(TraceError):
        trace = read(written(tmp_path, header + lines), skip_bad=True)
        assert len(trace.jobs) + len(trace.skipped) == len(rows)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min_gpus", "5", "at most gpus, or nothing"),
        ("min_gpus", "-1", "a whole number of GPUs, at least 0"),
        ("min_gpus", "one", "a whole number of GPUs, at least 0"),
        ("max_gpus", "3", "at least gpus, or nothing"),
        ("max_gpus", "4.5", "a whole number of GPUs, at least 0"),
        ("max_batch", "255", "at least batch, or nothing"),
        ("max_batch", "-256", "a whole number of samples, at least 0"),
        ("noise", "-0.5", "a number of samples, at least 0"),
        ("noise", "inf", "a number of samples, at least 0"),
    ],
)
def test_bounds_that_no_job_can_have_are_found_with_their_line(
    tmp_path: Path, name: str, value: str, expected: str
) -> None:
    header = f"submit_s,gpus,duration_s,batch,{name}\n"
    error = problem(tmp_path, header + f"0,4,60,256,\n0,4,60,256,{value}\n")
    assert (error.line, error.problem) == (3, f"{name} is {value!r}, expected {expected}")


def test_bounds_that_are_empty_or_0_are_none(tmp_path: Path) -> None:
    header = "submit_s,gpus,duration_s,min_gpus,max_gpus,max_batch,noise\n"
    jobs = read_trace(written(tmp_path, header + "0,4,60,,,,\n0,4,60,0,0,0,0\n0,4,60,4,4,8,1e3\n"))
    assert jobs.min_gpus.tolist() == [0, 0, 4]
    assert jobs.max_gpus.tolist() == [0, 0, 4]
    assert jobs.max_batch.tolist() == [0, 0, 8]
    assert jobs.noise.tolist() == [0.0, 0.0, 1000.0]


def test_bytes_that_are_not_utf8_are_found_with_their_line(tmp_path: Path) -> None:
    data = (HEADER + GOOD).encode() + b"b,caf\xe9,,1,1,60\n" + philly_row("c").encode()
    error = problem(tmp_path, data)
    assert (error.line, error.problem) == (3, "byte 0xe9 is not UTF-8 text")
    trace = read(written(tmp_path, data), skip_bad=True)
    assert trace.jobs.id.tolist() == ["a", "c"]
    assert [e.line for e in trace.skipped] == [3]


def test_a_row_of_wrong_length_is_found_with_its_line(tmp_path: Path) -> None:
    error = problem(tmp_path, HEADER + GOOD + "b,vc1,60\n")
    assert error.line == 3
    assert error.problem.startswith("has 3 fields, expected 6 (job_id, vc,")


@pytest.mark.parametrize("value", ["abc", "-1", "nan", "inf", "-inf", ""])
def test_a_duration_that_is_none_is_found_with_its_line(tmp_path: Path, value: str) -> None:
    error = problem(tmp_path, HEADER + GOOD + philly_row("b", duration_s=value))
    assert str(error).endswith(f":3: duration_s is {value!r}, expected a number of seconds, at least 0")


@pytest.mark.parametrize("value", ["0", "-2", "1.5", "nan", "1e300", "two"])
def test_gpus_that_no_job_can_have_are_found_with_their_line(tmp_path: Path, value: str) -> None:
    error = problem(tmp_path, HEADER + GOOD + philly_row("b", gpus=value))
    assert error.line == 3
    assert error.problem == f"gpus is {value!r}, expected a whole number of GPUs, at least 1"


def test_a_doubled_id_names_both_lines(tmp_path: Path) -> None:
    data = HEADER + GOOD + philly_row("b") + GOOD
    error = problem(tmp_path, data)
    assert (error.line, error.problem) == (4, "id 'a' is already used in line 2, expected unique ids")
    trace = read(written(tmp_path, data), skip_bad=True)
    assert trace.jobs.id.tolist() == ["a", "b"]
    assert len(trace.skipped) == 1


def test_the_first_bad_line_is_the_one_raised_and_all_are_skipped(tmp_path: Path) -> None:
    rows = [philly_row(f"j{i}", gpus=0 if i in (30, 1500) else 1, submit_s=i) for i in range(3000)]
    rows[20] = philly_row("j20", duration_s="x")
    assert problem(tmp_path, HEADER + "".join(rows)).line == 22
    trace = read(written(tmp_path, HEADER + "".join(rows)), skip_bad=True)
    assert [error.line for error in trace.skipped] == [22, 32, 1502]
    assert len(trace.jobs) == 2997


def test_a_file_of_bad_rows_only_raises_even_when_they_are_skipped(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":2: gpus is '0'") as caught:
        read(written(tmp_path, HEADER + philly_row("a", gpus=0) + philly_row("b", gpus=0)), skip_bad=True)
    assert caught.value.hint == "all 2 rows are bad"


def test_line_ends_marks_and_quotes_do_not_matter(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path, HEADER + GOOD + philly_row("b", vc="x y")))
    dressed = "\ufeff" + (HEADER + GOOD + philly_row('"b"', vc='"x y"')).replace("\n", "\r\n")
    jobs = read_trace(written(tmp_path, dressed))
    assert jobs.id.tolist() == plain.id.tolist()
    assert jobs.team.words() == plain.team.words()


def test_lines_count_on_through_blank_lines_and_quoted_line_ends(tmp_path: Path) -> None:
    data = HEADER + "\n" + philly_row('"two\nlines"') + "\n\n" + philly_row("c", gpus=0)
    assert problem(tmp_path, data).line == 7


def test_an_enormous_field_is_a_trace_error(tmp_path: Path) -> None:
    error = problem(tmp_path, HEADER + GOOD + '"' + "x" * 200_000)
    assert error.line == 3
    assert "cannot be split" in error.problem


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path, "a,b\n1,2\n", "philly-csv").problem == "the column job_id is missing"


def test_a_doubled_column_is_named(tmp_path: Path) -> None:
    assert "'gpus' twice" in problem(tmp_path, "submit_s,gpus,gpus,duration_s\n0,1,1,1\n").problem


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'philly'") as caught:
        read(written(tmp_path, HEADER + GOOD), "phily")
    assert all(name in caught.value.hint for name in FORMATS)


def test_text_in_no_format_lists_the_formats(tmp_path: Path) -> None:
    error = problem(tmp_path, "Dear diary,\ntoday I trained a model.\n")
    assert all(name in error.problem for name in FORMATS)


def test_rows_out_of_order_are_sorted(tmp_path: Path) -> None:
    data = HEADER + philly_row("late", submit_s=9) + philly_row("early", submit_s=3)
    jobs = read_trace(written(tmp_path, data))
    assert jobs.id.tolist() == ["early", "late"]
    assert jobs.submit_s.tolist() == [3.0, 9.0]


def test_members_of_a_tar_are_joined_and_what_is_no_trace_is_passed_over(tmp_path: Path) -> None:
    raw = "job_id,submission_time,duration,num_gpu\n0,{},60,1\n"
    data = tar_of(LICENSE="Do what you like.", b__csv=raw.format(1), a__csv=raw.format(2))
    path = written(tmp_path, gzip.compress(data))
    jobs = read_trace(path)
    assert jobs.id.tolist() == ["b/0", "a/0"]
    assert jobs.team.words() == ["b", "a"]
    assert read_trace(f"{path}#a.csv").id.tolist() == ["0"]
    with pytest.raises(TraceError, match=r"no member 'c\.csv'") as caught:
        read(f"{path}#c.csv")
    assert "a.csv" in caught.value.hint


def test_an_error_in_a_tar_names_the_member(tmp_path: Path) -> None:
    error = problem(tmp_path, tar_of(a__csv=HEADER + GOOD, b__csv=HEADER + philly_row("b", gpus=0)))
    assert error.path.endswith("#b.csv")
    assert error.line == 2


def test_a_tar_of_several_formats_wants_a_choice(tmp_path: Path) -> None:
    data = tar_of(a__csv=HEADER + GOOD, b__csv="submit_s,gpus,duration_s\n0,1,60\n")
    assert "several formats: csv and philly-csv" in problem(tmp_path, data).problem
    assert read(written(tmp_path, data), "csv").jobs.id.tolist() == ["b/0"]


def test_a_tar_without_traces_is_a_trace_error(tmp_path: Path) -> None:
    assert "no member of the tar" in problem(tmp_path, tar_of(LICENSE="text")).problem


@pytest.mark.slow
def test_a_million_jobs_are_read(tmp_path: Path) -> None:
    rows = "".join(f"j{i},v{i % 9},,{i},{1 + i % 8},{i % 977}\n" for i in range(1_000_000))
    jobs = read_trace(written(tmp_path, HEADER + rows))
    assert len(jobs) == 1_000_000
    assert jobs.id[-1] == "j999999"
    assert len(jobs.team.names) == 9
