from __future__ import annotations

from pathlib import Path

import pytest

from wattline.errors import NotFound
from wattline.service.job_logs import LogTail, find_log


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


def test_new_lines_are_returned_once_and_when_complete(tmp_path: Path) -> None:
    path = attempt_log(tmp_path, "1", 1, b"one\ntw")
    log = LogTail(path)
    assert log.read_lines() == ["one"]
    assert log.offset == len("one\n")
    assert log.read_lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert log.read_lines() == ["two"]
    assert log.read_lines() == []
    assert log.read_lines(ended=True) == ["three"]


def test_a_rotated_log_is_read_on_from_its_start(tmp_path: Path) -> None:
    path = attempt_log(tmp_path, "1", 1, b"old\n")
    log = LogTail(path)
    assert log.read_lines() == ["old"]
    path.rename(path.with_name("rank0.log.1"))
    path.write_bytes(b"new\n")
    assert log.read_lines() == ["new"]
    assert b"".join(LogTail(path).read()) == b"old\nnew\n"


@pytest.mark.parametrize(
    ("tail", "text"), [(0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (9, b"one\ntwo\nthree\n")]
)
def test_the_last_lines_are_read_from_the_end(tmp_path: Path, tail: int, text: bytes) -> None:
    path = attempt_log(tmp_path, "1", 1, b"one\ntwo\nthree\n")
    assert b"".join(LogTail(path).read(tail)) == text
