"""Pages of logs: together they have every line once, as a plain program over the whole text finds them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.backend.engine.local.log_writer import LogWriter
from wattline.service import log_pages
from wattline.service.job_logs import LogPosition
from wattline.service.log_lines import last_state
from wattline.service.log_pages import CUT, read_log_page


def read_all(path: Path, count: int, search: str = "") -> tuple[list[bytes], bytes | None]:
    """Return all finished lines by pages of *count* from the end, and the unfinished one."""
    page = read_log_page(path, None, count, search)
    found = [line.text for line in page.lines]
    while page.before is not None:
        unfinished = page.unfinished
        page = read_log_page(path, page.before, count, search)
        assert page.unfinished is None
        assert len(page.lines) <= count
        found = [line.text for line in page.lines] + found
        if unfinished is not None:
            page = log_pages.LogPage(page.lines, unfinished, page.before, page.end)
    return found, page.unfinished.text if page.unfinished else None


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff\xfe", b"B" * 700, b"word " * 400]), max_size=60),
    st.integers(1, 7),
    st.sampled_from(["", "A", "b", "word a"]),
    st.integers(0, 10**6),
)
def test_pages_have_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], count: int, search: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "rank0.log"
    writer, chance, text = LogWriter(str(path), 3000, 1000), random.Random(seed), b"".join(parts)
    at = 0
    while at < len(text):
        size = chance.randint(1, 900)
        writer.write(text[at : at + size])
        at += size
    writer.close()
    *lines, last = (last_state(line) for line in text.split(b"\n"))
    wanted = search.lower().encode()
    found, unfinished = read_all(path, count, search)
    assert found == [line for line in lines if wanted in line.lower()]
    assert unfinished == (last if last and wanted in last.lower() else None)


def test_positions_stay_while_the_log_grows_and_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(100)))
    page = read_log_page(path, None, 10)
    assert page.lines[0].text == b"line 90"
    path.rename(tmp_path / "rank0.log.1")
    path.write_bytes(b"later\n")
    earlier = read_log_page(path, page.before, 10)
    assert [line.text for line in earlier.lines] == [b"line %d" % n for n in range(80, 90)]
    (tmp_path / "rank0.log.1").unlink()
    assert read_log_page(path, page.before, 10).is_lost
    assert [line.text for line in read_log_page(path, None, 10).lines] == [b"later"]


def test_the_end_of_the_page_is_where_a_stream_continues(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"one\ntwo\nstep 1\rstep 2")
    page = read_log_page(path, None, 10)
    assert page.end == LogPosition(path.stat().st_ino, len("one\ntwo\n"))
    assert page.unfinished is not None
    assert page.unfinished.text == b"step 2"
    assert read_log_page(tmp_path / "rank1.log", None, 10) == log_pages.LogPage([])


def test_a_bar_that_is_drawn_for_days_is_one_line_and_a_long_line_is_cut_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"start\n" + b"".join(b"\rstep %d" % n for n in range(100_000)) + b"\n" + b"x" * 200_000)
    page = read_log_page(path, None, 10)
    assert [line.text for line in page.lines] == [b"start", b"step 99999"]
    assert page.unfinished is not None
    assert page.unfinished.text == CUT + b"x" * (1 << 16)
    assert page.before is None


def test_a_search_stops_after_some_bytes_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "_MOST_BYTES", 1 << 17)
    path = tmp_path / "rank0.log"
    path.write_bytes(b"needle\n" + b"hay\n" * 100_000 + b"y" * 300_000 + b"\n")
    first = read_log_page(path, None, 10, "needle")
    assert first.lines == []
    assert first.before is not None
    assert read_all(path, 10, "NEEDLE") == ([b"needle"], None)
