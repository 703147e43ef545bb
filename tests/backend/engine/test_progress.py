from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.backend.engine.progress import ProgressReader


def line(**values: Any) -> str:
    return json.dumps({"event": "progress", "at": time.time(), **values}) + "\n"


def test_new_lines_are_read_at_each_call(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    progress = ProgressReader(path)
    assert not progress.read()
    path.write_text(line(fraction=0.25, at=time.time() - 10) + line(fraction=0.5, at=time.time())[:20])
    assert progress.read()
    assert (progress.fraction, progress.saved, progress.rate) == (0.25, 0.25, None)
    path.write_text(path.read_text()[:-20] + line(fraction=0.5, joules=7.0, epoch=3, batch=64))
    assert progress.read()
    assert progress.rate == pytest.approx(0.025, rel=0.01)
    assert (progress.joules, progress.epochs, progress.batch) == (7.0, 3, 64)
    assert not progress.read()


def test_events_of_a_session_set_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = (
        line(event="began", kind="a100", method="simulated", fraction=0.0),
        line(event="report", metrics={"accuracy": 0.5, "note": "no number"}),
        line(event="cap", cap_w=150.0),
        line(event="yielded", fraction=0.75),
        line(event="ended", how="reached"),
    )
    path.write_text("".join(lines))
    progress = ProgressReader(path)
    progress.read()
    assert (progress.kind, progress.metrics, progress.cap_w) == ("a100", {"accuracy": 0.5}, 150.0)
    assert (progress.saved, progress.ended) == (0.75, "reached")


@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), max_size=6))
def test_no_content_of_the_file_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("job") / "events.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    progress = ProgressReader(path)
    progress.read()
    assert progress.fraction is None


def test_saved_progress_is_that_of_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [
        line(event="began", resumed=True),
        line(event="resumed", fraction=0.2),
        line(fraction=0.25),
        line(event="saved", fraction=0.5),
        line(fraction=0.7),
    ]
    path.write_text("".join(lines))
    progress = ProgressReader(path)
    progress.read()
    assert (progress.fraction, progress.saved, progress.saved_count) == (0.7, 0.5, 1)


def test_the_first_value_of_a_run_without_a_checkpoint_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(event="began", resumed=False) + line(fraction=0.1) + line(fraction=0.3))
    progress = ProgressReader(path)
    progress.read()
    assert (progress.fraction, progress.saved) == (0.3, 0.0)


def test_a_long_file_of_a_job_that_has_ended_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(note="x" * 1000) * 3000 + line(event="saved", fraction=0.9))
    progress = ProgressReader(path)
    progress.read_to_end()
    assert progress.saved == 0.9
