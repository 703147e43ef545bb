"""How the service bears load: submissions through its API, a long queue, and a day in minutes.

    python benchmarks/service_load.py submit          10,000 submissions at 100/s: latency, none lost
    python benchmarks/service_load.py queue           20,000 pending jobs: seconds of a decision
    python benchmarks/service_load.py soak            jobs that come and go for minutes: memory

The service runs in its own process, as users run it; the caller is this one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wattline.jobfile import read_document
from wattline.service.controller import Controller

GPUS = "simulated:8xa100"
MODELS = ("resnet50", "vgg16", "bert", "gpt2", "inception3", "deepspeech2", "nobody-knows")


@contextmanager
def service(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """A service that listens: its process, where, and the token."""
    command = [sys.executable, "-m", "wattline", "serve", "--dir", str(folder), "--port", "0"]
    served = subprocess.Popen(
        [*command, "--rate", "1000000", *options],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not (folder / "url").exists():
            if served.poll() is not None:
                raise SystemExit("the service did not start")
            time.sleep(0.05)
        url = (folder / "url").read_text().strip().removeprefix("http://")
        yield served, url, (folder / "token").read_text().strip()
    finally:
        served.terminate()
        served.wait()


class Caller:
    """A connection that stays."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(url, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, object]:
        """What it answers."""
        text = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/v1{path}", text, {**self._headers, **headers})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def submit(count: int, rate: float, callers: int = 8) -> None:
    """Submissions at a steady rate, whether or not the last was answered."""
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), "--gpus", GPUS) as (_, url, token):
        Caller(url, token).ask("GET", "/cluster")
        due: queue.Queue[float | None] = queue.Queue()
        took_s: list[float] = []
        ids: list[str] = []
        wrong: list[int] = []

        def call() -> None:
            caller = Caller(url, token)
            while (at_s := due.get()) is not None:
                job = {"run": ["sleep", "3600"], "resources": {"gpus": 8}}
                status, said = caller.ask("POST", "/jobs", job)
                took_s.append(time.monotonic() - at_s)  # from when it should have been sent
                if status == 201:
                    ids.append(said["jobs"][0]["id"])  # type: ignore[index]
                else:
                    wrong.append(status)

        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        began_s = time.monotonic()
        for number in range(count):
            at_s = began_s + number / rate
            time.sleep(max(at_s - time.monotonic(), 0.0))
            due.put(at_s)
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began_s
        kept = _count(Caller(url, token))
        took_s.sort()
        ms = [1000 * took_s[int(q * (len(took_s) - 1))] for q in (0.5, 0.9, 0.99, 1.0)]
        print(f"{count} submissions in {seconds:.1f} s ({count / seconds:.0f}/s), {len(wrong)} refused")
        names = ("p50", "p90", "p99", "max")
        print(
            "latency ms:",
            *(f"{name} {one:.1f} " for name, one in zip(names, ms, strict=True)),
            "(bar: p99 ≤ 50)",
        )
        print(f"accepted {len(set(ids))}, kept {kept}, lost {len(set(ids)) - kept}")


def _count(caller: Caller) -> int:
    _, said = caller.ask("GET", "/cluster")
    return sum(said["jobs"].values())  # type: ignore[index]


def long_queue(count: int) -> None:
    """How long one decision takes while so many wait, as the service measures itself."""
    for policy in ("auto", "powerflow+fuse", "priority", "srtf", "fifo"):
        place = "tune" if policy == "auto" else "pack"
        options = ("--gpus", GPUS, "--policy", policy, "--place", place)
        with tempfile.TemporaryDirectory() as folder, service(Path(folder), *options) as (_, url, token):
            caller = Caller(url, token)
            for part in range(20):  # of many sorts
                model, gpus = MODELS[part % len(MODELS)], 2 ** (part % 4)
                sweep = {"run": "sleep ${n}", "matrix": {"n": f"1..{count // 20}"}, "model": model}
                sizes = {"gpus": f"1..{gpus}", "time": f"{1 + part}h"}
                asks = {"resources": sizes, "batch_size": 16 << part % 3, "elastic": part % 2 == 0}
                status, _ = caller.ask("POST", "/jobs", {**sweep, **asks})
                assert status == 201, status
            decided_s = []
            for _ in range(12):  # each cancels one that waits: a reason to decide again
                caller.ask("POST", "/jobs", {"run": "sleep 1", "resources": {"gpus": 1}})
                time.sleep(1.0)
                _, said = caller.ask("GET", "/cluster")
                decided_s.append(said["decision_s"])  # type: ignore[index]
            pending = said["jobs"]["PENDING"]  # type: ignore[index]
            decided_s.sort()
            middle, most = decided_s[len(decided_s) // 2], decided_s[-1]
            said_s = f"decision {middle:.3f} s, most {most:.3f} s (bar: ≤ 1)"
            print(f"{policy:<16} {pending} pending: {said_s}", flush=True)


def soak(seconds: float, day_s: float = 86_400.0) -> None:
    """A day in *seconds*, on a clock that runs so much faster; jobs come and go all the time."""
    began_s, start_s = time.monotonic(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        served = Controller(
            folder, gpus=GPUS, clock=lambda: start_s + (time.monotonic() - began_s) * day_s / seconds
        )
        served.start()
        served.set_budgets(["20kWh/day"])
        short = read_document({"run": "true ${n}", "matrix": {"n": "1..20"}}, "short")
        never = read_document({"run": "true ${n}", "matrix": {"n": "1..300"}}, "never")
        sizes: list[float] = []
        while (past_s := time.monotonic() - began_s) < seconds:
            counts = served.store.count_by_state()
            if counts.get("PENDING", 0) < 100:  # jobs that end at once, and some that never start
                served.submit(short, "", "/")
                for job in served.submit(never, "", "/"):
                    served.cancel(job.id)
            if past_s >= seconds / 24 * len(sizes):
                sizes.append(_resident_mib(os.getpid()))
                over = sum(n for state, n in counts.items() if state not in ("PENDING", "RUNNING"))
                print(
                    f"hour {len(sizes) - 1:2d}: {over:6d} jobs over, {counts.get('SUCCEEDED', 0)} ran,"
                    f" epoch {served.view().epoch}, {sizes[-1]:.0f} MiB",
                    flush=True,
                )
            time.sleep(0.05)
        served.stop()
    half = sizes[len(sizes) // 2 :]
    print(f"memory from half time on: {min(half):.0f} to {max(half):.0f} MiB, first hour {sizes[1]:.0f} MiB")


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("submit", "queue", "soak"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=240.0)
    args = parser.parse_args()
    if args.what == "submit":
        submit(args.count or 10_000, args.rate)
    elif args.what == "queue":
        long_queue(args.count or 20_000)
    else:
        soak(args.seconds)


if __name__ == "__main__":
    main()
