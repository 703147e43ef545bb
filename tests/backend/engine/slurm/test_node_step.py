"""Ranks and exits of the nodes of one attempt."""

from __future__ import annotations

from typing import Any

import pytest

from wattline.backend.engine.slurm.node_exits import merge_exits
from wattline.backend.engine.slurm.node_step import build_ranks

NODES = [["n1", "10.0.0.1", 1], ["n2", "10.0.0.2", 3]]


def launch(ranks_per: str) -> dict[str, Any]:
    return {"nodes": NODES, "ranks_per": ranks_per}


def test_ranks_are_numbered_from_the_node_of_the_batch_step() -> None:
    order = ["n2", "n1"]
    ranks, first = build_ranks(launch("gpu"), order, "n2", "29400")
    assert first == 0
    assert [(rank["RANK"], rank["LOCAL_RANK"]) for rank in ranks] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"4"}
    ((last,), first) = build_ranks(launch("gpu"), order, "n1", "29400")
    assert first == 3
    assert (last["RANK"], last["LOCAL_RANK"], last["LOCAL_WORLD_SIZE"]) == ("3", "0", "1")
    assert (last["MASTER_ADDR"], last["MASTER_PORT"]) == ("10.0.0.2", "29400")


def test_a_launcher_runs_once_per_node_with_the_flags_of_torchrun() -> None:
    ((rank,), first) = build_ranks(launch("node"), ["n1", "n2"], "n2", "29400")
    assert (first, rank["RANK"], rank["WORLD_SIZE"]) == (1, "1", "2")
    assert {name: value for name, value in rank.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "3",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29400",
    }


def test_a_single_process_is_on_the_first_node_only() -> None:
    assert len(build_ranks(launch("job"), ["n1", "n2"], "n1", "1")[0]) == 1
    assert build_ranks(launch("job"), ["n1", "n2"], "n2", "1")[0] == []


def make_exit(
    node: str, code: int, asked: str | None = None, at: float = 1.0, message: str = ""
) -> dict[str, Any]:
    return {
        "node": node,
        "code": code,
        "signal": None,
        "fired": None,
        "asked": asked,
        "oom": False,
        "message": message,
        "ended_at": at,
        "max_rss_bytes": 10,
        "cpu_seconds": 1.5,
        "log_lost_bytes": 0,
        "ranks": [{"code": code, "signal": None}],
    }


def test_the_exit_of_an_attempt_is_that_of_the_node_that_failed_first() -> None:
    exits = [make_exit("n1", 143, "stop", 3.0), make_exit("n2", 7, None, 2.0, "no such file")]
    merged = merge_exits(exits, None, 0.0, 3.0)
    assert (merged["code"], merged["asked"], merged["message"]) == (7, None, "n2: no such file")
    assert (merged["cpu_seconds"], len(merged["ranks"])) == (3.0, 2)


@pytest.mark.parametrize(
    ("codes", "asked", "request_", "expected"),
    [
        ((0, 0), None, None, (0, None)),
        ((75, 75), "stop", "stop", (75, "stop")),
        ((143, 143), "timeout", None, (143, "timeout")),
        ((0, 75), "stop", "stop", (75, "stop")),
        ((143, 143), "stop", None, (143, "stop")),  # Slurm's signal has reached the nodes only
    ],
)
def test_requests_of_the_service_and_time_limits_are_kept(
    codes: tuple[int, int], asked: str | None, request_: str | None, expected: tuple[int, str | None]
) -> None:
    merged = merge_exits(
        [make_exit(f"n{n}", code, asked) for n, code in enumerate(codes)], request_, 0.0, 1.0
    )
    assert (merged["code"], merged["asked"]) == expected
