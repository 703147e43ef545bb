from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.backend.engine.progress import Progress


def line(**words: Any) -> str:
    return json.dumps({"event": "progress", "at": time.time(), **words}) + "\n"


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    progress = Progress(path)
    assert not progress.look()
    path.write_text(line(fraction=0.25, at=time.time() - 10) + line(fraction=0.5, at=time.time())[:20])
    assert progress.look()
    assert (progress.fraction, progress.saved, progress.rate) == (0.25, 0.25, None)
    path.write_text(path.read_text()[:-20] + line(fraction=0.5, joules=7.0, epoch=3, batch=64))
    assert progress.look()
    assert progress.rate == pytest.approx(0.025, rel=0.01)
    assert (progress.joules, progress.epochs, progress.batch) == (7.0, 3, 64)
    assert not progress.look()


def test_what_a_session_says_is_known(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    said = (
        line(event="began", kind="a100", method="simulated", fraction=0.0),
        line(event="report", metrics={"accuracy": 0.5, "note": "no number"}),
        line(event="cap", cap_w=150.0),
        line(event="yielded", fraction=0.75),
        line(event="ended", how="reached"),
    )
    path.write_text("".join(said))
    progress = Progress(path)
    progress.look()
    assert (progress.kind, progress.metrics, progress.cap_w) == ("a100", {"accuracy": 0.5}, 150.0)
    assert (progress.saved, progress.ended) == (0.75, "reached")


@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), max_size=6))
def test_nothing_that_a_job_writes_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("job") / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    progress = Progress(path)
    progress.look()
    assert progress.fraction is None
