"""`wattline advise` as its users see it."""

import json
from pathlib import Path

import pytest

from wattline.cli import main


def test_advice_for_a_model_names_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "gnmt", "--gpus", "2", "--cpus", "12", "--mem", "60G"]) == 0
    out = capsys.readouterr().out
    assert "gnmt, 2 GPUs, 1 job, requests 12 cores and 60 GiB for each GPU" in out
    assert "--cpus-per-gpu=1 --mem-per-gpu=23G keeps 100 % speed; frees 22 cores = 3 more one-GPU jobs" in out


def test_advice_for_a_trace_counts_its_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("submit_s,gpus,duration_s,model\n0,1,10,gnmt\n1,1,10,gnmt\n2,1,10,mystery\n")
    assert main(["advise", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["advice"]
    assert [(a["model"], a["jobs"], a["cpus_per_gpu"]) for a in found] == [
        ("gnmt", 2, 1),
        ("mystery", 1, None),
    ]
    assert set(found[0]) == {
        *(
            "model",
            "gpu",
            "gpus",
            "jobs",
            "node",
            "asks",
            "cpus_per_gpu",
            "mem_per_gpu_gib",
            "flags",
            "keeps",
        ),
        *("faster", "frees_cpus", "frees_gib", "more_jobs", "says"),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "nothing was measured of 'nosuch'"),
        (["nosuch.csv"], "nosuch.csv"),
        (["alexnet", "--keep", "2"], "'2' is not above 0 and at most 1"),
        (["alexnet", "--cluster", "what?"], "cluster 'what?'"),
    ],
)
def test_bad_arguments_of_advise_are_explained(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *words]) != 0
    assert message in capsys.readouterr().err
