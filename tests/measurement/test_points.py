"""Tables of measurements, in and out; and what no measurement can be."""

import gzip
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ProfileError
from wattline.measurement.points import COLUMNS, MEASURED, Profile, read_profile, write_profile
from wattline.measurement.settings import KNOBS

FULL = (
    "model,gpu,gpus,nodes,batch,cap_w,clock_mhz,cpus,mem_gib,read_mib_s,fuse,"
    "samples_s,watts,peak_gib,n,stderr"
)
VALUES = ("m", "a100", "4", "2", "256", "250", "1200", "24", "100", "60", "1", "900", "800", "12.5", "3", "9")
GOOD = dict(zip(FULL.split(","), VALUES, strict=True))


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(*rows: dict[str, str]) -> str:
    return "\n".join((FULL, *(",".join(row.values()) for row in rows), ""))


def numbers(profile: Profile) -> np.ndarray:
    return np.column_stack([getattr(profile, name) for name in (*KNOBS, *MEASURED)])


def test_a_row_is_read_as_it_is_written(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path / "p.csv", table(GOOD)))
    assert (profile.model.words(), profile.gpu.words()) == (["m"], ["a100"])
    assert numbers(profile).tolist() == [[4, 2, 256, 250, 1200, 24, 100, 60, 1, 900, 800, 12.5, 3, 9]]
    assert (profile.path.word(0), profile.line.tolist()) == (str(tmp_path / "p.csv"), [2])


def test_missing_settings_are_one_or_unknown(tmp_path: Path) -> None:
    profile = read_profile(
        written(tmp_path / "p.csv", "model,gpu,samples_s,batch\nm,a100,10,\nm,a100,20,8\n")
    )
    for name in ("gpus", "nodes", "fuse", "n"):
        assert getattr(profile, name).tolist() == [1, 1], name
    assert np.isnan(profile.batch[0])
    assert profile.batch[1] == 8
    for name in ("cap_w", "clock_mhz", "cpus", "mem_gib", "read_mib_s", "watts", "peak_gib", "stderr"):
        assert np.isnan(getattr(profile, name)).all(), name


def test_columns_come_in_any_order_and_spelling(tmp_path: Path) -> None:
    text = " Samples_S ,GPU kind,BATCH,model\n 10 , A100 ,8, ResNet-50 \n"
    profile = read_profile(written(tmp_path / "p.csv", text))
    assert (profile.model.word(0), profile.gpu.word(0)) == ("ResNet-50", "a100")
    assert (profile.samples_s[0], profile.batch[0]) == (10, 8)


def test_comments_and_blank_lines_are_skipped_and_still_counted(tmp_path: Path) -> None:
    text = "# from somewhere, with commas\n\nmodel,gpu,watts\n  # a remark\nm,t4,50\n,,\n \nm,t4,60\n"
    profile = read_profile(written(tmp_path / "p.csv", text))
    assert profile.watts.tolist() == [50, 60]
    assert profile.line.tolist() == [5, 8]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_any_end_of_line_will_do(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path / "p.csv", ending.join(("model,gpu,samples_s", "m,t4,5", "m,t4,6", "")))
    assert read_profile(path).samples_s.tolist() == [5, 6]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = written(tmp_path / "p.csv", b"\xef\xbb\xbfmodel,gpu,samples_s\nm,t4,5\n")
    assert read_profile(path).model.words() == ["m"]


def test_a_gzipped_table_reads_like_a_plain_one_whatever_its_name(tmp_path: Path) -> None:
    plain = read_profile(written(tmp_path / "p.csv", table(GOOD)))
    zipped = read_profile(written(tmp_path / "q.csv", gzip.compress(table(GOOD).encode())))
    assert np.array_equal(numbers(plain), numbers(zipped))


POSITIVE = ("batch", "cap_w", "clock_mhz", "cpus", "samples_s", "watts", "peak_gib")
WHOLE = ("gpus", "nodes", "fuse", "n")
NUMBERS = (*KNOBS, *MEASURED)
BAD = [
    *((name, "many", "expected a number") for name in NUMBERS),
    *((name, "nan", "expected a number, or nothing if not measured") for name in NUMBERS),
    *((name, "inf", "expected a finite number") for name in NUMBERS),
    *((name, "-inf", "expected a finite number") for name in NUMBERS),
    *((name, "1e999", "expected a finite number") for name in ("samples_s", "gpus")),
    *((name, value, "expected a number above 0") for name in POSITIVE for value in ("0", "-3")),
    *((name, "-3", "expected a number of at least 0") for name in ("mem_gib", "stderr")),
    *((name, v, "expected a whole number of at least 1") for name in WHOLE for v in ("0", "-3", "1.5")),
    ("nodes", "5", "expected at most the number of GPUs, 4"),
    ("model", " ", "expected a name"),
    ("gpu", "", "expected a name"),
]


@pytest.mark.parametrize(("column", "value", "expected"), BAD)
def test_a_bad_field_is_named_with_its_place_its_value_and_what_was_expected(
    tmp_path: Path, column: str, value: str, expected: str
) -> None:
    path = written(tmp_path / "p.csv", table(GOOD, GOOD, {**GOOD, column: value}, GOOD))
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    error = caught.value
    assert (error.path, error.line) == (str(path), 4)
    shown = "empty" if column in ("model", "gpu") else {"1e999": "inf"}.get(value, value)
    assert re.fullmatch(rf"{column} is '?{re.escape(shown)}'?, {re.escape(expected)}", error.problem)
    assert str(error) == f"{path}:4: {error.problem}"


def test_no_memory_at_all_and_no_spread_can_be_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "p.csv", table({**GOOD, "mem_gib": "0", "stderr": "0"}))
    profile = read_profile(path)
    assert (profile.mem_gib[0], profile.stderr[0]) == (0, 0)


@pytest.mark.parametrize(
    ("text", "line", "problem", "hint"),
    [
        ("gpu,samples_s\na100,1\n", 1, "has no column model, expected one", ""),
        ("model,samples_s\nm,1\n", 1, "has no column gpu, expected one", ""),
        ("model,gpu,gpus\nm,a100,1\n", 1, "has neither samples_s nor watts, expected at least one", ""),
        ("\nmodel,gpu,sample_s\nm,a100,1\n", 2, "unknown column 'sample_s', expected some of model, gpu",
         "did you mean samples_s?"),
        ("model,gpu,watts,gpu_kind\n", 1, "column gpu appears twice, expected each column once", ""),
        ("model,gpu,watts\nm,t4,5\nm,t4,5,6\n", 3, "has 4 fields, expected 3 as in the header", ""),
        ("model,gpu,watts\nm,t4\n", 2, "has 2 fields, expected 3 as in the header", ""),
        ("model,gpu,watts,samples_s\nm,t4,,\n", 2, "has neither samples_s nor watts, expected at least", ""),
        ('model,gpu,watts\nm,t4,"5\n', 2, "is not CSV: ", ""),
        ('model,gpu,watts\n"m"x,t4,5\n', 2, "is not CSV: ", ""),
        ("", None, "has no measurements, expected a header and at least one row", ""),
        ("# nothing\n\n", None, "has no measurements", ""),
        ("model,gpu,watts\n", None, "has no measurements, expected a header and at least one row", ""),
        (b"model,gpu,watts\nm\xfc,t4,5\n", None, "is not UTF-8 text: invalid start byte at byte 17", ""),
        (gzip.compress(b"model,gpu,watts\nm,t4,5\n", mtime=0)[:-9], None, "cannot be read: ", ""),
        (b"\x1f\x8bnot gzip at all", None, "cannot be read: ", ""),
    ],
)  # fmt: skip
def test_a_broken_table_says_where_and_why(
    tmp_path: Path, text: str | bytes, line: int | None, problem: str, hint: str
) -> None:
    path = written(tmp_path / "p.csv", text)
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert caught.value.path == str(path)
    assert caught.value.line == line
    assert caught.value.problem.startswith(problem)
    assert caught.value.hint == hint


def test_a_table_that_is_not_there_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ProfileError, match=r"cannot be read: (No such file|Is a directory)") as caught:
            read_profile(path)
        assert caught.value.path == str(path)


def test_what_is_wrong_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ProfileError("p.csv", 3, "is odd", "look again")))
    assert (str(error), error.path, error.line, error.hint) == ("p.csv:3: is odd", "p.csv", 3, "look again")


def several(values: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.one_of(st.just(math.nan), values)


SIZES = st.floats(1e-6, 1e15)
NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=9).filter(
    lambda name: not name.startswith("#")
)
GPUS = st.integers(1, 64)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "model": NAMES,
            "gpu": st.sampled_from(("a100", "V100", "my, own")),
            **dict.fromkeys(("batch", "cap_w", "clock_mhz", "cpus", "read_mib_s", "watts"), several(SIZES)),
            "peak_gib": several(SIZES),
            "samples_s": SIZES,
            "gpus": GPUS.map(lambda g: 2.0 * g),
            "nodes": st.sampled_from((1.0, 2.0)),
            "fuse": GPUS.map(float),
            "n": GPUS.map(float),
            "mem_gib": several(st.floats(0, 1e4)),
            "stderr": several(st.floats(0, 1e4)),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(ROWS)
def test_what_is_written_is_read_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    profile = Profile.of(**{name: [row[name] for row in rows] for name in rows[0]})
    path = tmp_path_factory.mktemp("written") / "p.csv"
    write_profile(profile, path)
    again = read_profile(path)
    assert again.model.words() == profile.model.words()
    assert again.gpu.words() == profile.gpu.words()
    assert np.array_equal(numbers(again), numbers(profile), equal_nan=True)


def test_a_model_that_looks_like_a_comment_is_not_lost(tmp_path: Path) -> None:
    profile = Profile.of(model=["m", "#1"], gpu="t4", samples_s=[1.0, 2.0])
    write_profile(profile, tmp_path / "p.csv")
    assert read_profile(tmp_path / "p.csv").model.words() == ["m", "#1"]


def test_unmeasured_columns_are_not_written(tmp_path: Path) -> None:
    write_profile(Profile.of(model="m", gpu="t4", watts=[50, 60.5], batch=[8, 16]), tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == (
        "model,gpu,gpus,nodes,batch,fuse,watts,n\nm,t4,1,1,8,1,50,1\nm,t4,1,1,16,1,60.5,1\n"
    )


def test_columns_and_numbers_are_stretched_to_one_length() -> None:
    profile = Profile.of(model=["a", "b", "a"], gpu="T4", batch=8, samples_s=[1, 2, 3])
    assert profile.model.words() == ["a", "b", "a"]
    assert profile.gpu.words() == ["t4", "t4", "t4"]
    assert profile.batch.tolist() == [8, 8, 8]
    assert profile.line.tolist() == [1, 2, 3]
    assert profile.settings.batch.tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    ("columns", "line", "problem"),
    [
        ({"samples_s": [1.0, -2.0]}, 2, "samples_s is -2, expected a number above 0"),
        ({"samples_s": [1.0, math.nan]}, 2, "has neither samples_s nor watts"),
        ({"samples_s": 1.0, "nodes": 2}, 1, "nodes is 2, expected at most the number of GPUs, 1"),
        ({"samples_s": 1.0, "nodez": 2}, None, "nodez is not a column, expected some of model, gpu, gpus"),
        ({"samples_s": math.inf}, 1, "samples_s is inf, expected a finite number"),
    ],
)
def test_a_profile_from_columns_is_checked_as_one_from_a_file(
    columns: dict[str, object], line: int | None, problem: str
) -> None:
    with pytest.raises(ProfileError) as caught:
        Profile.of(model="m", gpu="t4", **columns)
    assert caught.value.line == line
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize("columns", [{"samples_s": [1.0, 2.0, 3.0], "batch": [8, 16]}, {"samples_s": []}])
def test_columns_of_different_lengths_are_refused(columns: dict[str, list[float]]) -> None:
    with pytest.raises(ProfileError, match=r"(batch|samples_s) has (2|0) "):
        Profile.of(model="m", gpu="t4", **columns)
    with pytest.raises(ProfileError, match="model has 2 "):
        Profile.of(model=["m", "m"], gpu="t4", samples_s=[1.0, 2.0, 3.0])


def test_an_error_of_a_row_names_its_file_and_line(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path / "p.csv", table(GOOD, GOOD)))
    assert str(profile.error(1, "is odd")) == f"{tmp_path / 'p.csv'}:3: is odd"


def test_the_columns_of_the_file_are_these() -> None:
    assert FULL.split(",") == list(COLUMNS)
