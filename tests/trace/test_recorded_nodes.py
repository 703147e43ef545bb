"""The number of nodes of each job in an export of sacct."""

from pathlib import Path

import pytest

from wattline.trace import read
from wattline.trace.recorded_nodes import count_recorded_nodes

TIMES = "2026-11-17T18:00:00|2026-11-17T18:00:01|2026-11-17T18:00:09|8"
HEADER = "JobIDRaw|Submit|Start|End|ElapsedRaw|AllocTRES"


@pytest.mark.parametrize(
    ("columns", "values", "count"),
    [
        ("", "", 2),
        ("|NNodes", "|3", 3),
        ("|AllocNodes", "|3", 3),
        ("|NNodes|NodeList", "|3|n[1-4]", 4),
        ("|NNodes|NodeList", "|3|", 3),
    ],
)
def test_names_go_before_numbers_and_these_before_resources(
    tmp_path: Path, columns: str, values: str, count: int
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"{HEADER}{columns}\n1|{TIMES}|cpu=1,gres/gpu=4,node=2{values}\n")
    recorded = read(str(path), "sacct").recorded
    assert recorded is not None
    assert count_recorded_nodes(recorded).tolist() == [count]


def test_a_count_of_other_resources_is_no_count_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"{HEADER}\n1|{TIMES}|cpu=1,gres/gpu=4,license/subnode=2\n")
    recorded = read(str(path), "sacct").recorded
    assert recorded is not None
    assert count_recorded_nodes(recorded).tolist() == [0]
