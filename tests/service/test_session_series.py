"""Curves from the event files of a job, which may hold anything."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from wattline.service.session_series import read_series, thin


def write(root: Path, attempt: int, *lines: object) -> None:
    folder = root / "jobs" / "1" / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "events.jsonl").write_text(text + "\n")


def test_curves_of_all_attempts_are_joined(tmp_path: Path) -> None:
    write(
        tmp_path, 1,
        {"at": 1.0, "event": "began", "method": "nvml"},
        {"at": 2.0, "event": "report", "fraction": 0.25, "joules": 5.0, "metrics": {"loss": 2}},
        {"at": 3.0, "event": "cap", "cap_w": 250},
    )  # fmt: skip
    write(
        tmp_path, 2, {"at": 9.0, "event": "report", "fraction": 0.5, "joules": 9.0, "metrics": {"loss": 1.5}}
    )
    series = read_series(tmp_path, "1")
    assert series.progress == [(2.0, 0.25), (9.0, 0.5)]
    assert series.energy_j == [(2.0, 5.0), (9.0, 9.0)]
    assert series.metrics == {"loss": [(2.0, 2.0), (9.0, 1.5)]}
    assert [(number, cap.cap_w, cap.origin) for number, cap in series.caps] == [(1, 250.0, "session")]
    assert (series.method, series.is_complete) == ("nvml", True)


def test_lines_that_are_no_events_are_skipped(tmp_path: Path) -> None:
    write(
        tmp_path, 1, "not json", "[1, 2]", "{}", '{"at": "x", "event": "report"}',
        '{"at": NaN, "event": "report"}',
        {"at": 1.0, "event": "report", "fraction": 7, "joules": -1, "metrics": {"a": "b", "c": True}},
        {"at": 2.0, "event": 5}, {"at": 3.0, "event": "report", "metrics": [1]},
    )  # fmt: skip
    series = read_series(tmp_path, "1")
    assert (series.progress, series.energy_j, series.metrics, series.caps) == ([], [], {}, [])


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "1" / "attempts" / "1"
    folder.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text('{"at": 1, "event": "report", "fraction": 0.5}\n')
    (folder / "events.jsonl").symlink_to(secret)
    assert read_series(tmp_path, "1").progress == []


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(4, 50))
def test_a_thinned_curve_keeps_ends_extremes_and_order(values: list[float], most: int) -> None:
    points = [(float(at), value) for at, value in enumerate(values)]
    kept = thin(points, most)
    assert len(kept) <= max(most, 0) or len(points) <= most
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert max(value for _, value in kept) == max(values)
        assert min(value for _, value in kept) == min(values)
