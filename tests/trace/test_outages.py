"""Recorded outages of nodes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wattline.errors import ConfigError, TraceError
from wattline.trace.outages import Outages, read_outages

EVENTS = (
    "Cluster|NodeName|TimeStart|TimeEnd|State|Reason|User\n"
    "wl||2026-01-01T00:00:00|Unknown||Cluster Registered TRES|\n"
    "wl|n10|2026-01-01T00:00:10|2026-01-01T01:00:00|DOWN*|Not responding|slurm(0)\n"
    "wl|n2|2026-01-01T00:00:20|Unknown|DOWN|broken|root(0)\n"
    "wl|n2|2026-01-01T00:00:05|2026-01-01T00:00:20|DRAIN|to be mended|root(0)\n"
)
ORIGIN_S = 1767225600.0  # 2026-01-01


def outages(folder: Path, text: str) -> Outages:
    path = folder / "outages.txt"
    path.write_text(text)
    return read_outages(str(path))


def test_events_of_sacctmgr_become_outages_and_drains(tmp_path: Path) -> None:
    found = outages(tmp_path, EVENTS)
    rows, how = found.match(["n1", "n2", "n10"], ORIGIN_S)
    assert rows == ((2, 10.0, 3600.0), (1, 20.0, math.inf))
    assert how == ""
    assert found.counts.dropped == {"of the whole cluster": 1}
    assert found.match_drains(["n1", "n2", "n10"], ORIGIN_S) == ((1, 5.0, 20.0),)


def test_a_drained_node_that_is_down_is_an_outage(tmp_path: Path) -> None:
    table = "node,down_s,up_s,state\na,1,2,DOWN+DRAIN\nb,1,2,IDLE+DRAIN\nc,1,2,DRAINING\n"
    assert outages(tmp_path, table).drained.tolist() == [False, True, True]


def test_a_plain_table_is_on_the_clock_of_the_trace(tmp_path: Path) -> None:
    found = outages(tmp_path, "node,down_s,up_s\na,10,20\nb,5,\n")
    assert found.match(["a", "b"], None)[0] == ((0, 10.0, 20.0), (1, 5.0, math.inf))
    assert not found.wall_clock


def test_nodes_with_other_names_are_matched_in_order_and_announced(tmp_path: Path) -> None:
    rows, how = outages(tmp_path, EVENTS).match(["v100-0", "v100-1", "v100-2"], ORIGIN_S)
    assert [row for row, _, _ in rows] == [1, 0]
    assert "n2, n10 stand for v100-0, v100-1, v100-2" in how


def test_nodes_that_cannot_be_matched_are_refused(tmp_path: Path) -> None:
    found = outages(tmp_path, EVENTS)
    with pytest.raises(ConfigError, match="outages name the node 'n10'"):
        found.match(["n1", "n2"], ORIGIN_S)
    with pytest.raises(ConfigError, match="expected nodes of the cluster: n1"):
        found.match(["n1"], ORIGIN_S)


def test_dates_need_a_trace_with_dates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the outages have dates"):
        outages(tmp_path, EVENTS).match(["n2", "n10"], None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node,down_s,up_s\na,10,5\n", "up_s is '5', expected not before down_s, '10'"),
        ("node,down_s,up_s\na,soon,5\n", "down_s is 'soon', expected a number of seconds or a date"),
        ("node,down_s\na,1\n", "no column is known to hold up; the columns are: node, down_s"),
        ("node,down_s,up_s\n", "no outages: nothing follows the header"),
    ],
)
def test_outages_that_cannot_be_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        outages(tmp_path, text)
    assert caught.value.problem == problem
