from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.backend.engine.local.log_writer import LogWriter
from wattline.errors import NotFound
from wattline.service.job_logs import LOST, LogPosition, LogReader, find_log


def attempt_log(root: Path, job: str, attempt: int, text: bytes) -> Path:
    folder = root / "jobs" / job / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    (folder / "rank0.log").write_bytes(text)
    return folder / "rank0.log"


def test_the_latest_attempt_is_found_by_number(tmp_path: Path) -> None:
    assert find_log(tmp_path, "1", None, 0) is None
    second = attempt_log(tmp_path, "1", 2, b"")
    tenth = attempt_log(tmp_path, "1", 10, b"")
    assert find_log(tmp_path, "1", None, 0) == tenth
    assert find_log(tmp_path, "1", 2, 0) == second
    with pytest.raises(NotFound, match="job 1 has no attempt 3"):
        find_log(tmp_path, "1", 3, 0)
    with pytest.raises(NotFound, match="job 1 has no rank 4"):
        find_log(tmp_path, "1", None, 4)


def read_all(reader: LogReader) -> bytes:
    return b"".join(iter(reader.read_block, b""))


def test_new_output_is_returned_once(tmp_path: Path) -> None:
    path = attempt_log(tmp_path, "1", 1, b"one\ntw")
    log = LogReader(path)
    assert log.read_block() == b"one\ntw"
    assert log.read_block() == b""
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert log.read_block() == b"o\nthree"
    again = LogReader(path)
    again.position = LogPosition(path.stat().st_ino, len("one\n"))
    assert read_all(again) == b"two\nthree"


def test_what_was_written_before_a_rotation_is_not_lost(tmp_path: Path) -> None:
    path = attempt_log(tmp_path, "1", 1, b"old\n")
    log = LogReader(path)
    assert log.read_block() == b"old\n"
    with path.open("ab") as file:
        file.write(b"last of the old\n")
    path.rename(path.with_name("rank0.log.1"))
    path.write_bytes(b"new\n")
    assert read_all(log) == b"last of the old\nnew\n"
    assert b"".join(LogReader(path).read()) == b"old\nlast of the old\nnew\n"


def test_output_that_was_rotated_away_is_announced(tmp_path: Path) -> None:
    path = attempt_log(tmp_path, "1", 1, b"old\n")
    log = LogReader(path)
    log.position = LogPosition(path.stat().st_ino, 2)
    path.write_bytes(b"")  # as if the inode was used again
    assert log.read_block() == LOST
    path.unlink()
    assert log.read_block() == b""


@pytest.mark.parametrize(
    ("tail", "text"), [(0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, b"one\ntwo\nthree\n")]
)
def test_the_last_lines_are_read_from_the_end(tmp_path: Path, tail: int, text: bytes) -> None:
    path = attempt_log(tmp_path, "1", 1, b"one\ntwo\nthree\n")
    assert b"".join(LogReader(path).read(tail)) == text


def test_the_newest_of_many_lines_are_read(tmp_path: Path) -> None:
    lines = [b"step %d of a long training\n" % n for n in range(20_000)]
    path = attempt_log(tmp_path, "1", 1, b"".join(lines) + b"no newline")
    for tail in (1, 358, 5_000, 20_001, 30_000):
        assert b"".join(LogReader(path).read(tail)) == b"".join([*lines, b"no newline"][-tail:])


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff\xfe", b"word " * 400]), max_size=60),
    st.integers(0, 12),
    st.integers(1, 3),
    st.integers(0, 10**6),
)
def test_the_last_lines_are_those_of_the_rotated_files_together(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], tail: int, keep: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "rank0.log"
    writer, chance, follower, followed = LogWriter(str(path), 4000, keep), random.Random(seed), None, b""
    follower = LogReader(path)
    for part in parts:
        writer.write(part)
        if chance.random() < 0.3 or keep == 1:
            followed += read_all(follower)
    followed += read_all(follower)
    writer.close()
    kept = b"".join(LogReader(path).read())
    assert b"".join(parts).endswith(kept)
    lines = kept.removesuffix(b"\n").split(b"\n") if kept else []
    end = b"\n" if kept.endswith(b"\n") else b""
    expected = b"\n".join(lines[-tail:]) + end if tail and lines else b""
    assert b"".join(LogReader(path).read(tail)) == expected
    if sum(map(len, parts)) <= 4000:  # nothing was rotated away
        assert followed == b"".join(parts)
