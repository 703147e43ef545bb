"""When was each node up, broken, switched off, or booting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import POWER_OFF, POWER_ON
from wattline.core.events import NODE_BACK, NODE_LOST
from wattline.core.table import Floats, Ints, Table
from wattline.loop.runlog import Log

DOWN, UP, OFF, BOOTING = range(4)
STATES = ("down", "up", "off", "booting")

_EVENTS = {NODE_LOST: DOWN, NODE_BACK: UP}
_ACTIONS = {POWER_OFF: OFF, POWER_ON: BOOTING}


@dataclass(frozen=True, eq=False)
class Turns(Table):
    """One row each time a node changes, in the order in which that happened; all are up at first."""

    at_s: Floats
    node: Ints
    state: Ints


@dataclass(frozen=True, eq=False)
class Stretches(Table):
    """One row for each time that a node was in one state, by node, then time."""

    node: Ints
    state: Ints
    start_s: Floats
    end_s: Floats


def turns(log: Log) -> Turns:
    """All changes of nodes in *log*; in a round, what happened comes before what was done about it."""
    verb, done = log.events[:, 0], log.actions[:, 0]
    happened = np.flatnonzero((verb == NODE_LOST) | (verb == NODE_BACK))
    switched = np.flatnonzero(done >= POWER_OFF)
    order = np.argsort(
        np.concatenate((2 * log.event_round[happened], 2 * log.action_round[switched] + 1)), kind="stable"
    )
    state = [_EVENTS[v] for v in verb[happened].tolist()] + [_ACTIONS[v] for v in done[switched].tolist()]
    return Turns(
        at_s=np.concatenate((log.events[happened, 2], log.action_s[switched]))[order],
        node=np.concatenate((log.events[happened, 1].astype(np.int64), log.actions[switched, 3]))[order],
        state=np.array(state, dtype=np.int64)[order],
    )


def stretches(turned: Turns, nodes: int, since_s: float, until_s: float) -> Stretches:
    """What each of so many *nodes* did from *since_s* to *until_s*, without gaps."""
    every = np.arange(nodes, dtype=np.int64)
    node = np.concatenate((every, turned.node))
    at_s = np.concatenate((np.full(nodes, since_s), np.clip(turned.at_s, since_s, until_s)))
    state = np.concatenate((np.full(nodes, UP), turned.state))
    order = np.argsort(node, kind="stable")
    node, at_s, state = node[order], at_s[order], state[order]
    last = np.append(node[1:] != node[:-1], True)
    return Stretches(node, state, at_s, np.where(last, until_s, np.append(at_s[1:], until_s)))


def seconds(spent: Stretches, nodes: int) -> Floats:
    """How long each node was in each state: one row per state, one column per node."""
    cell = spent.state * nodes + spent.node
    total_s = np.bincount(cell, spent.end_s - spent.start_s, minlength=len(STATES) * nodes)
    return np.asarray(total_s.reshape(len(STATES), nodes))
