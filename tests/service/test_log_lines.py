from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wattline.service.log_lines import PIECE_LIMIT_BYTES, LineCollector, last_state


def test_a_progress_bar_leaves_its_last_state() -> None:
    lines = LineCollector()
    assert lines.feed(b"start\n\r 10 %") == [b"start\n"]
    assert lines.state == b" 10 %"
    assert lines.feed(b"\r 50 %\r100 %") == []
    assert lines.state == b"100 %"
    assert lines.unfinished_bytes == len("\r 10 %\r 50 %\r100 %")
    assert lines.feed(b"\nend") == [b"100 %\n"]
    assert lines.finish() == [b"end\n"]
    assert lines.finish() == []


def test_line_ends_of_windows_are_line_ends() -> None:
    assert LineCollector().feed(b"one\r\ntwo\r\n\r\n") == [b"one\n", b"two\n", b"\n"]
    assert last_state(b"50 %\r100 %\r\r") == b"100 %"


def test_a_very_long_line_comes_in_pieces_without_newlines_of_their_own() -> None:
    lines, block = LineCollector(), b"x" * 100_000
    pieces = [piece for _ in range(30) for piece in lines.feed(block)] + lines.feed(b"\n")
    assert b"".join(pieces) == 30 * block + b"\n"
    assert max(map(len, pieces)) <= PIECE_LIMIT_BYTES + len(block)


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_the_lines_do_not_depend_on_the_blocks(parts: list[bytes], size: int) -> None:
    text = b"\n".join(parts)
    expected = [last_state(line) + b"\n" for line in text.split(b"\n")[:-1]]
    lines = LineCollector()
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    assert [line for block in blocks for line in lines.feed(block)] == expected
    assert lines.state == last_state(text.split(b"\n")[-1])
