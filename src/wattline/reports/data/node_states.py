"""Intervals during which each node was up, down, switched off or booting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import ACTION_NODE, ACTION_VERB, POWER_OFF, POWER_ON
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, NODE_BACK, NODE_LOST
from wattline.core.table import Floats, Ints, Table
from wattline.loop.runlog import Log

DOWN, UP, OFF, BOOTING = range(4)
STATES = ("down", "up", "off", "booting")

_STATE_AFTER_EVENT = {NODE_LOST: DOWN, NODE_BACK: UP}
_STATE_AFTER_ACTION = {POWER_OFF: OFF, POWER_ON: BOOTING}


@dataclass(frozen=True, eq=False)
class NodeStateChanges(Table):
    """One row per change of a node's state, in order; all nodes are up at first."""

    at_s: Floats
    node: Ints
    state: Ints


@dataclass(frozen=True, eq=False)
class NodeStateIntervals(Table):
    """One row per interval that a node spent in one state, by node, then time."""

    node: Ints
    state: Ints
    start_s: Floats
    end_s: Floats


def collect_state_changes(log: Log) -> NodeStateChanges:
    """Return all node state changes in *log*; in a round, events come before actions."""
    event_verb, action_verb = log.events[:, EVENT_VERB], log.actions[:, ACTION_VERB]
    events = np.flatnonzero((event_verb == NODE_LOST) | (event_verb == NODE_BACK))
    switches = np.flatnonzero(action_verb >= POWER_OFF)
    order = np.argsort(
        np.concatenate((2 * log.event_round[events], 2 * log.action_round[switches] + 1)), kind="stable"
    )
    state = [_STATE_AFTER_EVENT[v] for v in event_verb[events].tolist()]
    state += [_STATE_AFTER_ACTION[v] for v in action_verb[switches].tolist()]
    event_node = log.events[events, EVENT_JOB].astype(np.int64)  # node events hold their node in this column
    return NodeStateChanges(
        at_s=np.concatenate((log.events[events, EVENT_AT_S], log.action_s[switches]))[order],
        node=np.concatenate((event_node, log.actions[switches, ACTION_NODE]))[order],
        state=np.array(state, dtype=np.int64)[order],
    )


def build_state_intervals(
    changes: NodeStateChanges, nodes: int, since_s: float, until_s: float
) -> NodeStateIntervals:
    """Return the states of each of *nodes* nodes from *since_s* to *until_s*, without gaps."""
    every = np.arange(nodes, dtype=np.int64)
    node = np.concatenate((every, changes.node))
    at_s = np.concatenate((np.full(nodes, since_s), np.clip(changes.at_s, since_s, until_s)))
    state = np.concatenate((np.full(nodes, UP), changes.state))
    order = np.argsort(node, kind="stable")
    node, at_s, state = node[order], at_s[order], state[order]
    last = np.append(node[1:] != node[:-1], True)
    return NodeStateIntervals(node, state, at_s, np.where(last, until_s, np.append(at_s[1:], until_s)))


def sum_state_seconds(intervals: NodeStateIntervals, nodes: int) -> Floats:
    """Return the seconds that each node spent in each state: one row per state, one column per node."""
    cell = intervals.state * nodes + intervals.node
    total_s = np.bincount(cell, intervals.end_s - intervals.start_s, minlength=len(STATES) * nodes)
    return np.asarray(total_s.reshape(len(STATES), nodes))
