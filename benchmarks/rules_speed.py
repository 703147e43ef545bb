"""Print how much longer a simulation takes with operators' rules, in CPU time of one process.

    python benchmarks/rules_speed.py

A synthetic trace on 64 nodes of 8 GPUs: without rules, with a file that states no limits, and with two
partitions, two QOS with limits of users, weekly maintenance and racks.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.table import Labels
from wattline.loop.run import run
from wattline.placement.pack import Pack
from wattline.policy.ordering import fifo
from wattline.rules.binding import bind_rules
from wattline.rules.rule_set import (
    PartitionRule,
    QosRule,
    ReservationRule,
    RuleSet,
    TopologyRule,
    UseLimits,
)
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.synthetic import synth

WEEK_S = 604_800.0


def main() -> None:
    """Print one row for each set of rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    count = parser.parse_args().jobs
    jobs, nodes = synth(count=count, seed=0), parse_cluster("64xv100:8")
    draw = np.random.default_rng(0)
    columns = {
        "partition": Labels.of("debug" if x < 0.2 else "gpu" for x in draw.random(count)),
        "qos": Labels.of("high" if x < 0.2 else "low" for x in draw.random(count)),
        "time_limit_s": np.minimum(2 * jobs.duration_s + 600.0, WEEK_S / 2),
    }
    recorded = RecordedSchedule.of(count, columns)
    rules = RuleSet(
        partitions=(
            PartitionRule("gpu", "v100-[0-55]"),
            PartitionRule("debug", "v100-[48-63]", priority_tier=2),
        ),
        qos=(
            QosRule("low", limits=UseLimits(user_gpus=128)),
            QosRule("high", priority=9, limits=UseLimits(group_gpus=256)),
        ),
        reservations=(ReservationRule("service", "0", 21_600.0, maintenance=True, every_s=WEEK_S),),
        topology=TopologyRule(),
    )
    base_s = 0.0
    for name, one in (("none", RuleSet()), ("open", RuleSet(qos=(QosRule("low"),))), ("all", rules)):
        bound = bind_rules(one, jobs, recorded, nodes, None)
        policy = fifo if bound is None else bound.insert_stages(fifo)
        place = Pack() if bound is None else bound.replace_placer(Pack())
        sim = Sim(jobs, nodes)
        begin_s = time.process_time()
        log = run(sim, policy, place=place)
        spent_s = time.process_time() - begin_s
        base_s = base_s or spent_s
        print(f"{name:5} {spent_s:7.2f} CPU s  {spent_s / base_s:5.2f} x  {len(log):7,} rounds")


if __name__ == "__main__":
    main()
