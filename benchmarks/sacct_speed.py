"""Seconds for ten policies on an export of sacct with 100,000 rows.

    python benchmarks/sacct_speed.py [--rows 100000] [--load 0.8]

The export is made of a synthetic trace: jobs of 1 to 8 GPUs on 64 nodes of 8, with steps, accounts, users
and time limits as sacct prints them. Measured is the whole command `wattline compare --jobs 2`, with reading,
in wall and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from wattline.trace.synthetic import synth

POLICIES = ("fifo", "sjf", "las", "srtf", "srsf", "tiresias", "ftf", "afs", "pollux", "powerflow")
COLUMNS = "JobIDRaw|JobName|User|Account|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES|State"
BEGAN_S = 1_760_000_000


def write_export(path: Path, rows: int, load: float) -> None:
    """Write an export of *rows* jobs, each with a batch step."""
    jobs = synth(count=rows, seed=1, load=load, gpus_total=512)
    users, teams = jobs.user.words(), jobs.team.words()
    with path.open("w") as file:
        print(COLUMNS, file=file)
        for row in range(rows):
            at_s, seconds, gpus = BEGAN_S + int(jobs.submit_s[row]), int(jobs.duration_s[row]), jobs.gpus[row]
            moments = "|".join(format_time(s) for s in (at_s, at_s, at_s + seconds))
            limit = f"{(2 * seconds) // 86400}-{(2 * seconds) % 86400 // 3600:02}:59:00"
            tres = f"billing=8,cpu=8,gres/gpu:v100={gpus},gres/gpu={gpus},mem=64G,node=1"
            rest = f"{moments}|{seconds}|{limit}|{tres}|COMPLETED"
            print(f"{row}|train|{users[row]}|{teams[row]}|{rest}", file=file)
            print(f"{row}.batch|batch||{teams[row]}|{rest}", file=file)


def format_time(at_s: int) -> str:
    """Return a time as sacct prints it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sacct.txt"
        write_export(path, args.rows, args.load)
        words = [word for policy in POLICIES for word in ("--policy", policy)]
        command = [sys.executable, "-m", "wattline", "compare", "--trace", str(path), "--jobs", "2", "--json"]
        began_s = time.monotonic()
        done = subprocess.run([*command, "--cluster", "64xv100:8", *words], capture_output=True, text=True)
        wall_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr
    for report in json.loads(done.stdout)["reports"]:
        rate = args.rows / report["cpu_s"]
        print(f"{report['policy']:<10} {report['cpu_s']:7.1f} CPU s, {rate:8.0f} jobs per CPU-second")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{args.rows} jobs, {len(POLICIES)} policies: {wall_s:.0f} s, {cpu_s:.0f} CPU s")


if __name__ == "__main__":
    main()
