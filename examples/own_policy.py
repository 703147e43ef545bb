"""A user-defined policy between first come and shortest first, in which no job waits for ever."""

from dataclasses import dataclass

import wattline as wl
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.models import remaining_s
from wattline.policy import fifo, rank_rows, sjf


@dataclass(frozen=True)
class Aging:
    """Shortest first, where every hour of waiting counts like *worth* hours less of remaining work."""

    worth: float = 2.0

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan for *snapshot*."""
        waited_s = snapshot.now_s - snapshot.jobs.submit_s[snapshot.queue.job]
        return rank_rows(
            snapshot, plan, remaining_s(snapshot, models) - self.worth * waited_s, non_preemptive=True
        )


jobs = wl.synth(count=800, seed=7, load=1.3, gpus_total=32)
cluster = wl.nodes("v100", count=4, gpus=8)
for policy in (fifo, sjf, Aging(worth=2.0)):
    found = wl.report(wl.run(wl.Sim(jobs, cluster), policy))
    mean_h, wait_h = found.jct_mean_s / 3600, found.wait_p99_s / 3600
    print(f"{found.policy:18} mean JCT {mean_h:5.1f} h, p99 of the wait {wait_h:5.1f} h")
