"""Tables, counts, outages and shared traces on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command

TABLE = "job,arrival_s,service_sec,gpu_count,owner\na,0,600,2,ann\nb,5,300,1,bob\nc,9,60,0,bob\n"
SACCT = (
    "JobID|JobName|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList\n"
    "1|a1|ann|vision|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:10:00|600|gres/gpu=2|n1\n"
    "2|a2|bob|speech|COMPLETED|2026-01-01T00:00:05|2026-01-01T00:00:10|2026-01-01T00:05:10|300|gres/gpu=1|n2\n"
    "3|a3|bob|speech|RUNNING|2026-01-01T00:00:09|2026-01-01T00:00:10|Unknown|900|gres/gpu=1|n2\n"
)
CLUSTER = ["--cluster", "2xv100:2"]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_guessed_columns_and_counts_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = write(tmp_path / "jobs.csv", TABLE)
    code, out, err = run_command(capsys, "simulate", "--trace", trace, *CLUSTER, "--json")
    assert code == 0
    assert "columns: submit=arrival_s,duration=service_sec,gpus=gpu_count,id=job,user=owner" in err
    assert "change them with --columns" in err
    assert "jobs: 3 rows, 2 jobs; left out 1 row: without GPUs (1)" in err
    read = json.loads(out)["read"]
    assert read == {"rows": 3, "jobs": 2, "joined": 0, "repaired": {}, "dropped": {"without GPUs": 1}}


def test_named_columns_are_used_by_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = write(tmp_path / "jobs.csv", TABLE.replace("arrival_s", "t0"))
    words = ["--trace", trace, *CLUSTER, "--policy", "fifo", "--policy", "sjf"]
    code, _, err = run_command(capsys, "compare", *words)
    assert code == 2
    assert "no column is known to hold submit" in err
    result = run_json_command(capsys, "compare", *words, "--columns", "submit=t0")
    assert result["read"]["jobs"] == 2
    assert len(result["reports"]) == 2


def test_running_jobs_can_be_dropped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["simulate", "--trace", write(tmp_path / "jobs.txt", SACCT), *CLUSTER]
    kept = run_json_command(capsys, *words)
    assert kept["read"]["repaired"] == {"still running, with the work done so far": 1}
    dropped = run_json_command(capsys, *words, "--drop-running")
    assert (kept["jobs"], dropped["jobs"]) == (3, 2)
    assert dropped["read"]["dropped"] == {"still running": 1}


def test_recorded_outages_are_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    events = "Cluster|NodeName|TimeStart|TimeEnd|State|Reason|User\n"
    events += "wl|n1|2026-01-01T00:01:00|2026-01-01T02:00:00|DOWN|x|root(0)\n"
    events += "wl|n1|2026-01-01T05:00:00|2026-01-01T06:00:00|DRAIN|x|root(0)\n"
    words = ["simulate", "--trace", write(tmp_path / "jobs.txt", SACCT), "--cluster", "1xv100:4"]
    usual = run_json_command(capsys, *words)
    outages = write(tmp_path / "events.txt", events)
    code, out, err = run_command(capsys, *words, "--outages", outages, "--json")
    assert code == 0
    assert json.loads(out)["makespan_s"] > usual["makespan_s"] + 6000
    assert "1 outage of 1 node, and 1 time that nodes were drained" in err
    assert "n1 stand for v100-0" in err


def test_nodes_that_fail_all_the_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(capsys, "simulate", "--trace", "synth:count=20", *CLUSTER, "--node-mtbf", "3")
    assert code == 2
    assert "nodes fail every 3 s on average, so job" in err
    assert "a time between failures of at least" in err


@pytest.mark.slow
def test_a_shared_trace_simulates_like_the_original(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, shared = write(tmp_path / "jobs.txt", SACCT), str(tmp_path / "shared.csv.gz")
    made = run_json_command(capsys, "anonymise", trace, "--out", shared)
    assert made["jobs"] == 3
    for policy in ("fifo", "las", "fairshare"):
        one, other = (
            run_json_command(capsys, "simulate", "--trace", path, *CLUSTER, "--policy", policy)
            for path in (trace, shared)
        )
        for name in ("jct_mean_s", "makespan_s", "energy_j", "wait_mean_s"):
            if name in one:
                assert one[name] == other[name], name


def test_a_secret_repeats_pseudonyms_and_no_secret_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = write(tmp_path / "jobs.txt", SACCT)

    def share(*words: str) -> str:
        code, _, err = run_command(capsys, "anonymise", trace, "--out", str(tmp_path / "out.csv"), *words)
        assert code == 0
        assert "3 jobs; replaced id, user" in err
        return (tmp_path / "out.csv").read_text()

    assert share("--secret", "a") == share("--secret", "a") != share("--secret", "b")
    assert share() != share()
    assert "vision" in share("--keep", "team")
    assert "vision" not in share()
