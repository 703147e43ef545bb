"""Run log in memory: events, actions and wait reasons of every round, as columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattline.core.actions import ACTION_COLUMNS, Actions
from wattline.core.events import EVENT_COLUMNS, Event, Events, list_events
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.resource_prices import ResourcePrices
from wattline.core.table import Floats, Ints


class Round(NamedTuple):
    """One round of the loop, as `Log` iterates over them."""

    now_s: float
    events: list[Event]
    actions: Actions
    wait_reasons: Ints  # columns job, index in `REASONS`: jobs that wait for another reason than before
    gap: float  # relative optimality gap of the decision; inf: unknown, nan: the policy does not optimise
    prices: ResourcePrices | None = None  # of the decision; None: the policy sets no prices


class Log:
    """The rounds of one run.

    Call `append` while the run goes on, then read the columns; reading a column ends appending.
    """

    def __init__(self, header: Mapping[str, Any], jobs: Jobs, nodes: Nodes) -> None:
        self.header = dict(header)
        self.jobs = jobs
        self.nodes = nodes
        self._now_s = array("d")
        self._events = array("d")
        self._actions = array("q")
        self._held = array("q")
        self._event_end = array("q")
        self._action_end = array("q")
        self._held_end = array("q")
        self._gap = array("d")
        self._prices: list[ResourcePrices | None] = []

    def append(
        self,
        now_s: float,
        events: Events,
        actions: Actions,
        held: Ints,
        gap: float = math.nan,
        always: bool = False,
        prices: ResourcePrices | None = None,
    ) -> None:
        """Add one round; one without events, actions, new wait reasons and new prices only if *always*.

        The next decision of a policy that leaves a note depends on rounds without them, too.
        """
        same = prices is None or (len(self._prices) > 0 and prices == self._prices[-1])
        if same and not always and not len(events) and not len(actions) and not len(held):
            return
        self._now_s.append(now_s)
        self._events.frombytes(events.tobytes())
        if len(actions):
            self._actions.frombytes(actions.tobytes())
        if len(held):
            self._held.frombytes(held.tobytes())
        self._event_end.append(len(self._events) // EVENT_COLUMNS)
        self._action_end.append(len(self._actions) // ACTION_COLUMNS)
        self._held_end.append(len(self._held) // 2)
        self._gap.append(gap)
        self._prices.append(prices)

    def __len__(self) -> int:
        return len(self._now_s)

    def __iter__(self) -> Iterator[Round]:
        events, actions, held = self.events, self.actions, self.wait_reasons
        e = a = h = 0
        each = (self._now_s, self._event_end, self._action_end, self._held_end, self._gap, self._prices)
        for now_s, e_end, a_end, h_end, gap, prices in zip(*each, strict=True):
            yield Round(now_s, list_events(events[e:e_end]), actions[a:a_end], held[h:h_end], gap, prices)
            e, a, h = e_end, a_end, h_end

    # Views of the buffers: an `array` with an exported buffer cannot grow.

    @cached_property
    def now_s(self) -> Floats:
        """Time of each round."""
        return np.frombuffer(self._now_s, dtype=np.float64) if len(self) else np.empty(0)

    @cached_property
    def gap(self) -> Floats:
        """Relative optimality gap of each round's decision, see `Round.gap`."""
        return np.frombuffer(self._gap, dtype=np.float64) if len(self) else np.empty(0)

    @property
    def prices(self) -> tuple[ResourcePrices | None, ...]:
        """Prices of each round's decision, see `Round.prices`."""
        return tuple(self._prices)

    @property
    def end_s(self) -> float:
        """Time of the last round."""
        return self._now_s[-1] if len(self) else 0.0

    @cached_property
    def events(self) -> Floats:
        """All events, columns as in `wattline.core.events.Event`."""
        return _matrix(self._events, np.float64, EVENT_COLUMNS)

    @cached_property
    def actions(self) -> Actions:
        """All actions, columns as in `wattline.core.actions.Actions`."""
        return _matrix(self._actions, np.int64, ACTION_COLUMNS)

    @cached_property
    def event_round(self) -> Ints:
        """Round of each event."""
        return np.repeat(np.arange(len(self)), np.diff(_column(self._event_end), prepend=0))

    @cached_property
    def action_round(self) -> Ints:
        """Round of each action."""
        return np.repeat(np.arange(len(self)), np.diff(_column(self._action_end), prepend=0))

    @cached_property
    def action_s(self) -> Floats:
        """Time of each action."""
        return self.now_s[self.action_round]

    @cached_property
    def wait_reasons(self) -> Ints:
        """All changes of a job's wait reason: columns job, index in `REASONS`."""
        return _matrix(self._held, np.int64, 2)

    @cached_property
    def wait_reason_s(self) -> Floats:
        """Time of each change of a wait reason."""
        return np.repeat(self.now_s, np.diff(_column(self._held_end), prepend=0))


def _column(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.empty(0, dtype=np.int64)


def _matrix(values: array[Any], dtype: type, width: int) -> NDArray[Any]:
    flat: NDArray[Any] = np.frombuffer(values, dtype=dtype) if len(values) else np.empty(0, dtype=dtype)
    return flat.reshape(-1, width)
