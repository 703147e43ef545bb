"""The web page with 20,000 jobs: first paint, bytes, lists and filters, and from an event to the screen.

    python benchmarks/web_page.py            medians of five as JSON; needs chromium
    python benchmarks/web_page.py --teams    CPU time of the energy of all teams

The service runs in its own process; the browser is Debian's chromium, driven by Playwright.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from service_load import Caller, run_service

from wattline.jobfile import read_document
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store
from wattline.service.submission import build_submissions
from wattline.service.team_usage import read_team_usage

GPUS = "simulated:8xa100"
STATES = ("SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT")
_OBSERVE = (
    "() => { window.painted = 0; new PerformanceObserver(list => { for (const one of list.getEntries())"
    " window.painted = one.startTime; }).observe({type: 'largest-contentful-paint', buffered: true}); }"
)


def write_jobs(folder: Path, count: int, pending: int) -> None:
    """Write *count* jobs to the store of a folder, of which the last *pending* wait and the others ended."""
    choose = random.Random(7)
    now_s = time.time()
    with Store.open(folder) as store:
        events: list[NewEvent] = []
        alike = {gpus: _build_submission(gpus) for gpus in (1, 2, 4, 8)}
        for number in range(1, count + 1):
            one = alike[choose.choice(list(alike)) if number <= count - pending else 4]
            name, team = f"train-{number % 37}-{number}", f"team-{number % 11}"
            at_s = now_s - 86400 + 80000 * number / count
            data = {
                "name": name, "user": "", "team": team, "priority": 0.0, "sweep": "", "submit_s": at_s,
                "fuse": "", "submission": one,
            }  # fmt: skip
            events.append(NewEvent(at_s, "accepted", str(number), data))
            if number <= count - pending:
                end = {
                    "state": choose.choice(STATES), "message": "", "completed_fraction": 1.0,
                    "service_s": choose.uniform(10, 5000), "energy_j": choose.uniform(1e4, 1e7),
                    "energy_method": "simulated", "exit_code": 0,
                }  # fmt: skip
                events.append(NewEvent(at_s, "ended", str(number), end))
            if len(events) >= 5000:
                store.append(*events)
                events.clear()
        store.append(*events)


def _build_submission(gpus: int) -> dict[str, Any]:
    job = read_document({"run": "sleep 3600", "resources": {"gpus": gpus}}, "job")
    (one,) = build_submissions(job, "", "/", None)
    return {"spec": one.spec, "columns": one.columns}


def measure_lists(url: str, token: str) -> dict[str, float]:
    """Return the 95th percentile of lists and filters over HTTP, in ms."""
    queries = (
        "", "descending=true", "state=PENDING", "team=team-3", "text=train-5", "text=zzz", "sort=energy",
        "sort=gpus&descending=true", "sort=name&offset=15000", "sort=waited&state=FAILED", "reason=outranked",
    )  # fmt: skip
    took_ms: list[float] = []
    for query in queries * 5:
        request = urllib.request.Request(
            f"http://{url}/api/v1/jobs?counts=true&limit=100&{query}",
            headers={"Authorization": f"Bearer {token}"},
        )
        began_s = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        took_ms.append(1000 * (time.perf_counter() - began_s))
    took_ms.sort()
    return {"p50": took_ms[len(took_ms) // 2], "p95": took_ms[int(0.95 * (len(took_ms) - 1))]}


def measure_paint(browser: Any, url: str, token: str) -> dict[str, float]:
    """Return the largest paint, bytes and requests of a cold overview."""
    paints_ms, kilobytes, requests = [], [], []
    for _ in range(5):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{url}/login")
        login = f"{{method: 'POST', body: JSON.stringify({{token: '{token}'}})}}"
        page.evaluate(f"fetch('/api/v1/session', {login})")
        page.wait_for_timeout(300)
        page.add_init_script(f"({_OBSERVE})()")
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.send("Network.setCacheDisabled", {"cacheDisabled": True})
        page.goto(f"http://{url}/")
        page.wait_for_selector("#power-now")
        page.wait_for_timeout(700)
        paints_ms.append(page.evaluate("window.painted"))
        sizes = page.evaluate(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))"
            ".filter(one => one.startTime <= window.painted).map(one => one.transferSize)"
        )
        kilobytes.append(sum(sizes) / 1000)
        requests.append(len(sizes))
        context.close()
    return {
        "largest_paint_ms": statistics.median(paints_ms),
        "kilobytes": statistics.median(kilobytes),
        "requests": statistics.median(requests),
    }


def measure_delay(browser: Any, url: str, token: str, count: int = 20) -> dict[str, float]:
    """Return the time from the answer to a submission until the list in the browser shows it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{url}/login")
    page.fill("#token", token)
    page.click("form button")
    page.wait_for_selector("#connection.live")
    page.goto(f"http://{url}/jobs?text=shown-soon")
    page.wait_for_selector("#connection.live")
    caller, took_ms = Caller(url, token), []
    for number in range(1, count + 1):
        job = {"run": "sleep 3600", "name": f"shown-soon-{number}", "resources": {"gpus": 8}}
        caller.send("POST", "/jobs", job)
        began_s = time.perf_counter()
        while page.inner_text("#total") != str(number):
            time.sleep(0.02)
        took_ms.append(1000 * (time.perf_counter() - began_s))
        time.sleep(0.37 * (number % 5))
    context.close()
    took_ms.sort()
    return {"p50": took_ms[count // 2], "p95": took_ms[int(0.95 * (count - 1))]}


def measure_teams(folder: Path) -> dict[str, float]:
    """Return the CPU time of the page of teams without its drawing, in ms: at first, and the median after."""
    with Store.open(folder) as store:
        took_ms: list[float] = []
        for _ in range(11):
            began_s = time.process_time()
            read_team_usage(store, 0.0)
            took_ms.append(1000 * (time.process_time() - began_s))
    return {"first_ms": took_ms[0], "next_ms": statistics.median(took_ms[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--pending", type=int, default=2_000)
    parser.add_argument("--teams", action="store_true", help="measure only the energy of teams; no browser")
    args = parser.parse_args()
    if args.teams:
        with tempfile.TemporaryDirectory() as folder:
            write_jobs(Path(folder), args.count, args.pending)
            print(json.dumps({"jobs": args.count, "teams_cpu": measure_teams(Path(folder))}, indent=2))
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        write_jobs(Path(folder), args.count, args.pending)
        with run_service(Path(folder), "--gpus", GPUS) as (_, url, token), sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            measure_lists(url, token)  # once before, as a service is rarely asked right after its start
            result = {
                "jobs": args.count,
                "lists_ms": measure_lists(url, token),
                "overview": measure_paint(browser, url, token),
                "event_to_screen_ms": measure_delay(browser, url, token),
            }
            browser.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
