"""`--models`, `--draw-models` and `--rescale-cost` as a user types them."""

import json
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from support.small_profiles import build_scaling_profile, write_csv

SYNTH = ["--trace", "synth:count=40,seed=1,gpus_total=16", "--cluster", "2xa100:8"]


def arrivals(log: Path) -> list[dict[str, str]]:
    rounds = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return [event for found in rounds for event in found["events"] if "arrived" in event]


def test_with_the_library_jobs_draw_what_was_measured_of_their_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = str(tmp_path / "run.jsonl")
    perfect = ("--assume", "scaling=linear")
    as_asked = run_json_command(capsys, "simulate", *SYNTH, "--policy", "powerflow", *perfect)
    measured = run_json_command(
        capsys, "simulate", *SYNTH, "--policy", "powerflow", "--models", "library", "--log", log
    )
    assert measured["jct_mean_s"] > as_asked["jct_mean_s"]  # real jobs do not scale as well
    header = json.loads(Path(log).read_text().splitlines()[0])
    assert "zeus" in header["models"]
    assert header["models"] == header["truth"]


def test_models_of_ones_own_are_read_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models = str(tmp_path / "models.toml")
    run_json_command(capsys, "fit", write_csv(build_scaling_profile(), tmp_path), "--out", models)
    log = str(tmp_path / "run.jsonl")
    run_json_command(capsys, "simulate", *SYNTH, "--models", models, "--log", log)
    header = json.loads(Path(log).read_text().splitlines()[0])
    assert header["models"].startswith("WorkloadModels(1 workloads")


def test_the_span_penalty_holds_for_jobs_of_unknown_models(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s,model\na,0,16,100,my-net\n")
    words = ["simulate", "--trace", str(trace), "--cluster", "2xa100:8", "--models", "library"]
    assert run_json_command(capsys, *words)["jct_mean_s"] == 100
    assert run_json_command(capsys, *words, "--span-penalty", "2")["jct_mean_s"] == 200


@pytest.mark.slow
def test_drawn_models_go_into_the_log_and_the_log_can_be_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    words = ["--models", "library", "--draw-models", "--policy", "powerflow:eta=0.5"]
    run_json_command(capsys, "simulate", *SYNTH, *words, "--log", str(log))
    models = {event["model"] for event in arrivals(log)}
    assert "transformer" not in models  # not measured on an A100
    assert "bert" in models  # known, and kept
    assert any(name.startswith("elasticflow/") for name in models)
    replay = ["replay", str(log), "--policy", "powerflow:eta=0.5"]
    assert run_json_command(capsys, *replay, "--models", "library")["same"]
    code, _, err = run_command(capsys, *replay)
    assert code == 1
    assert "of the log" in err


def test_a_job_draws_the_same_model_alone_with_its_team_and_under_any_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*SYNTH, "--models", "library", "--draw-models", "--seed", "4"]
    run_json_command(capsys, "simulate", *words, "--log", str(tmp_path / "all.jsonl"))
    run_json_command(
        capsys, "simulate", *words, "--team", "team-1", "--policy", "las", "--log", str(tmp_path / "1.jsonl")
    )
    all_jobs = {event["id"]: event["model"] for event in arrivals(tmp_path / "all.jsonl")}
    of_team = {event["id"]: event["model"] for event in arrivals(tmp_path / "1.jsonl")}
    assert 0 < len(of_team) < len(all_jobs)
    assert of_team.items() <= all_jobs.items()


@pytest.mark.slow
def test_drawn_models_are_the_same_at_any_number_of_processes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*SYNTH, "--models", "library", "--draw-models", "--policy", "fifo", "--policy", "powerflow"]
    for jobs in ("1", "2"):
        run_json_command(capsys, "compare", *words, "--jobs", jobs, "--logs", str(tmp_path / jobs))
    for name in ("fifo.jsonl.gz", "powerflow.jsonl.gz"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_rescale_cost_slows_jobs_down(capsys: pytest.CaptureFixture[str], few: list[str]) -> None:
    words = ["simulate", *few, "--policy", "powerflow", "--restart-cost", "0s"]
    free, dear = (run_json_command(capsys, *words, "--rescale-cost", cost) for cost in ("0s", "10m"))
    assert dear["restarts"] > 0
    assert dear["jct_mean_s"] > free["jct_mean_s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--draw-models"], "--draw-models needs models to draw from"),
        (["--models", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--rescale-cost", "much"], "'much' is not a duration"),
        (["--models", "library", "--draw-models", "--cluster", "1xh100:8"], "a100, k80, p100, v100, t4"),
    ],
)
def test_bad_models_arguments_are_explained(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    for command in (["simulate"], ["compare", "--policy", "fifo"]):
        code, out, err = run_command(capsys, *command, *SYNTH, *words)
        assert (code, out) == (2, "")
        assert message in err


def write_gavel_inputs(folder: Path) -> tuple[str, str]:
    """Write a trace of Gavel's and a table in which a K80 is four times slower than a V100."""
    row = ("python3 main.py --batch_size 64", "image", "--num_steps", "1", "3600", "1", "1", "-1", "0")
    trace, table = folder / "gavel.trace", folder / "table.json"
    trace.write_text("\t".join(("ResNet-50 (batch size 64)", *row)) + "\n")
    entry = "('ResNet-50 (batch size 64)', 1)"
    table.write_text(json.dumps({"v100": {entry: {"null": 4.0}}, "k80": {entry: {"null": 1.0}}}))
    return str(trace), f"gavel:{table}"


def test_a_table_of_throughputs_makes_gpu_kinds_differ(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, table = write_gavel_inputs(tmp_path)
    for kind, seconds in (("v100", 900), ("k80", 3600)):
        found = run_json_command(
            capsys, "simulate", "--trace", trace, "--cluster", f"1x{kind}:1", "--models", table
        )
        assert found["jct_mean_s"] == pytest.approx(seconds)


def test_the_library_makes_gpu_kinds_differ_for_traces_that_it_timed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, _ = write_gavel_inputs(tmp_path)
    jct_s = [
        run_json_command(
            capsys, "simulate", "--trace", trace, "--cluster", f"1x{kind}:1", "--models", "library"
        )["jct_mean_s"]
        for kind in ("v100", "k80")
    ]
    assert jct_s[1] > 2 * jct_s[0]


def test_a_log_of_gavel_can_be_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, table = write_gavel_inputs(tmp_path)
    log = str(tmp_path / "run.jsonl")
    given = ("--models", table, "--policy", "gavel")
    run_json_command(
        capsys, "simulate", "--trace", trace, "--cluster", "1xv100:1+1xk80:1", *given, "--log", log
    )
    assert run_json_command(capsys, "replay", log, *given)["same"]
