"""Writing of an epoch's run log and meter readings to the store, and reading them back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wattline.core.events import EVENT_AT_S, EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, METERED
from wattline.core.jobs import Jobs
from wattline.core.resource_prices import ResourcePrices
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.energy.budgets import DAY_S
from wattline.errors import NotFound
from wattline.loop.log_writer import format_header, format_round
from wattline.loop.run import LoopStep, build_first_round
from wattline.loop.runlog import Log
from wattline.service.storage.queries import StoreReader
from wattline.service.storage.store import Store

_ALL_TEAMS = "*"
_DAY_MARGIN_S = 3600.0  # readings before midnight that are still loaded


class EpochRecorder:
    """The run log of one epoch, written round by round.

    Rounds without content are not written, unless prices changed or the policy leaves a note: its next
    decision depends on them, too. *write* calls a function that writes, and repeats it while the store cannot
    be written.
    """

    def __init__(
        self, store: Store, epoch: int, log: Log, write: Callable[[Callable[[], object]], None]
    ) -> None:
        self._store, self._epoch, self._log, self._write = store, epoch, log, write
        self._prices: ResourcePrices | None = None  # of the last round that was written

    def record_start(self, initial_state: Snapshot, at_s: float) -> None:
        """Write the header, and as round 0 the jobs and leases that the epoch starts with."""
        line = self._round(initial_state.now_s, *build_first_round(initial_state), math.nan)
        self._write(lambda: self._store.add_epoch(self._epoch, at_s, format_header(self._log), line))

    def record_step(self, number: int, step: LoopStep, jobs: Jobs) -> None:
        """Write one round and the meter readings in it."""
        self._log.jobs = jobs
        line = self._round(
            step.state.now_s,
            step.events,
            step.actions,
            step.wait_reasons,
            step.plan.gap,
            always=step.plan.note is not None or step.plan.prices not in (None, self._prices),
            prices=step.plan.prices,
        )
        if line:
            self._prices = step.plan.prices
            self._write(lambda: self._store.add_round(self._epoch, number, line))
        read = step.events[step.events[:, EVENT_VERB] == METERED]
        if len(read):
            teams = (_ALL_TEAMS, *step.state.jobs.team.names)
            readings = [
                (float(row[EVENT_AT_S]), teams[int(row[EVENT_JOB]) + 1], float(row[EVENT_ENERGY_J]))
                for row in read
            ]
            self._write(lambda: self._store.add_meter_readings(readings))

    def _round(
        self,
        now_s: float,
        events: Any,
        actions: Any,
        held: Any,
        gap: float,
        always: bool = False,
        prices: ResourcePrices | None = None,
    ) -> str:
        if not (always or len(events) or len(actions) or len(held)):
            return ""
        return format_round(self._log.jobs, now_s, events, actions, held, gap, prices)


def read_meter_today(store: StoreReader, teams: tuple[str, ...], now_s: float) -> MeterReadings:
    """Return the readings of this day (UTC), by all processes that served the folder, for daily budgets."""
    names = (_ALL_TEAMS, *teams)
    since_s = math.floor(now_s / DAY_S) * DAY_S - _DAY_MARGIN_S
    readings = store.meter_readings(since_s)
    times_s = sorted({at_s for at_s, _, _ in readings})
    if not times_s:
        return MeterReadings.empty()
    joules = np.zeros((len(times_s), len(names)))
    for at_s, team, used_j in readings:
        if team in names:
            joules[times_s.index(at_s), names.index(team)] = used_j
    return MeterReadings(np.array(times_s), np.maximum.accumulate(joules, axis=0))


def read_run_log(store: StoreReader, epoch: int) -> list[str]:
    """Return the lines of an epoch's run log, as `wattline replay` reads them.

    The epoch may go on; a last line closes the log at its latest round.
    """
    header = store.epoch_header(epoch)
    if header is None:
        raise NotFound(f"there is no log of epoch {epoch}", f"the latest epoch is {store.last_epoch()}")
    rounds = store.epoch_rounds(epoch)
    last_s = json.loads(rounds[-1])["t"] if rounds else 0.0
    end: dict[str, Any] = {
        "t": last_s,
        "events": [{"metered": -1, "at_s": last_s, "energy_j": 0.0}],
        "actions": [],
        "held": {},
    }
    return [header, *rounds, json.dumps(end, separators=(",", ":")) + "\n"]
