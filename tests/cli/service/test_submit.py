"""`wattline submit` and `plan` as a user types them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command
from support.controllers import wait_until_over, wait_until_running
from wattline.service.controller import Controller

Capsys = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("here")


def answered(capsys: Capsys, command: str, *words: str) -> Any:
    code, out, _ = run_command(capsys, command, "--json", *words)
    assert code == 0
    return parse_strict_json(out)


def ids(service: Controller) -> list[str]:
    return [job.id for job in service.store.jobs()]


def test_submit_prints_only_ids_on_stdout(capsys: Capsys, service: Controller) -> None:
    code, out, err = run_command(capsys, "submit", "--name", "quick", "--", "true")
    assert code == 0
    assert out.strip() == ids(service)[-1]
    assert "(quick) submitted" in err


@pytest.mark.slow
def test_wait_returns_the_exit_code_of_the_job(capsys: Capsys) -> None:
    assert run_command(capsys, "submit", "--wait", "--", "true")[0] == 0
    code, out, err = run_command(capsys, "submit", "--wait", "--", "bash", "-c", "exit 7")
    assert code == 7
    assert f"job {out.strip()} FAILED" in err
    assert "simulated" in err


@pytest.mark.slow
def test_wait_for_a_sweep_returns_the_first_exit_code_that_is_not_0(capsys: Capsys, here: Path) -> None:
    (here / "sweep.yaml").write_text(
        "run: [bash, -c, 'exit ${code}']\nmatrix: {code: [0, 5, 6]}\nfuse: off\n"
    )
    code, out, err = run_command(capsys, "submit", "--wait", "sweep.yaml")
    assert code == 5
    assert len(out.split()) == 3
    assert "3 jobs" in err
    assert "1 SUCCEEDED, 2 FAILED" in err


@pytest.mark.slow
def test_wait_shows_the_reason_and_each_change(
    capsys: Capsys, service: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = run_command(capsys, "submit", "--gpus", "4", "--", "sleep", "60")[1].strip()
    wait_until_running(service, blocker)

    def cancel_blocker(text: str) -> None:
        print(text, file=sys.stderr)
        if "fewer GPUs are free" in text:
            service.cancel(blocker)

    monkeypatch.setattr("wattline.cli.service.job_changes.notify", cancel_blocker)
    script = "test $WATTLINE_RESTART_COUNT = 1 || kill -9 $$"
    code, out, err = run_command(capsys, "submit", "--wait", "--", "sh", "-c", script)
    job = out.strip()
    assert code == 0
    lines = [line for line in err.splitlines() if line.startswith(f"job {job} ")]
    assert [line.split(" on ")[0].split(": ")[0] for line in lines] == [
        f"job {job} (sh) submitted",
        f"job {job} is PENDING",
        f"job {job} is RUNNING",
        f"job {job} is PENDING",
        f"job {job} is RUNNING",
        next(line for line in lines if " SUCCEEDED, ran " in line),
    ]
    assert lines[1].endswith("fewer GPUs are free than it requests.")
    assert "a100" in lines[2]
    assert "It is retried in" in lines[3]
    assert lines[4].endswith(", attempt 2")


@pytest.mark.slow
def test_wait_says_that_no_budget_ever_allows_the_job(capsys: Capsys, service: Controller) -> None:
    service.set_budgets(["50W"])
    code, out, err = run_command(capsys, "submit", "--wait", "--timeout", "3", "--", "true")
    service.set_budgets([])
    assert code == 124
    assert "The energy budget never allows it" in err
    assert f"to end it: wattline cancel {out.strip()}" in err
    wait_until_over(service, out.strip())


def test_after_a_timeout_the_job_continues(capsys: Capsys, service: Controller) -> None:
    code, out, err = run_command(capsys, "submit", "--wait", "--timeout", "0.3", "--", "sleep", "30")
    assert code == 124
    assert "the job continues" in err
    assert service.job(out.strip()).state in ("PENDING", "RUNNING")
    assert run_command(capsys, "cancel", "-y", out.strip())[0] == 0


def test_follow_prints_the_output_and_returns_the_exit_code(capsys: Capsys) -> None:
    code, out, err = run_command(capsys, "submit", "-f", "--", "bash", "-c", "echo one; echo two; exit 3")
    assert (code, out) == (3, "one\ntwo\n")
    assert "submitted" in err


def test_with_json_stdout_is_one_document(capsys: Capsys) -> None:
    found = answered(capsys, "submit", "--hold", "--name", "x", "--", "true")
    assert [set(job) >= {"id", "state", "energy_j", "energy_method"} for job in found["jobs"]] == [True]
    code, out, err = run_command(capsys, "submit", "-f", "--json", "--", "bash", "-c", "echo hello; exit 2")
    assert code == 2
    assert parse_strict_json(out)["jobs"][0]["exit_code"] == 2
    assert "hello" in err


@pytest.mark.slow
def test_words_after_the_dashes_belong_to_the_command(capsys: Capsys) -> None:
    code, out, _ = run_command(
        capsys, "submit", "-f", "--env", "X=$5", "--", "bash", "-c", 'echo "$X $0"', "--json"
    )
    assert (code, out) == (0, "$5 --json\n")
    code, out, _ = run_command(capsys, "submit", "-f", "--", "echo", "${lr}", "--", "$HOME")
    assert (code, out) == (0, "${lr} -- $HOME\n")


@pytest.mark.slow
def test_a_job_runs_in_the_directory_of_submission_unless_it_names_one(capsys: Capsys, here: Path) -> None:
    assert run_command(capsys, "submit", "-f", "--", "pwd")[1].strip() == str(here.resolve())
    (here / "job.yaml").write_text("run: pwd\nworkdir: /usr\n")
    assert run_command(capsys, "submit", "-f", "job.yaml")[1].strip() == "/usr"


def test_options_override_the_job_file(capsys: Capsys, here: Path) -> None:
    (here / "job.yaml").write_text("run: sleep 0\nname: old\nresources: {gpus: 1, time: 1h}\nenv: {A: 1}\n")
    words = ["--name", "new", "--gpus", "2", "--team", "vision", "--priority", "-3", "--hold"]
    job = answered(capsys, "submit", "job.yaml", *words)["jobs"][0]
    assert (job["name"], job["gpus_asked"], job["team"], job["priority"]) == ("new", 2, "vision", -3)
    assert job["held"]
    assert run_command(capsys, "release", job["id"])[0] == 0


@pytest.mark.slow
def test_a_job_can_come_from_stdin(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"run: echo from stdin\n")))
    assert run_command(capsys, "submit", "-f", "-")[1] == "from stdin\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: true\nresources:\n  gpu: 2\n", "job.yaml:3: "),
        ("run: true\nresources: {gpus: many}\n", "job.yaml:2: "),
        ("run: [\n", "job.yaml:"),
        ("", "job.yaml:1: is empty"),
        ("run: echo ${lr}\n", "job.yaml:1: "),
        ("run: 'x\n" + "y" * (1 << 20), "job.yaml: longer than 1 MiB"),
        ("run: \udcff\n", "job.yaml:1: not UTF-8 text"),
    ],
)
def test_a_bad_file_is_named_with_its_line_and_nothing_is_sent(
    capsys: Capsys, here: Path, service: Controller, text: str, message: str
) -> None:
    (here / "job.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    before = ids(service)
    code, out, err = run_command(capsys, "submit", "job.yaml")
    assert (code, out) == (2, "")
    assert message in err
    code, out, _ = run_command(capsys, "submit", "job.yaml", "--json")
    assert code == 2
    assert message in parse_strict_json(out)["error"]["message"]
    assert ids(service) == before


def test_files_of_ten_megabytes_are_refused_before_they_are_read(capsys: Capsys, here: Path) -> None:
    (here / "job.yaml").write_bytes(b"run: x\n" * 1_500_000)
    code, _, err = run_command(capsys, "submit", "job.yaml")
    assert code == 2
    assert "longer than 1 MiB" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["submit"], 2, "no job was given"),
        (["submit", "nowhere.yaml"], 3, "nowhere.yaml: no such file"),
        (["submit", "nowhere.yaml", "--", "true"], 2, "both a job file and a command were given"),
        (["submit", "--"], 2, "run"),
        (["submit", ".", "--hold"], 2, "cannot be read"),
        (["submit", "--gpus", "many", "--", "true"], 2, "resources.gpus"),
        (["submit", "--time", "soon", "--", "true"], 2, "resources.time"),
        (["submit", "--deadline", "soon", "--", "true"], 2, "deadline"),
        (["submit", "--env", "NOT_HERE_AT_ALL", "--", "true"], 2, "no such variable"),
        (["submit", "--timeout", "3s", "--", "true"], 2, "--timeout"),
        (["submit", "--prio", "3", "--", "true"], 2, "--prio"),
    ],
)
def test_bad_arguments_of_submit_are_refused_as_text_and_as_json(
    capsys: Capsys, words: list[str], code: int, message: str
) -> None:
    found, out, err = run_command(capsys, *words)
    assert (found, out) == (code, "")
    assert message in err
    found, out, _ = run_command(capsys, words[0], "--json", *words[1:])
    assert found == code
    assert message in parse_strict_json(out)["error"]["message"]


def test_a_plan_is_shown_and_nothing_is_submitted(capsys: Capsys, service: Controller) -> None:
    run_command(capsys, "submit", "--wait", "--", "true")  # a service that never had a job has no plans yet
    before = ids(service)
    code, out, err = run_command(capsys, "plan", "--gpus", "2", "--time", "1h", "--", "true")
    assert code == 0
    assert "as requested" in out
    assert "energy: assumed a100 at the power of a busy GPU" in err
    assert "nothing was submitted" in err
    assert answered(capsys, "submit", "--dry-run", "--", "true")["feasible"]
    assert ids(service) == before


def test_an_infeasible_plan_has_its_own_exit_code(capsys: Capsys) -> None:
    run_command(capsys, "submit", "--wait", "--", "true")
    code, out, err = run_command(capsys, "plan", "--gpus", "99", "--", "true")
    assert (code, out) == (4, "")
    assert "99" in err
    code, out, _ = run_command(capsys, "submit", "--dry-run", "--json", "--gpus", "99", "--", "true")
    assert code == 4
    assert not parse_strict_json(out)["feasible"]


def test_the_order_of_jobs_is_set_and_shown(capsys: Capsys, here: Path) -> None:
    first = run_command(capsys, "submit", "--hold", "--", "true")[1].strip()
    (here / "sweep.yaml").write_text("run: true ${lr}\nmatrix: {lr: [1e-3, 1e-2]}\nmax_parallel: 5\n")
    words = ["--depends-on", f"{first},{first}:end", "--max-parallel", "1"]
    jobs = run_json_command(capsys, "submit", *words, "sweep.yaml")["jobs"]
    assert [job["matrix"] for job in jobs] == [{"lr": 0.001}, {"lr": 0.01}]
    assert jobs[0]["max_parallel"] == 1
    assert jobs[0]["depends_on"] == [{"job": first, "when": "success"}, {"job": first, "when": "end"}]
    _, out, _ = run_command(capsys, "show", jobs[1]["id"])
    assert "lr=0.01" in out
    assert f"job {first} (success), job {first} (any end)" in out
    assert "at most 1 of its sweep" in out
    assert run_command(capsys, "cancel", "-y", first)[0] == 0
    code, _, err = run_command(capsys, "submit", "--depends-on", "999999", "--", "true")
    assert code == 3
    assert "depends_on is '999999', but there is no such job" in err
    code, _, err = run_command(capsys, "submit", "--max-parallel", "2", "--", "true")
    assert code == 2
    assert "max_parallel is 2, but there is no matrix" in err


def test_a_batch_script_of_slurm_runs_as_an_array(capsys: Capsys, service: Controller, here: Path) -> None:
    (here / "train.sh").write_text(
        "#!/bin/bash\n#SBATCH -J batch --gpus=2\n#SBATCH --array=3,5%1\n#SBATCH -p dev\n"
        "echo task $SLURM_ARRAY_TASK_ID $1 >> out\n"
    )
    code, out, err = run_command(capsys, "submit", "--wait", "--from-sbatch", "train.sh", "--", "one word")
    assert code == 0
    assert len(out.split()) == 2
    assert "train.sh:4: --partition has no effect: there are no partitions" in err
    assert sorted((here / "out").read_text().splitlines()) == ["task 3 one word", "task 5 one word"]
    assert {service.job(job).name for job in out.split()} == {"batch"}


def test_a_batch_script_that_asks_to_be_held_is_held(capsys: Capsys, here: Path) -> None:
    (here / "held.sh").write_text("#!/bin/sh\n#SBATCH -H -G1\ntrue\n")
    assert answered(capsys, "submit", "--from-sbatch", "held.sh")["jobs"][0]["held"]
    code, _, err = run_command(capsys, "submit", "--from-sbatch", "held.sh", "job.yaml")
    assert code == 2
    assert "expected one" in err
