"""A policy of one's own, between first come and shortest first: nobody waits for ever."""

from dataclasses import dataclass

import wattline as wl
from wattline.model import remaining_s
from wattline.policy import fifo, ranked, sjf
from wattline.types import Models, Plan, Snapshot


@dataclass(frozen=True)
class Aging:
    """Shortest first, but every hour of waiting counts like *worth* hours less to do."""

    worth: float = 2.0

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan."""
        waited_s = snapshot.now_s - snapshot.jobs.submit_s[snapshot.queue.job]
        return ranked(snapshot, plan, remaining_s(snapshot, models) - self.worth * waited_s, keeps=True)


jobs = wl.synth(count=300, seed=7, load=1.1, gpus_total=32)
cluster = wl.nodes("v100", count=4, gpus=8)
for policy in (fifo, sjf, Aging(worth=2.0)):
    found = wl.report(wl.run(wl.Sim(jobs, cluster), policy))
    print(
        f"{found.policy:18} mean JCT {found.jct_mean_s / 3600:5.1f} h, longest wait {found.wait_p99_s / 3600:5.1f} h"
    )
