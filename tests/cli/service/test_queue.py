"""The commands that look at jobs of a service and change them, as a user types them."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command
from support.controllers import wait_until
from wattline.cli.service.job_text import format_energy, format_joules, format_time, format_totals, sanitize
from wattline.cli.service.top import PowerEstimator, format_frame
from wattline.service.budgeted_policy import DEFAULT_POLICY
from wattline.service.controller import Controller

Capsys = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("here")


def submitted(capsys: Capsys, *words: str) -> str:
    code, out, err = run_command(capsys, "submit", *words)
    assert code in (0, 3), err
    return out.strip()


@pytest.fixture
def held(capsys: Capsys) -> str:
    return submitted(capsys, "--name", "held", "--hold", "--team", "vision", "--", "sleep", "30")


@pytest.fixture
def ended(capsys: Capsys) -> str:
    return submitted(capsys, "--name", "ended", "--wait", "--", "bash", "-c", "echo one; echo two; exit 3")


@pytest.fixture
def running(capsys: Capsys, service: Controller) -> str:
    job = submitted(capsys, "--name", "runs", "--", "sleep", "30")
    until_s = time.monotonic() + 10
    while service.job(job).state != "RUNNING":
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return job


def test_an_empty_queue_is_printed_as_text_and_as_json(capsys: Capsys) -> None:
    assert run_command(capsys, "queue", "--user", "absent") == (0, "no jobs\n", "")
    assert run_json_command(capsys, "queue", "--user", "absent") == {"jobs": []}
    assert run_json_command(capsys, "queue", "--state", "node_fail") == {"jobs": []}


def test_the_queue_has_a_line_for_each_job_and_totals_last(capsys: Capsys, held: str, ended: str) -> None:
    code, out, _ = run_command(capsys, "ps", "--all")
    assert code == 0
    head, *rows, total = out.splitlines()
    assert head.split() == ["job", "name", "state", "gpus", "time", "progress", "energy", "why"]
    assert [row.split()[0] for row in rows] == sorted((row.split()[0] for row in rows), key=int)
    row = next(row for row in rows if row.split()[0] == ended)
    assert "FAILED" in row
    assert "(simulated)" in row
    assert "exit code was 3" in row
    row = next(row for row in rows if row.split()[0] == held)
    assert "PENDING (held)" in row
    assert f"{len(rows)} jobs: " in total
    assert "(simulated)" in total


def test_ended_jobs_are_listed_only_with_all(capsys: Capsys, held: str, ended: str) -> None:
    live = [job["id"] for job in run_json_command(capsys, "queue")["jobs"]]
    assert held in live
    assert ended not in live
    assert ended in [job["id"] for job in run_json_command(capsys, "queue", "--all")["jobs"]]
    assert {job["state"] for job in run_json_command(capsys, "queue", "--state", "failed")["jobs"]} == {
        "FAILED"
    }
    assert {job["team"] for job in run_json_command(capsys, "queue", "--team", "vision")["jobs"]} == {
        "vision"
    }


def test_show_prints_the_details_of_a_job(capsys: Capsys, ended: str) -> None:
    code, out, _ = run_command(capsys, "show", ended)
    assert code == 0
    assert "bash -c 'echo one; echo two; exit 3'" in out
    assert "(simulated)" in out
    assert "exit code  3" in out
    assert run_json_command(capsys, "show", ended)["exit_code"] == 3


def test_logs_are_printed_as_they_are(capsys: Capsys, ended: str) -> None:
    assert run_command(capsys, "logs", ended)[:2] == (0, "one\ntwo\n")
    assert run_command(capsys, "logs", ended, "--tail", "1")[:2] == (0, "two\n")
    code, out, err = run_command(capsys, "logs", "-f", ended)
    assert (code, out) == (0, "one\ntwo\n")
    assert f"job {ended} is FAILED" in err
    code, _, err = run_command(capsys, "logs", ended, "--attempt", "9")
    assert code == 3
    assert "no attempt 9" in err


def test_cancel_asks_and_needs_a_terminal(
    capsys: Capsys, held: str, monkeypatch: pytest.MonkeyPatch, service: Controller
) -> None:
    code, _, err = run_command(capsys, "cancel", held)
    assert code == 2
    assert "-y cancels without asking" in err

    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    code, _, err = run_command(capsys, "cancel", held)
    assert code == 1
    assert f"cancel 1 job: {held} (held, PENDING)? [y/n]" in err
    assert service.job(held).state == "PENDING"
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    code, out, err = run_command(capsys, "cancel", held)
    assert (code, out.strip()) == (0, held)
    until_s = time.monotonic() + 30
    while service.job(held).state != "CANCELLED":
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_running_job_is_cancelled(capsys: Capsys, running: str) -> None:
    code, out, err = run_command(capsys, "cancel", "-y", running)
    assert (code, out.strip()) == (0, running)
    assert "is being cancelled" in err


def test_an_error_of_one_job_does_not_stop_the_others(capsys: Capsys, held: str, ended: str) -> None:
    code, out, err = run_command(capsys, "cancel", "-y", ended, held, "999999")
    assert (code, out.strip()) == (1, held)
    assert f"job {ended} is FAILED" in err
    assert "no job '999999'" in err
    code, out, _ = run_command(capsys, "cancel", "-y", "--json", ended)
    assert code == 1
    assert parse_strict_json(out)["error"]["code"] == "conflict"


def test_jobs_are_held_released_and_prioritised(capsys: Capsys, held: str) -> None:
    assert run_json_command(capsys, "priority", held, "-7.5")["priority"] == -7.5
    assert run_command(capsys, "priority", held, "3")[1] == f"job {held} has priority 3\n"
    assert not run_json_command(capsys, "release", held)["jobs"][0]["held"]
    run_command(capsys, "cancel", "-y", held)


@pytest.mark.slow
def test_why_a_job_waits_is_explained(capsys: Capsys, running: str) -> None:
    job = submitted(capsys, "--gpus", "4", "--", "true")
    time.sleep(0.2)
    code, out, _ = run_command(capsys, "explain", job)
    assert code == 0
    assert f"job {job} is PENDING" in out
    assert "It requests 4 GPUs" in out
    assert "what would change that" in out
    assert run_json_command(capsys, "explain", job)["job"] == job
    run_command(capsys, "cancel", "-y", job, running)


def test_budgets_are_shown_set_and_cleared(capsys: Capsys) -> None:
    assert run_json_command(capsys, "budget", "show")["budgets"] == []
    assert run_command(capsys, "budget", "show") == (0, "", "no energy budget is set\n")
    assert run_command(capsys, "budget", "set", "12kW", "vision:300kWh/day")[:2] == (
        0,
        "12kW\nvision:300kWh/day\n",
    )
    assert run_json_command(capsys, "budget", "show")["budgets"] == ["12kW", "vision:300kWh/day"]
    head, power, team = run_command(capsys, "budget", "show")[1].splitlines()
    assert head.split() == ["budget", "used", "left", "at", "the", "present", "rate"]
    assert power.startswith("12kW")
    assert "300 kWh" in team
    for words in (["set"], ["set", "--clear", "1kW"], ["set", "12 bananas"], ["set", "tariff.csv"]):
        code, _, err = run_command(capsys, "budget", *words)
        assert code == 2
        assert "300kWh/day" in err
    assert run_json_command(capsys, "budget", "set", "--clear")["budgets"] == []


def test_top_prints_one_frame_without_a_terminal(capsys: Capsys, running: str) -> None:
    code, out, _ = run_command(capsys, "top")
    assert code == 0
    assert "4 GPUs (SIMULATED)" in out
    assert "[#...]  1/4" in out
    frame = run_json_command(capsys, "top")
    assert [job["id"] for job in frame["running"]] == [running]
    run_command(capsys, "cancel", "-y", running)


def test_tokens_are_made_listed_and_revoked(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run_command(capsys, "token", "add", "ann", "--role", "viewer", "--lasts", "30d")
    assert code == 0
    assert "shown only once" in err
    assert "ann" in run_command(capsys, "token", "list")[1]
    made = run_json_command(capsys, "token", "add", "bob", "--role", "user", "--user", "daemon")
    assert made["role"] == "user"
    assert [one["name"] for one in run_json_command(capsys, "token", "list")["tokens"]] == [
        "service",
        "ann",
        "bob",
    ]
    monkeypatch.setenv("WATTLINE_TOKEN", out.strip())
    code, _, err = run_command(capsys, "submit", "--", "true")
    assert code == 1
    assert "token ann has the role viewer, expected user" in err
    assert run_command(capsys, "queue")[0] == 0
    monkeypatch.delenv("WATTLINE_TOKEN")
    assert run_json_command(capsys, "token", "revoke", "ann") == {"revoked": "ann"}
    assert run_command(capsys, "token", "revoke", "ann")[0] == 3
    monkeypatch.setenv("WATTLINE_TOKEN", out.strip())
    code, out, _ = run_command(capsys, "queue", "--json")
    assert code == 1
    assert parse_strict_json(out)["error"]["code"] == "unknown_token"


def test_the_log_of_an_epoch_can_be_replayed(capsys: Capsys, ended: str, here: Path) -> None:
    code, out, _ = run_command(capsys, "runlog")
    assert code == 0
    assert all(parse_strict_json(line) for line in out.splitlines())
    (here / "run.jsonl").write_text(out)
    deciders = ["--policy", DEFAULT_POLICY, "--place", "tune", "--models", "library"]
    code, printed, _ = run_command(capsys, "replay", "run.jsonl", *deciders, "--json")
    assert code == 0, f"{printed}\n{out}"
    assert parse_strict_json(printed)["same"]
    assert run_command(capsys, "runlog", "999")[0] == 3


@pytest.mark.parametrize("words", ["show", "logs", "explain", "cancel -y", "hold", "release", "priority"])
def test_an_unknown_job_id_is_not_found(capsys: Capsys, words: str) -> None:
    for name in ("999999", "../cluster", "seven"):
        more = ["1"] if words == "priority" else []
        code, out, err = run_command(capsys, *words.split(), name, *more)
        assert (code, out) == (3, "")
        assert name in err


COMMANDS = [
    "submit --json -- true",
    "submit --dry-run --json -- true",
    "plan --json -- true",
    "queue --json",
    "show 1 --json",
    "cancel -y 1 --json",
    "hold 1 --json",
    "release 1 2 --json",
    "priority 1 2 --json",
    "explain 1 --json",
    "budget show --json",
    "bill --json",
    "budget set 1kW --json",
    "top --json",
    "token add x --role user --json",
    "token list --json",
    "token revoke x --json",
]


@pytest.mark.parametrize("words", COMMANDS)
def test_an_unreachable_service_is_reported_as_text_and_as_json(
    capsys: Capsys, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTLINE_DIR", str(tmp_path / "absent"))
    code, out, _ = run_command(capsys, *words.split())
    error = parse_strict_json(out)["error"]
    assert code == 5
    assert error["code"] == "unreachable"
    assert "wattline serve" in error["hint"]
    monkeypatch.setenv("WATTLINE_URL", "http://127.0.0.1:9")
    code, out, err = run_command(capsys, *words.replace("--json", "").split())
    assert (code, out) == (5, "")
    assert "does not answer" in err


@pytest.mark.slow
def test_queue_imports_neither_numpy_nor_the_service(here: Path) -> None:
    script = (
        "import sys, wattline.cli\n"
        "code = wattline.cli.main(['queue'])\n"
        "heavy = {'numpy', 'numba', 'plotly', 'pydantic', 'fastapi', 'yaml', 'uvicorn', 'sqlite3'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 []"


# -- text


def job(**other: Any) -> dict[str, Any]:
    given = {"gpus": [0], "kind": "a100", "cap_w": None, "batch": None, "cpus": 1, "fused_with": []}
    usual = {
        "id": "1", "name": "a", "state": "RUNNING", "held": False, "reason": "", "gpus_asked": 1,
        "submit_s": 0.0, "start_s": 100.0, "end_s": None, "starts": 1, "progress": 0.42, "energy_j": 7200.0,
        "wait_s": 42.0, "run_s": 300.0,
        "energy_method": "nvml energy counter", "exit_code": None, "allocation": given, "power_w": None,
    }  # fmt: skip
    return {**usual, **other}


def test_energy_has_its_method_and_is_never_0_without_a_meter() -> None:
    assert format_energy(job()) == "2 Wh (nvml energy counter)"
    assert format_energy(job(energy_j=None)) == "unknown (nvml energy counter)"
    assert format_energy(job(energy_j=0.0, energy_method="unmetered")) == "unmetered"
    assert format_energy(job(starts=0, energy_j=0.0)) == "-"
    assert (
        format_totals([job(), job(energy_j=None), job(energy_j=None, energy_method="unmetered")])
        == "3 jobs: 3 RUNNING; 2 Wh (nvml energy counter), 1 unmetered, 1 unknown"
    )


def test_energies_and_times_have_units_of_their_size() -> None:
    assert [format_joules(j) for j in (0, 850, 3600, 5e5, 3.6e6, 7.2e9)] == [
        "0 J", "850 J", "1 Wh", "139 Wh", "1 kWh", "2 MWh",
    ]  # fmt: skip
    assert format_time(job()) == "runs 5 min"
    assert format_time(job(state="PENDING")) == "waits 42 s"
    assert format_time(job(state="CANCELLED", starts=0)) == "never ran"


def test_a_job_that_was_cancelled_after_a_preemption_ran_as_long_as_its_attempts() -> None:
    ended = job(state="CANCELLED", starts=2, start_s=100.0, end_s=9000.0)
    assert format_time(ended) == "ran 5 min"


def test_names_cannot_move_the_cursor() -> None:
    assert sanitize("a\x1b[2Jb\n") == "a?[2Jb?"


def test_power_is_the_growth_of_energy() -> None:
    power = PowerEstimator()
    assert power.estimate([job(energy_j=100.0)], 10.0) == {}
    assert power.estimate([job(energy_j=700.0)], 12.0) == {"1": 300.0}
    assert power.estimate([job(energy_method="unmetered")], 14.0) == {}
    cluster = {
        "nodes": [{"name": "n", "kind": "a100", "gpus": 2}], "simulated": False, "gpus_free": 1,
        "budgets": ["1kW"], "policy": "fifo", "energy_method": "nvml energy counter", "decision_s": 0.001,
        "jobs": {"RUNNING": 1, "FAILED": 2}, "problem": "the disk is full",
    }  # fmt: skip
    shown = format_frame(
        {"at_s": 160.0, "cluster": cluster, "running": [job(power_w=300.0)], "waiting": {"No.": 3}}
    )
    for words in ("[#.]", "300 W", "####------  42 %", "3 jobs waiting", "budget 1kW", "PROBLEM: the disk"):
        assert words in shown


def test_jobs_are_changed_by_filters_ranges_and_lists(
    capsys: Capsys, here: Path, service: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "sweep.yaml").write_text("run: sleep 60${n}\nname: many${n}\nmatrix: {n: 1..8}\n")
    ids = [job["id"] for job in run_json_command(capsys, "submit", "--hold", "sweep.yaml")["jobs"]]
    code, _, err = run_command(capsys, "release", "--sweep", ids[0])
    assert code == 2
    assert "-y releases without asking" in err
    code, out, _ = run_command(capsys, "cancel", "--sweep", ids[0], "--dry-run")
    assert code == 0
    assert out.startswith(f"cancel 8 jobs: {ids[0]} (many1, PENDING), ")
    assert out.endswith(" and 3 more\n")
    assert run_command(capsys, "priority", f"{ids[0]},{ids[1]}", "5")[0] == 0
    assert run_command(capsys, "priority", "-y", "--name", "many*", "5")[1] == (
        "6 jobs given priority, 2 unchanged\n"
    )
    answer = run_json_command(capsys, "cancel", "-y", f"{ids[0]}..{ids[5]}")
    assert (answer["changed"], answer["unchanged"], answer["refused"]) == (6, 0, 0)
    assert answer["ids"] == ids[:6]
    wait_until(lambda: service.job(ids[5]).state == "CANCELLED")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, out, err = run_command(capsys, "cancel", "--name", "many*", "--state", "pending")
    assert (code, out) == (0, "2 jobs cancelled\n")
    assert f"cancel 2 jobs: {ids[6]} (many7, PENDING), {ids[7]} (many8, PENDING)? [y/n]" in err
    wait_until(lambda: service.job(ids[7]).state == "CANCELLED")
    assert run_command(capsys, "cancel", "-y", "--name", "many*")[:2] == (0, "no job matches\n")


def test_a_change_without_a_selection_is_refused(capsys: Capsys) -> None:
    for words in (["cancel", "-y"], ["hold"], ["release"], ["priority", "5"]):
        code, out, err = run_command(capsys, *words)
        assert (code, out) == (2, "")
        assert "no jobs were named" in err
    assert run_command(capsys, "cancel", "-y", "--sweep", "999999")[0] == 3
    code, _, err = run_command(capsys, "priority", "1", "high")
    assert code == 2
    assert "'high' is not a priority" in err


@pytest.mark.slow
def test_old_jobs_are_pruned(capsys: Capsys, service: Controller, ended: str) -> None:
    later = submitted(capsys, "--hold", "--", "true")
    code, out, _ = run_command(capsys, "prune", "--older-than", "0s", "--dry-run")
    assert code == 0
    assert out.startswith("would delete ")
    assert service.job(ended).state == "FAILED"
    code, _, err = run_command(capsys, "prune", "--older-than", "0s")
    assert code == 2
    assert "-y deletes without asking" in err
    report = run_json_command(capsys, "prune", "--older-than", "0s", "-y")
    assert report["jobs"] >= 1
    assert service.store.job(ended) is None
    assert service.job(later).state == "PENDING"
    for words in (["--older-than", "soon"], ["--max-size", "much"]):
        assert run_command(capsys, "prune", *words)[0] == 2
    run_command(capsys, "cancel", "-y", later)
    wait_until(lambda: service.job(later).state == "CANCELLED")
