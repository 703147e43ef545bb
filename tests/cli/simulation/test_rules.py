"""`--rules` in simulate, compare, whatif and replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command

RULES = """
[[partitions]]
name = "gpu"
nodes = "v100-[0-1]"
max_time = "1d"

[[partitions]]
name = "debug"
nodes = "v100-[2-3]"
max_jobs_per_user = 1

[[reservations]]
name = "service"
start = 5000
duration = "1h"
maintenance = true

[topology]
rack_penalty = 1.2
"""
HEADER = "id,submit_s,gpus,duration_s,user,time_limit_s,partition,dependency\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [
        f"{n},{60 * n},{1 << (n % 4)},{600 + 10 * n},user{n % 3},{1200 if n % 7 else 200000},"
        f"{'debug' if n % 3 == 0 else 'gpu'},{f'afterany:{n - 1}' if n % 10 == 9 else ''}\n"
        for n in range(60)
    ]
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "".join(rows))
    return str(path)


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return str(path)


@pytest.mark.slow
def test_rules_are_read_announced_and_kept(
    capsys: pytest.CaptureFixture[str], trace: str, rules: str, tmp_path: Path
) -> None:
    log = str(tmp_path / "log.jsonl")
    words = ["simulate", "--trace", trace, "--cluster", "4xv100:4", "--rules", rules, "--log", log]
    code, out, err = run_command(capsys, *words, "--json")
    assert code == 4  # some jobs ask for more time than their partition allows
    assert "rules: 2 partitions, 1 reservation, topology" in err
    assert "never start: Its partition never allows it" in err
    assert "6 jobs wait for others, as dependencies say" in err
    assert json.loads(out)["left"]["partition_limit"] > 0
    code, out, _ = run_command(capsys, "replay", log, "--policy", "fifo")
    assert code == 0
    assert "are equal to the log" in out


@pytest.mark.slow
def test_whatif_lists_rules_with_the_effect_of_leaving_them_out(
    capsys: pytest.CaptureFixture[str], trace: str, rules: str
) -> None:
    words = ["whatif", "--trace", trace, "--cluster", "4xv100:4", "--rules", rules, "--policies", "fifo,las"]
    answer = run_json_command(capsys, *words, "--jobs", "1")
    found = {one["name"]: one for one in answer["assumptions"]}
    assert {"partitions", "reservations", "topology", "dependencies"} <= set(found)
    assert found["partitions"]["effect"] is not None
    assert any("rules: 2 partitions" in note for note in answer["notes"])


@pytest.mark.slow
def test_compare_takes_rules_and_other_placers_are_refused(
    capsys: pytest.CaptureFixture[str], trace: str, rules: str
) -> None:
    words = ["--trace", trace, "--cluster", "4xv100:4", "--rules", rules, "--policy", "fifo"]
    code, _, err = run_command(capsys, "compare", *words, "--policy", "pollux")
    assert code == 4
    assert "never run" in err
    code, _, err = run_command(capsys, "simulate", *words, "--place", "buddy")
    assert code == 2
    assert "--rules needs --place pack" in err
    code, _, err = run_command(capsys, "simulate", *words[:-1], "andreas")
    assert code == 2
    assert "cannot keep rules about nodes" in err


def test_dependencies_hold_without_any_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,gpus,duration_s,dependency\na,0,1,100,\nb,0,1,100,afterok:a\n")
    report = run_json_command(capsys, "simulate", "--trace", str(path), "--cluster", "1xv100:8")
    assert report["makespan_s"] == 200.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[partitions]]\nname='gpu'\nnode='a'", "unknown key 'node'"),
        ("[[partitions]]\nname='gpu'\nnodes='v100-[0-9]'", "rules name the node 'v100-4'"),
    ],
)
def test_mistakes_in_rules_are_usage_errors(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    words = ["simulate", "--trace", trace, "--cluster", "4xv100:4", "--rules", str(path)]
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert problem in err
