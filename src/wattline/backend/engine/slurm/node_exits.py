"""Exit files of the nodes of one attempt, and the exit of the whole attempt.

Imported by the batch step: standard library only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from collections.abc import Sequence
    from typing import Any


def node_exit_file(node: str) -> str:
    """Return the name of the exit file of one node."""
    return f"exit.{node}.json"


def node_claim_file(node: str) -> str:
    """Return the name of the claim file of one node."""
    return f"claim.{node}.json"


def read_node_exits(nodes: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return the exits of all nodes, of files in the current folder; None: one is missing."""
    exits = []
    for node in nodes:
        try:
            with open(node_exit_file(node), encoding="utf-8") as file:
                exits.append({**json.load(file), "node": node})
        except (OSError, ValueError):
            return None
    return exits


def merge_exits(
    exits: Sequence[dict[str, Any]], request: str | None, began_at: float, seconds: float
) -> dict[str, Any]:
    """Return the exit of an attempt: that of the node which failed first, and 0 if none did.

    A node that was stopped because another one failed reports a request to stop, which is not one of the
    attempt. *request* is that of the service or of Slurm; if it has reached only the nodes, none of them has
    failed by itself.
    """
    failed = [one for one in exits if one["code"] != 0]
    failed.sort(key=lambda one: (one["asked"] in ("stop", "kill"), one["ended_at"]))
    end = failed[0] if failed else exits[0]
    own = end["asked"]
    asked = own if own == "timeout" else request or ("stop" if own == "stop" else None)
    where = f"{end['node']}: " if end["message"] else ""
    return {
        "code": end["code"],
        "signal": end["signal"],
        "fired": end["fired"],
        "asked": asked,
        "oom": any(one["oom"] for one in exits),
        "message": f"{where}{end['message']}",
        "began_at": began_at,
        "ended_at": max(one["ended_at"] for one in exits),
        "seconds": seconds,
        "max_rss_bytes": max(one["max_rss_bytes"] for one in exits),
        "cpu_seconds": sum(one["cpu_seconds"] for one in exits),
        "log_lost_bytes": sum(one["log_lost_bytes"] for one in exits),
        "ranks": [rank for one in exits for rank in one["ranks"]],
    }
