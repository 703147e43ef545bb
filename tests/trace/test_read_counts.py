"""Counts of rows are complete and read as one sentence."""

from __future__ import annotations

from pathlib import Path

from wattline.trace import read
from wattline.trace.read_counts import ReadCounts


def test_counts_add_up_and_are_one_sentence() -> None:
    one = ReadCounts(jobs=3, joined=1, repaired={"requeued": 1}, dropped={"without GPUs": 2})
    both = one + ReadCounts(jobs=1, dropped={"without GPUs": 1, "broken": 4})
    assert (both.rows, both.ignored) == (12, 3)
    assert str(both) == (
        "12 rows, 4 jobs; joined 1 row with an earlier run of the same job; repaired: requeued (1);"
        " left out 7 rows: broken (4), without GPUs (3)"
    )
    assert both.as_dict()["dropped"] == {"without GPUs": 3, "broken": 4}


def test_every_row_of_a_file_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,gpus,duration_s\n0,1,60\n0,0,60\n0,2,1\n")
    counts = read(path, skip_bad=True).counts
    assert (counts.rows, counts.jobs, dict(counts.dropped)) == (3, 2, {"broken": 1})
    assert read("synth:count=5").counts.rows == 5
