"""Check that a change of the loop or of the simulator leaves every decision as it was.

    python benchmarks/same_logs.py write digests.json    # in the tree before the change
    python benchmarks/same_logs.py check digests.json    # in the tree after it

Runs policies, placers, traces, clusters, budgets, outages, failures, checkpoints, quanta and seeds, and
takes a digest of all columns of each log. `check` names the scenarios that differ and exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import wattline as wl
from wattline.core.table import Labels
from wattline.models.array_speed import ArrayModel
from wattline.models.model_assignment import assign_models
from wattline.policy.knobs import has_knob, set_knob

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))
PHILLY = DATA / "philly" / "philly_jobs.csv.gz"
ONE_KIND, TWO_KINDS = "8xv100:8", "4xv100:8+6xp100:4"
ORDERED = ("fifo", "drf", "sjf", "srtf", "srsf", "edf", "priority", "las", "tiresias", "ftf")
TIRESIAS = ("tiresias:within=submission", "tiresias:promote=0", "las:quantum=60s+keep", "fifo+preempt")
STAGED = ("las+demand", "las+fuse", "fifo+cap:slowdown=1.1", "srtf+batch")
ELASTIC = ("pollux", "afs", "powerflow", "gandiva")
PLACERS = ("pack:backfill=none", "pack:backfill=greedy", "buddy", "tune", "pack+power", "buddy+power")
FAULTS = {
    "outages": wl.Faults(outages=((0, 3600.0, 7200.0), (3, 5000.0, 90000.0), (5, 0.0, 20000.0))),
    "node failures": wl.Faults(node_mtbf_s=300_000.0, checkpoint_s=600.0),
    "job failures": wl.Faults(job_failure=0.2, retries=1),
}

Scenario = tuple[str, wl.Sim, str, str]
"""Name, backend, policy and placer."""


def request_arrays(jobs: wl.Jobs) -> wl.Jobs:
    """Return *jobs* with fusion keys that end in `!`: fused whatever the forecast."""
    keys = tuple(f"{key}!" if key else "" for key in jobs.fuse.names)
    return replace(jobs, fuse=Labels(jobs.fuse.codes, keys))


def list_scenarios() -> Iterator[Scenario]:
    """Yield all scenarios; those of Philly only where the data are."""
    one, two = wl.parse_cluster(ONE_KIND), wl.parse_cluster(TWO_KINDS)
    fusible = wl.TraceModels(array=ArrayModel(serial=0.2, member_gib=2.0))
    for seed in (0, 1):
        jobs = request_arrays(wl.synth(count=300, seed=seed, load=1.3, gpus_total=64, sweeps=0.3))
        for policy in (*ORDERED, *TIRESIAS, *STAGED, *ELASTIC):
            yield f"synthetic {seed}", wl.Sim(jobs, one, fusible, seed=seed), policy, "pack"
    jobs = request_arrays(wl.synth(count=250, seed=1, load=1.4, gpus_total=64, sweeps=0.3))
    for policy in (*ORDERED, "las+fuse", "gandiva", "pollux"):
        yield "two kinds", wl.Sim(jobs, two), policy, "pack"
    for place in PLACERS:
        for policy in ("fifo", "las", "srtf+demand", "afs"):
            yield "placers", wl.Sim(jobs, one), policy, place
    for name, faults in FAULTS.items():
        for policy in ("fifo", "las", "tiresias", "pollux", "las+fuse", "gandiva"):
            yield name, wl.Sim(jobs, one, fusible, faults=faults, seed=3), policy, "pack"
        yield name, wl.Sim(jobs, one, fusible, faults=faults, seed=3), "las", "pack+power"
    rng = np.random.default_rng(4)
    guarded = replace(
        jobs,
        checkpoint_s=rng.choice((0.0, -1.0, 900.0), len(jobs)),
        preemptible=rng.integers(0, 3, len(jobs)),
        min_runtime_s=rng.choice((0.0, 600.0), len(jobs)),
    )
    costs = wl.Overheads(start_s=20.0, restart_s=60.0, rescale_s=15.0, stop_s=5.0)
    limit_s = np.where(rng.random(len(jobs)) < 0.2, 0.5, np.inf) * jobs.duration_s
    for policy in ("fifo", "las", "srtf", "tiresias", "afs"):
        yield "checkpoints", wl.Sim(guarded, one), policy, "pack"
        yield "quantum", wl.Sim(jobs, one, quantum_s=300.0), policy, "pack"
        yield "costs and limits", wl.Sim(jobs, one, overheads=costs, limit_s=limit_s), policy, "pack"
    known = assign_models(jobs, wl.library(), one.kind.names, 0)
    for policy in ("fifo", "las", *STAGED, *ELASTIC):
        yield (
            "library",
            wl.Sim(known, one, truth=wl.library()),
            policy,
            "tune" if "demand" in policy else "pack",
        )
    for policy in ("fifo+cap:slowdown=1.2", "las+cap:slowdown=1.2", "powerflow"):
        yield "budget", wl.Sim(known, one, truth=wl.library()), policy, "pack"
    if PHILLY.exists():
        philly = wl.read_trace(str(PHILLY))
        wide, narrow = wl.parse_cluster("320xv100:8"), wl.parse_cluster("24xv100:8")
        for policy in (*ORDERED, "pollux"):
            yield "philly, a queue", wl.Sim(philly.take(slice(40_000, 41_000)), narrow), policy, "pack"
        for policy in ("fifo", "las", "tiresias"):
            yield "philly, no waits", wl.Sim(philly.take(slice(0, 4_000)), wide), policy, "pack"


def digest_log(log: wl.Log) -> str:
    """Return a digest of all columns of a log."""
    digest = hashlib.blake2b(digest_size=12)
    columns = (log.now_s, log.events, log.actions, log.event_round, log.action_round, log.gap)
    for column in (*columns, log.wait_reasons, log.wait_reason_s):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def compute_digests() -> dict[str, str]:
    """Return the digest of each scenario."""
    digests = {}
    for name, sim, text, place in list_scenarios():
        policy = wl.parse_policy(text)
        if name == "budget" and has_knob(policy, "budgets"):
            policy = set_knob(policy, "budgets", (wl.parse_budget("6kW"),))
        log = wl.run(sim, policy, sim.truth, place=wl.parse_placer(place), seed=sim.seed)
        key = f"{name}: {text}, {place}"
        digests[key] = f"{digest_log(log)} {len(log)} rounds"
        print(key, digests[key], flush=True)
    return digests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    digests = compute_digests()
    if args.verb == "write":
        args.file.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
        return 0
    before = json.loads(args.file.read_text(encoding="utf-8"))
    differ = sorted(key for key in before.keys() | digests.keys() if before.get(key) != digests.get(key))
    for key in differ:
        print(f"differs: {key}: {before.get(key)} before, {digests.get(key)} now")
    print(f"{len(digests) - len(differ)} of {len(digests)} logs are the same")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
