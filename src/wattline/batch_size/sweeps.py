"""Measured power caps of jobs, one sweep for each job, kind and number of GPUs, and batch size.

A sweep expires after 30 days, and when the GPU's name, driver or range of caps changes. Windows that were
disturbed are stored, but are measured again by the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from wattline.profiler.cap_aim import CapMeasurement

LIFETIME_S = 30 * 86400.0

TABLE = """
CREATE TABLE sweep (
  grp TEXT NOT NULL, kind TEXT NOT NULL, gpus INTEGER NOT NULL, batch INTEGER NOT NULL, cap_w REAL NOT NULL,
  steps REAL NOT NULL, seconds REAL NOT NULL, joules REAL NOT NULL, spoilt INTEGER NOT NULL,
  aim TEXT NOT NULL, device TEXT NOT NULL, measured_s REAL NOT NULL,
  PRIMARY KEY (grp, kind, gpus, batch, cap_w));
"""


@dataclass(frozen=True)
class CapSweep:
    """Caps of one job by ascending watts; *device* is the name, driver and range of caps of its GPUs."""

    group: str
    kind: str
    gpus: int
    batch: int
    measurements: tuple[CapMeasurement, ...]
    aim: str = ""  # of the session that measured it
    device: str = ""  # empty = unknown
    measured_s: float = 0.0  # Unix time
    age_s: float = 0.0  # when it was read

    @property
    def is_expired(self) -> bool:
        """True if it is too old to be used."""
        return not abs(self.age_s) < LIFETIME_S  # nor is one of the future valid

    @property
    def usable(self) -> tuple[CapMeasurement, ...]:
        """The measurements that were not disturbed; none if the sweep is expired."""
        return () if self.is_expired else tuple(one for one in self.measurements if not one.spoilt)


def write_sweep(connection: Any, sweep: CapSweep) -> None:
    """Store a sweep, replacing an older one."""
    key = sweep.group, sweep.kind, sweep.gpus, sweep.batch
    connection.execute("DELETE FROM sweep WHERE grp = ? AND kind = ? AND gpus = ? AND batch = ?", key)
    connection.executemany(
        "INSERT INTO sweep VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                sweep.group,
                sweep.kind,
                sweep.gpus,
                sweep.batch,
                *one,
                sweep.aim,
                sweep.device,
                sweep.measured_s,
            )
            for one in sweep.measurements
        ],
    )


def read_sweeps(
    connection: Any,
    now_s: float,
    group: str,
    kind: str | None = None,
    batch: int | None = None,
    gpus: int | None = None,
) -> list[CapSweep]:
    """Return the sweeps of a job, the newest first; None: of any kind, batch size or number of GPUs.

    *connection* is one of SQLite, *now_s* the Unix time.
    """
    rows = connection.execute(
        "SELECT kind, gpus, batch, aim, device, measured_s, cap_w, steps, seconds, joules, spoilt FROM sweep"
        " WHERE grp = ? AND kind = coalesce(?, kind) AND batch = coalesce(?, batch)"
        " AND gpus = coalesce(?, gpus) ORDER BY measured_s DESC, kind, gpus, batch, cap_w",
        (group, kind, batch, gpus),
    )
    found: dict[tuple[str, int, int], CapSweep] = {}
    for row_kind, row_gpus, row_batch, aim, device, measured_s, cap_w, steps, seconds, joules, spoilt in rows:
        key = row_kind, row_gpus, row_batch
        sweep = found.get(key) or CapSweep(group, *key, (), aim, device, measured_s, now_s - measured_s)
        one = CapMeasurement(cap_w, steps, seconds, joules, bool(spoilt))
        found[key] = replace(sweep, measurements=(*sweep.measurements, one))
    return list(found.values())
