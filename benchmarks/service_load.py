"""The service under load: submissions through its API, a long queue, and a day in minutes.

    python benchmarks/service_load.py submit          10,000 submissions at 100/s: latency, none lost
    python benchmarks/service_load.py queue           20,000 pending jobs: seconds of a decision
    python benchmarks/service_load.py bulk            cancel 5,960 jobs: one request, and one for each
    python benchmarks/service_load.py streams         200 pages; 200 followers of events, also of all history
    python benchmarks/service_load.py start           start on a cold and on a warm cache: seconds, memory
    python benchmarks/service_load.py soak            jobs that arrive and end for minutes: memory

The service runs in its own process, as users run it; the caller is this one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import selectors
import socket
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
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

GPUS = "simulated:8xa100"
MODELS = ("resnet50", "vgg16", "bert", "gpt2", "inception3", "deepspeech2", "unknown-model")


@contextmanager
def run_service(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """Run a service; yield its process, its address and its token."""
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
    """A persistent connection."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(url, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def send(
        self, method: str, path: str, body: object = None, absolute: str = "", **headers: str
    ) -> tuple[int, object]:
        """Send a request; return the status and the body of the answer; *absolute* replaces the path."""
        text = None if body is None else json.dumps(body)
        self._connection.request(method, absolute or f"/api/v1{path}", text, {**self._headers, **headers})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def measure_submissions(count: int, rate: float, callers: int = 8) -> None:
    """Submit at a steady rate, without waiting for answers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        run_service(Path(folder), "--gpus", GPUS) as (_, url, token),
    ):
        Caller(url, token).send("GET", "/cluster")
        due: queue.Queue[float | None] = queue.Queue()
        took_s: list[float] = []
        ids: list[str] = []
        wrong: list[int] = []

        def call() -> None:
            caller = Caller(url, token)
            while (at_s := due.get()) is not None:
                job = {"run": ["sleep", "3600"], "resources": {"gpus": 8}}
                status, body = caller.send("POST", "/jobs", job)
                took_s.append(time.monotonic() - at_s)  # from when it should have been sent
                if status == 201:
                    ids.append(body["jobs"][0]["id"])  # type: ignore[index]
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
        stored = _count_jobs(Caller(url, token))
        took_s.sort()
        ms = [1000 * took_s[int(q * (len(took_s) - 1))] for q in (0.5, 0.9, 0.99, 1.0)]
        print(f"{count} submissions in {seconds:.1f} s ({count / seconds:.0f}/s), {len(wrong)} refused")
        names = ("p50", "p90", "p99", "max")
        print(
            "latency ms:",
            *(f"{name} {one:.1f} " for name, one in zip(names, ms, strict=True)),
            "(bar: p99 ≤ 50)",
        )
        print(f"accepted {len(set(ids))}, stored {stored}, lost {len(set(ids)) - stored}")


def _count_jobs(caller: Caller) -> int:
    _, body = caller.send("GET", "/cluster")
    return sum(body["jobs"].values())  # type: ignore[index]


def measure_long_queue(count: int) -> None:
    """Measure one decision while *count* jobs wait, by the figure of the service."""
    for policy in ("auto", "powerflow+fuse", "priority", "srtf", "fifo"):
        place = "tune" if policy == "auto" else "pack"
        options = ("--gpus", GPUS, "--policy", policy, "--place", place)
        with tempfile.TemporaryDirectory() as folder, run_service(Path(folder), *options) as (_, url, token):
            caller = Caller(url, token)
            for part in range(20):  # of several job classes
                model, gpus = MODELS[part % len(MODELS)], 2 ** (part % 4)
                sweep = {"run": "sleep ${n}", "matrix": {"n": f"1..{count // 20}"}, "model": model}
                sizes = {"gpus": f"1..{gpus}", "time": f"{1 + part}h"}
                request = {"resources": sizes, "batch_size": 16 << part % 3, "elastic": part % 2 == 0}
                status, _ = caller.send("POST", "/jobs", {**sweep, **request})
                assert status == 201, status
            decided_s = []
            for _ in range(12):  # a new job requires a new decision
                caller.send("POST", "/jobs", {"run": "sleep 1", "resources": {"gpus": 1}})
                time.sleep(1.0)
                _, body = caller.send("GET", "/cluster")
                decided_s.append(body["decision_s"])  # type: ignore[index]
            pending = body["jobs"]["PENDING"]  # type: ignore[index]
            decided_s.sort()
            middle, most = decided_s[len(decided_s) // 2], decided_s[-1]
            text = f"decision {middle:.3f} s, most {most:.3f} s (bar: ≤ 1)"
            print(f"{policy:<16} {pending} pending: {text}", flush=True)


def measure_bulk_cancel(count: int, sample: int = 500) -> None:
    """Cancel a sweep of *count* jobs by one request, and *sample* jobs by a request for each."""
    with (
        tempfile.TemporaryDirectory() as folder,
        run_service(Path(folder), "--gpus", GPUS) as (_, url, token),
    ):
        caller = Caller(url, token)
        sweep = {"run": "sleep ${n}", "matrix": {"n": f"1001..{1000 + count}"}, "resources": {"gpus": 8}}
        for jobs, by_one in ((sample, False), (count, True)):
            sweep["matrix"] = {"n": f"1001..{1000 + jobs}"}
            status, body = caller.send("POST", "/jobs", sweep)
            assert status == 201, status
            ids = [job["id"] for job in body["jobs"]]  # type: ignore[index]
            began_s = time.monotonic()
            if by_one:
                request = {"action": "cancel", "select": {"sweep": ids[0]}}
                status, body = caller.send("POST", "/jobs/actions", request)
                assert status == 200, (status, body)
                assert body["changed"] == jobs, body  # type: ignore[index]
            else:
                for id in ids:
                    status, _ = caller.send("POST", f"/jobs/{id}/cancel")
                    assert status == 200, status
            answered_s = time.monotonic() - began_s
            while _count_live(caller):
                time.sleep(0.02)
            ended_s = time.monotonic() - began_s
            text = "one request" if by_one else "a request for each"
            print(f"cancel {jobs} jobs, {text}: answered {answered_s:.2f} s, ended {ended_s:.2f} s")


def _count_live(caller: Caller) -> int:
    _, body = caller.send("GET", "/cluster")
    return sum(body["jobs"].get(state, 0) for state in ("PENDING", "RUNNING"))  # type: ignore[index]


def measure_streams(count: int, history: int, seconds: float = 20.0, rate: float = 20.0) -> None:
    """Follow events by *count* streams over a long history; measure health checks and submissions."""
    with tempfile.TemporaryDirectory() as folder:
        _write_history(Path(folder), history)
        with run_service(Path(folder), "--gpus", GPUS) as (served, url, token):
            for text, path, many in (
                ("no streams", "", 0),
                (f"{count} pages in browsers", "live", count),
                (f"{count} streams from now on", "events?follow=true", count),
                (f"{count} streams with all history", "events?follow=true&after=0", count),
            ):
                readers = [_open_stream(url, token, path) for _ in range(many)]
                stop = threading.Event()
                counted = [0, 0]
                reader = threading.Thread(target=_drain, args=(readers, stop, counted))
                reader.start()
                while many and counted[1] < many:  # all streams are open
                    time.sleep(0.05)
                health_ms, submit_ms = _probe(url, token, seconds, rate)
                stop.set()
                reader.join()
                for one in readers:
                    one.close()
                print(
                    f"{text:<32} /healthz {_spell_ms(health_ms)}; submissions {_spell_ms(submit_ms)};"
                    f" {counted[0] / 2**20:.0f} MiB read, service {_resident_mib(served.pid):.0f} MiB",
                    flush=True,
                )


def _write_history(folder: Path, count: int) -> None:
    with Store.open(folder) as store:
        data = {"attempt": 1, "gpus": [0], "kind": "a100", "cap_w": 300, "batch": 0, "cpus": 4}
        for first in range(0, count, 10_000):
            events = (NewEvent(1e9 + n, "retuned", "0", data) for n in range(first, first + 10_000))
            store.append(*events)


def _open_stream(url: str, token: str, path: str) -> socket.socket:
    host, _, port = url.partition(":")
    stream = socket.create_connection((host, int(port)))
    head = f"GET /api/v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    stream.sendall(head.encode())
    stream.setblocking(False)
    return stream


def _drain(streams: list[socket.socket], stop: threading.Event, counted: list[int]) -> None:
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while not stop.is_set():
            for key, _ in selector.select(0.1):
                block = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                counted[0] += len(block)
                counted[1] += block.startswith(b"HTTP/1.1 200")
                if not block:
                    selector.unregister(key.fileobj)


def _probe(url: str, token: str, seconds: float, rate: float) -> tuple[list[float], list[float]]:
    """Return the sorted latencies of health checks and submissions in ms, each at *rate* per second."""
    took_ms: tuple[list[float], list[float]] = ([], [])

    def call(kind: int) -> None:
        caller, began_s = Caller(url, token), time.monotonic()
        for number in range(int(seconds * rate)):
            at_s = began_s + number / rate
            time.sleep(max(at_s - time.monotonic(), 0.0))
            sent_s = time.monotonic()
            if kind == 0:
                caller.send("GET", "", absolute="/healthz")
            else:
                caller.send("POST", "/jobs", {"run": ["sleep", "3600"], "resources": {"gpus": 8}})
            took_ms[kind].append(1000 * (time.monotonic() - sent_s))

    threads = [threading.Thread(target=call, args=(kind,)) for kind in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(took_ms[0]), sorted(took_ms[1])


def _spell_ms(sorted_ms: list[float]) -> str:
    p50, p99, most = (sorted_ms[int(q * (len(sorted_ms) - 1))] for q in (0.5, 0.99, 1.0))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, max {most:.1f} ms"


def run_soak(seconds: float, day_s: float = 86_400.0) -> None:
    """Run a day in *seconds*, on a faster clock, with jobs that arrive and end all the time."""
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
                ended = sum(n for state, n in counts.items() if state not in ("PENDING", "RUNNING"))
                print(
                    f"hour {len(sizes) - 1:2d}: {ended:6d} jobs ended, {counts.get('SUCCEEDED', 0)} ran,"
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


def measure_start() -> None:
    """Print when a service answers health checks and is ready, its CPU time, and its memory."""
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm"):
            with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
                free.close()
                start_s = time.monotonic()
                served = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "wattline",
                        "serve",
                        "--dir",
                        folder,
                        "--port",
                        str(port),
                        "--gpus",
                        GPUS,
                    ],
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"},
                )
                try:
                    healthy_s = _wait_for(port, "/healthz") - start_s
                    ready_s = _wait_for(port, "/readyz") - start_s
                    status = Path(f"/proc/{served.pid}/status").read_text()
                    ticks = Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                    cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
                finally:
                    served.terminate()
                    served.wait()
                resident_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
                print(
                    f"{name}: healthz after {healthy_s:.2f} s, readyz after {ready_s:.2f} s"
                    f" ({cpu_s:.2f} CPU s), {resident_mb:.0f} MB"
                )


def _wait_for(port: int, path: str) -> float:
    """Return the time at which a request is answered 200."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return time.monotonic()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("submit", "queue", "bulk", "streams", "start", "soak"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=240.0)
    args = parser.parse_args()
    if args.what == "submit":
        measure_submissions(args.count or 10_000, args.rate)
    elif args.what == "queue":
        measure_long_queue(args.count or 20_000)
    elif args.what == "start":
        measure_start()
    elif args.what == "streams":
        measure_streams(args.count or 200, 100_000)
    elif args.what == "bulk":
        measure_bulk_cancel(args.count or 5_960)
    else:
        run_soak(args.seconds)


if __name__ == "__main__":
    main()
