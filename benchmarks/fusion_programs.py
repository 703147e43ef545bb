"""Random training programs: compiled, uncompiled and separate training must agree.

python benchmarks/fusion_programs.py [--count 1000] [--first 0] [--steps 12] [--backend graph|inductor]
                                     [--processes 2]

A program reads values from globals, closures, containers, objects and the environment, changes them between
steps, draws random numbers of Python and NumPy, counts, caches. "graph" runs the traced operators one by one,
"inductor" compiles them. Printed are programs with a difference (there must be none), the number of refused
ones, and the share of programs without effects or draws that are still compiled after the last step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.training_programs import compare_ways

Task = tuple[int, int, bool | str]
Outcome = tuple[int, str, bool, bool, bool, tuple[str, ...], str]
_BLOCK = 1000  # programs


def run_program(task: Task) -> Outcome:
    """Return the seed, the difference, and whether it is guardable, compiled, refused; kinds and reason."""
    seed, steps, backend = task
    torch.set_num_threads(1)
    outcome = compare_ways(seed, steps, backend)
    reasons = [w for w in outcome.warnings if "cannot be compiled" in w or "differs" in w]
    return (
        *(seed, outcome.difference, outcome.program.is_guardable, outcome.is_compiled, outcome.is_refused),
        outcome.program.kinds,
        (reasons or outcome.warnings or [""])[0],
    )


def run_block(tasks: list[Task], processes: int) -> list[Outcome]:
    """Run programs in new processes.

    Memory grows with each program. A pool that replaces its workers (`max_tasks_per_child`) hung here.
    """
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run_program, tasks, chunksize=10))


def main() -> int:
    """Run the programs and print the counts; 1 if one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--backend", choices=("graph", "inductor"), default="graph")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    backend = "graph" if args.backend == "graph" else True
    tasks = [(seed, args.steps, backend) for seed in range(args.first, args.first + args.count)]
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    start_s = time.monotonic()
    for first in range(0, len(tasks), _BLOCK):
        for seed, difference, guardable, compiled, refused, kinds, reason in run_block(
            tasks[first : first + _BLOCK], args.processes
        ):
            counts["different"] += bool(difference)
            counts["refused"] += refused
            counts["guardable"] += guardable
            counts["guardable and compiled"] += guardable and compiled
            counts["found by comparing"] += "differs" in reason
            if difference:
                print(f"seed {seed} {kinds}: {difference}", flush=True)
            elif guardable and not compiled:
                reasons[reason[:100]] += 1
        print(
            f"{min(first + _BLOCK, len(tasks))} of {len(tasks)}: {dict(counts)}", file=sys.stderr, flush=True
        )
    print(f"{args.count} programs from {args.first}, {args.steps} steps, {args.backend}: {dict(counts)}")
    print(f"{time.monotonic() - start_s:.0f} s")
    for reason, count in reasons.most_common(20):
        print(f"  {count:5} {reason}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
