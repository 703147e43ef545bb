"""Run log as JSON lines: the writer, and the format that the reader shares.

The first line is the header, then follows one line per round. Lines use words and job numbers, so that `grep`
and `jq` work. Equal runs write equal bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from wattline.core.actions import ACTION_WORDS, POWER_OFF, RETUNE, START, STOP, Actions
from wattline.core.events import (
    ARRIVED,
    CAPACITY,
    EVENT_WORDS,
    METERED,
    NODE_BACK,
    NODE_LOST,
    PROTECTED,
    RAN,
    READY,
    Event,
    Events,
    build_events,
    list_events,
)
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.core.reasons import REASONS
from wattline.core.resource_prices import ResourcePrices
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints, Labels
from wattline.loop.runlog import Log

FORMAT = 3

ACTION_SETTINGS = ("cap_w", "batch", *HOST_RESOURCES)
"""Keys of the last columns of actions, from `ACTION_CAP_W` on."""

DEFAULT_JOB_VALUES: dict[str, object] = {
    "step_s": 1.0,
    **dict.fromkeys(("whole", "always_fuse"), False),
    "deadline_s": float("inf"),
    **dict.fromkeys(("priority", "late_per_h"), 0.0),
    **dict.fromkeys(("batch", "min_gpus", "max_gpus", "max_batch"), 0),
    **dict.fromkeys(("noise", "cpus", "mem_gib"), 0.0),
    **dict.fromkeys(("team", "user", "model", "gpu_kind", "key", "fuse", "status"), ""),
    "preemptible": 1,
    **dict.fromkeys(("checkpoint_s", "min_runtime_s"), 0.0),
}
"""Values that an arrival's line leaves out, because most jobs have them."""


def write_log(log: Log, path: str | Path) -> None:
    """Write *log* as JSON lines, compressed when the name ends in `.gz`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw:
        if path.suffix == ".gz":
            # No name and no time in the gzip header: the same run gives the same bytes.
            with (
                gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
                io.TextIOWrapper(packed, "utf-8") as text,
            ):
                text.writelines(_format_lines(log))
        else:
            with io.TextIOWrapper(raw, "utf-8") as text:
                text.writelines(_format_lines(log))


def _format_lines(log: Log) -> Iterator[str]:
    yield format_header(log)
    for now_s, events, actions, held, gap, prices in log:
        yield format_round(log.jobs, now_s, build_events(*events), actions, held, gap, prices)


def format_header(log: Log) -> str:
    """Return the first line of *log*."""
    nodes = {f.name: _to_list(getattr(log.nodes, f.name)) for f in fields(Nodes)}
    # Meter readings refer to teams by number, so the numbers must not depend on the order of arrivals.
    teams = list(log.jobs.team.names)
    return _format_json({"wattline_log": FORMAT, **log.header, "teams": teams, "nodes": nodes})


def format_round(
    jobs: Jobs,
    now_s: float,
    events: Events,
    actions: Actions,
    held: Ints,
    gap: float,
    prices: ResourcePrices | None = None,
) -> str:
    """Return the line of one round."""
    return _format_json(
        {
            "t": now_s,
            "events": [_encode_event(event, jobs) for event in list_events(events)],
            "actions": _encode_actions(actions),
            "held": {str(job): REASONS[reason].name.lower() for job, reason in held.tolist()},
            **_encode_gap(gap),
            **_encode_prices(prices),
        }
    )


def encode_initial_state(initial_state: Snapshot) -> dict[str, Any]:
    """Return *initial_state* as JSON data for the header of a log; `read_initial_state` reads it."""
    queue = [[_encode_number(value) for value in row] for row in initial_state.queue.block.tolist()]
    meter = [initial_state.meter.at_s.tolist(), initial_state.meter.energy_j.tolist()]
    return {
        "t": initial_state.now_s,
        "queue": queue,
        "leases": initial_state.leases.block.tolist(),
        "meter": meter,
        **({} if initial_state.usage is None else {"usage": initial_state.usage.as_rows()}),
    }


def _encode_number(value: float) -> float | str | None:
    """Return a number as JSON has it: null for nan, a word for infinity."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _encode_gap(gap: float) -> dict[str, float | str]:
    return {} if math.isnan(gap) else {"gap": gap if math.isfinite(gap) else "unknown"}


def _encode_prices(prices: ResourcePrices | None) -> dict[str, Any]:
    if prices is None:
        return {}
    bound = {"bound": prices.bound} if math.isfinite(prices.bound) else {}
    return {"prices": prices.as_dict(), **bound}


def _format_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _to_list(column: Any) -> list[Any]:
    return column.words() if isinstance(column, Labels) else list(column.tolist())


def _encode_event(event: Event, jobs: Jobs) -> dict[str, Any]:
    """Return one event as JSON data; an arrival carries the columns of its job."""
    words: dict[str, Any] = {EVENT_WORDS[event.verb]: event.job, "at_s": event.at_s}
    if event.verb == ARRIVED:
        for field in fields(Jobs):
            column = getattr(jobs, field.name)
            value = column.word(event.job) if isinstance(column, Labels) else column[event.job]
            value = value.item() if isinstance(value, np.generic) else value
            if value != DEFAULT_JOB_VALUES.get(field.name):
                words[field.name] = value
    elif event.verb == METERED:
        words["energy_j"] = event.energy_j
    elif event.verb == PROTECTED:  # null: not before another event; a stop saves all steps
        until_s, saved_s = (v if math.isfinite(v) else None for v in (event.rate, event.energy_j))
        words.update(steps=event.steps, until_s=until_s, saved_s=saved_s)
    elif event.verb == CAPACITY:
        words.update(gpus=int(event.steps), cpus=event.rate, mem_gib=event.energy_j)
    elif event.verb == READY:
        words["startup_s"] = event.rate
    elif event.verb not in (NODE_LOST, NODE_BACK):
        drawn = "watts" if event.verb == RAN else "energy_j"
        words.update(steps=event.steps, rate=event.rate, **{drawn: event.energy_j})
    return words


def _encode_actions(actions: Actions) -> list[dict[str, Any]]:
    """Return actions as JSON data; the rows of one start become one entry with all its nodes."""
    words: list[dict[str, Any]] = []
    for verb, job, group, node, gpus, *knobs in actions.tolist():
        if verb >= POWER_OFF:
            words.append({ACTION_WORDS[verb]: node})
        elif verb == STOP:
            words.append({"stop": job, "group": group})
        elif verb == START and words and words[-1].get("start") == job:
            words[-1]["on"].append([node, gpus])
        else:
            words.append({ACTION_WORDS[verb]: job, "group": group})
            if verb == START:
                words[-1]["on"] = [[node, gpus]]
            set_to = zip(ACTION_SETTINGS, knobs, strict=True)
            words[-1].update({name: value for name, value in set_to if value or verb == RETUNE})
    return words
