"""The watch of `wattline shadow`: read Slurm's jobs again and again, and change nothing."""

from __future__ import annotations

import math
import re
import threading
import time
from dataclasses import dataclass, replace

from wattline.backend.engine.slurm.commands import read_config
from wattline.backend.engine.slurm.node_list import NodeList, read_nodes
from wattline.backend.engine.slurm.recorded_case import LeftOut, build_case
from wattline.backend.engine.slurm.recorded_jobs import PartitionHistory, RecordedJob
from wattline.backend.sim.recorded import RecordedCase
from wattline.cli.output import notify
from wattline.cli.simulation.scenario import set_checkpoints
from wattline.errors import WattlineError
from wattline.units import format_seconds, pluralize


@dataclass(frozen=True, eq=False)
class ShadowRecord:
    """All that was seen of a partition between two times."""

    node_list: NodeList
    jobs: list[RecordedJob]
    began_s: float
    ended_s: float
    unknown_ends: frozenset[str]  # ids of jobs
    notes: tuple[str, ...]  # about things that could not be seen

    def build_case(self, checkpoint_s: float | None, min_runtime_s: float) -> ShadowCase:
        """Return the simulation of what was seen, with the checkpoints that are assumed of all jobs."""
        partition = self.node_list.partition
        about = {
            "name": f"slurm partition {partition}",
            "partition": partition,
            "began_s": self.began_s,
            "ended_s": self.ended_s,
        }
        case, left_out = build_case(
            self.jobs, self.node_list, self.began_s, self.ended_s, self.unknown_ends, about
        )
        case = replace(case, jobs=set_checkpoints(case.jobs, checkpoint_s, min_runtime_s))
        return ShadowCase(self, case, left_out)


@dataclass(frozen=True, eq=False)
class ShadowCase:
    """A record, and what is simulated of it."""

    record: ShadowRecord
    case: RecordedCase
    left_out: LeftOut


def watch_partition(
    partition: str, gpu_kind: str, for_s: float | None, every_s: float, stop: threading.Event
) -> ShadowRecord:
    """Record the jobs of a partition for *for_s* seconds, or until *stop* is set."""
    node_list, config = read_nodes(partition, gpu_kind), read_config()
    forgets_s = float((re.match(r"\d+", config.get("MinJobAge", "")) or ["300"])[0])
    accounted = config.get("AccountingStorageType", "").endswith("slurmdbd")
    history = PartitionHistory(partition, accounted=accounted)
    notes = []
    if "jobs" in config.get("PrivateData", ""):
        notes.append("Slurm hides jobs of other users (PrivateData=jobs) unless an operator watches")
    every_s = min(every_s, forgets_s / 4) if forgets_s else every_s
    history.update()
    began_s = last_s = float(math.floor(time.time()))  # Slurm's times are whole seconds
    until_s = math.inf if for_s is None else began_s + for_s
    gpus = pluralize(int(node_list.nodes.gpus.sum()), "GPU")
    how_long = "until Ctrl-C" if for_s is None else f"for {format_seconds(for_s)}; Ctrl-C ends it earlier"
    notify(f"watching partition {partition} ({gpus}) {how_long}; nothing is changed")
    missing, stopped = False, False
    while not stopped:
        stopped = stop.wait(min(every_s, max(until_s - time.time(), 0.0)))
        missing, now_s = not _update(history, missing), time.time()
        if not missing:
            if now_s - last_s > forgets_s:
                notes.append(_describe_gap(now_s - last_s))
            last_s = now_s
        stopped = stopped or now_s >= until_s
    return ShadowRecord(
        node_list,
        history.jobs,
        began_s,
        max(last_s, began_s),
        frozenset(history.unknown_ends),
        tuple(dict.fromkeys(notes)),
    )


def _update(history: PartitionHistory, was_missing: bool) -> bool:
    """Read the jobs; return whether Slurm has responded."""
    try:
        history.update()
    except WattlineError as error:
        if not was_missing:
            notify(f"Slurm does not respond, the watch goes on: {error.message}")
        return False
    return True


def _describe_gap(gap_s: float) -> str:
    return f"Slurm did not respond for {format_seconds(gap_s)}: jobs that began and ended then are missing"
