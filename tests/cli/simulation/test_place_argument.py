"""`--place` and POLICY@PLACE as a user types them."""

from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command

SYNTH = ["--trace", "synth:count=40,seed=1,gpus_total=16", "--cluster", "2xa100:8"]


def test_a_placer_is_chosen_for_all_or_for_one_policy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "fifo", "--policy", "fifo@pack+power", "--place", "buddy"]
    plain, own = run_json_command(capsys, "compare", *SYNTH, *words)["reports"]
    assert (plain["policy"], plain["policy_exact"], plain["place"]) == (
        "fifo",
        "fifo",
        "buddy",
    )
    assert (own["policy"], own["policy_exact"], own["place"]) == (
        "fifo@pack+power",
        "fifo",
        "pack+power",
    )


@pytest.mark.slow
def test_simulate_accepts_the_same_placers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", *SYNTH, "--backfill", "none"]
    own = run_json_command(capsys, *words, "--policy", "las:quantum=10m@buddy+power:spare=8")
    assert own["policy"] == "las:quantum=10m@buddy+power:spare=8"
    assert own["policy_exact"] == "las:quantum=600s"
    assert own["place"] == "buddy:backfill=none+power:spare=8"
    same = run_json_command(capsys, *words, "--policy", "las:quantum=10m", "--place", "buddy+power:spare=8")
    assert same["jct_mean_s"] == own["jct_mean_s"]
    assert same["energy_j"] == own["energy_j"]


@pytest.mark.slow
def test_a_log_is_replayed_only_with_its_own_placer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = str(tmp_path / "run.jsonl")
    run_json_command(capsys, "simulate", *SYNTH, "--policy", "srtf@pack+power", "--log", log)
    assert run_json_command(capsys, "replay", log, "--policy", "srtf@pack+power")["same"]
    assert run_json_command(capsys, "replay", log, "--policy", "srtf", "--place", "pack+power")["same"]
    assert run_command(capsys, "replay", log, "--policy", "srtf")[0] == 1


def test_logs_of_one_policy_with_two_placers_are_two_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_json_command(
        capsys, "compare", *SYNTH, "--policy", "fifo", "--policy", "fifo@buddy", "--logs", str(tmp_path)
    )
    assert {path.name for path in tmp_path.iterdir()} == {"fifo.jsonl.gz", "fifo@buddy.jsonl.gz"}


@pytest.mark.parametrize("words", [["--policy", "fifo@bodddy"], ["--policy", "fifo", "--place", "bodddy"]])
def test_a_misspelt_placer_is_found_before_anything_runs(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    for command in (["simulate"], ["compare", "--policy", "las"]):
        code, out, err = run_command(capsys, *command, *SYNTH, *words)
        assert (code, out) == (2, "")
        assert "unknown placer 'bodddy'" in err
        assert "did you mean buddy?" in err


@pytest.mark.slow
def test_tables_name_placers_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "compare", *SYNTH, "--policy", "fifo", "--policy", "las@buddy+power")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["fifo@pack", "las@buddy+power"]
