"""Kill a controller repeatedly while jobs are submitted to it, and print the outcome of the jobs.

    python tests/support/crash_controller.py FOLDER --kills 200 --seed 1

A controller is forked from a process that has imported all modules, so that it starts at once. Each runs
for a random time and accepts jobs; submissions without a response are repeated with the next controller under
the same key. Jobs record their start and end in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from wattline.jobfile import read_document
from wattline.service.controller import Controller

GPUS = "simulated:8xa100"


def job_document(folder: Path, key: str) -> dict[str, object]:
    """Return a job that writes `began` and `ended` into its own file."""
    seconds = 0.05 + 0.2 * random.Random(key).random()
    script = f'echo began $WATTLINE_JOB_ID >> "$0"; sleep {seconds}; echo ended >> "$0"'
    return {"run": ["sh", "-c", script, str(folder / "ran" / key)], "resources": {"time": "1m"}}


def run_controller(folder: Path, keys: list[str], pauses: list[float], responses: int) -> None:
    """Run a controller, submit the remaining jobs, and wait until all have ended."""
    served = Controller(folder / "state", gpus=GPUS)
    served.start()
    for key, pause in zip(keys, pauses, strict=True):
        taken = served.submit(read_document(job_document(folder, key), key), "", "/", key)
        os.write(responses, f"{key} {taken[0].id}\n".encode())
        time.sleep(pause)
    while served.store.has_live_jobs():
        time.sleep(0.02)
    os.write(responses, b"over 0\n")
    served.stop()


def run_and_kill(
    folder: Path, keys: list[str], rng: random.Random, lifetime_s: float
) -> tuple[dict[str, str], bool]:
    """Run a controller, kill it after *lifetime_s*; return its responses, and True if all jobs had ended."""
    out, into = os.pipe()
    pauses = [rng.uniform(0.0, 0.05) for _ in keys]
    child = os.fork()
    if child == 0:
        os.close(out)
        code = 1
        try:
            run_controller(folder, keys, pauses, into)
            code = 0
        except BaseException as error:  # the parent sees the exit code, whatever the error
            os.write(2, f"the controller failed: {error!r}\n".encode())
        finally:
            os._exit(code)
    os.close(into)
    pid = os.pidfd_open(child)
    select.select([pid], [], [], lifetime_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(pid)
    with os.fdopen(out) as lines:
        answered = dict(line.split() for line in lines.read().splitlines())
    over = answered.pop("over", None) is not None
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a controller exited with an error before it was killed")
    return answered, over


def main() -> None:
    """Kill controllers, then print the accepted jobs and those that ran."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder: Path = args.folder
    (folder / "ran").mkdir(parents=True)
    rng = random.Random(args.seed)
    accepted: dict[str, str] = {}
    waiting: list[str] = []
    made = 0
    for _ in range(args.kills):
        while len(waiting) < 3:
            waiting.append(f"k{made}")
            made += 1
        answered, _ = run_and_kill(folder, list(waiting), rng, rng.uniform(0.0, 0.35))
        accepted |= answered
        waiting = [key for key in waiting if key not in answered]
    answered, over = run_and_kill(folder, waiting, rng, 120.0)
    accepted |= answered
    ran = {path.name: path.read_text().split("\n")[:-1] for path in (folder / "ran").iterdir()}
    served = Controller(folder / "state", gpus=GPUS)
    states = {one.id: one.state for one in served.store.jobs()}
    served.store.rebuild()
    rebuilt = {one.id: one.state for one in served.store.jobs()}
    served.backend.close()
    served.store.close()
    json.dump(
        {"over": over, "accepted": accepted, "made": made, "ran": ran, "states": states, "rebuilt": rebuilt},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
