"""Batch scripts of Slurm as job documents."""

from __future__ import annotations

from typing import Any

import pytest

from wattline.errors import ConfigError
from wattline.jobfile import expand, read_document
from wattline.jobfile.sbatch_reader import SbatchJob, read_sbatch

SCRIPT = """#!/bin/bash
#SBATCH --job-name=resnet   # a comment
#SBATCH -A vision -t 1-12:00:00
#SBATCH --gres=gpu:a100:2
#SBATCH --ntasks=2 --cpus-per-task 8
#SBATCH --mem=64G
#SBATCH --array=0-6:2%2
#SBATCH --signal=B:USR1@120
#SBATCH --output=%j.out
#SBATCH --export=ALL,SEED=3
#SBATCH --no-requeue
#SBATCH --nice=5
#SBATCH --dependency=afterok:12:13,afterany:14

# a comment between
echo "$SLURM_ARRAY_TASK_ID"
#SBATCH --time=1
"""


def read(text: str, *arguments: str) -> SbatchJob:
    return read_sbatch(text, "train.sh", "/home/ann/train.sh", arguments)


def with_line(line: str) -> str:
    return f"#!/bin/bash\n#SBATCH --gpus=1\n#SBATCH {line}\ntrue\n"


def test_all_common_options_become_fields() -> None:
    job = read(SCRIPT, "one", "$two")
    document = dict(job.document)
    assert document.pop("resources") == {
        "gpus": 2,
        "gpu_type": "a100",
        "cpus_per_gpu": 8.0,
        "memory_per_gpu": "32G",
        "time": 129_600.0,
    }
    assert document.pop("matrix") == {"task": [0, 2, 4, 6]}
    assert document.pop("env")["SLURM_ARRAY_TASK_ID"] == "${task}"
    run = document.pop("run")
    assert document == {
        "name": "resnet",
        "team": "vision",
        "priority": -5.0,
        "retries": 0,
        "checkpoint": {"signal": "SIGUSR1", "grace": "120s"},
        "depends_on": ["12:success", "13:success", "14:end"],
        "max_parallel": 2,
    }
    members = expand(read_document({**job.document, "workdir": "/"}, "job"))
    assert [member.env["SLURM_ARRAY_TASK_ID"] for member in members] == ["0", "2", "4", "6"]
    assert members[0].env["SEED"] == "3"
    words = members[0].words
    assert words[:2] == ("/bin/bash", "-c")
    assert words[2].endswith(SCRIPT)
    assert words[3:] == ("/home/ann/train.sh", "one", "$two")
    assert len(run) == 6
    assert [notice.split(":")[1] for notice in job.notices] == ["9", "13"]
    assert "--output has no effect: wattline logs shows the output" in job.notices[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400.0),
        ("1:30", 90.0),
        ("2:00:00", 7200.0),
        ("1-2", 93_600.0),
        ("1-2:03", 93_780.0),
        ("0", None),
    ],
)
def test_times_are_those_of_slurm(text: str, expected: float | None) -> None:
    resources = read(with_line(f"--time={text}")).document["resources"]
    assert resources.get("time") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tme=3", r"train\.sh:3: unknown option '--tme' of sbatch"),
        ("-Z", r"train\.sh:3: unknown option '-Z'"),
        ("word", r"train\.sh:3: 'word' is not an option"),
        ("--nodes=2", r"train\.sh:3: --nodes is 2, but jobs do not span machines"),
        ("--nodes=1-4", r"train\.sh:3: --nodes is '1-4': expected one whole number"),
        ("--time=soon", r"train\.sh:3: --time is 'soon': expected minutes"),
        ("--mem=lots", r"train\.sh:3: --mem is 'lots': expected a size"),
        ("--array=a-b", r"train\.sh:3: --array is 'a-b': expected indices"),
        ("--dependency=singleton", r"train\.sh:3: --dependency is 'singleton': expected afterok"),
        ("--dependency=afterok:1?afterok:2", "any of several jobs is enough"),
        ("--begin=now+1hour", r"train\.sh:3: --begin cannot be kept: a start time"),
        ("--gpus-per-node=2", r"--gpus \(1\) and --gpus-per-node \(2\) request different numbers"),
        ("hetjob", "a heterogeneous job"),
        ("--time", "--time has no value"),
        ("--signal=999", "there is no signal 999"),
        ("--job-name='x", "cannot be split into words"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(with_line(line))


def test_a_script_without_a_first_line_is_refused_as_sbatch_does() -> None:
    with pytest.raises(ConfigError, match="does not begin with #!"):
        read("echo hi\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/usr/bin/env python3\n#SBATCH -G1\n", ["/usr/bin/env", "python3", "/home/ann/train.sh"]),
        ("#!/bin/bash -l\n#SBATCH -G 1\n", ["/bin/bash", "-l", "-c"]),
    ],
)
def test_the_interpreter_of_the_first_line_runs_the_script(text: str, words: list[str]) -> None:
    assert read(text).document["run"][: len(words)] == words


def test_srun_and_a_missing_gpu_are_announced() -> None:
    notices: list[Any] = read("#!/bin/bash\nsrun python train.py\n").notices
    assert notices == [
        "train.sh: requests no GPU; a job of Wattline has at least one",
        "train.sh:2: srun needs a service with --engine slurm",
    ]
