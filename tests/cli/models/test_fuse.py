"""`wattline fuse check`: what a user sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from wattline.cli import main

SCRIPT = """
import torch
import torch.nn.functional as F
from wattline import fusion

def train(array, configs):
    step = fusion.train_step(array, F.mse_loss, fusion.SGD(array, lr=0.1), compile=False)
    while True:
        step(torch.zeros(3, 4), torch.zeros(3, 2))

fusion.main(lambda config: torch.nn.Linear(4, 2), train)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.slow
def test_fuse_check_prints_the_gain(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "check", script, "--width", "3", "--seconds", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "one batched matrix product" in out
    assert "one ordinary model" in out
    assert "3 ordinary models in turn" in out
    assert "3 members as an array" in out
    assert "times the samples of ordinary models one after another" in out


def test_fuse_check_refuses_an_ordinary_script_without_running_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.py"
    path.write_text("raise AssertionError('it has run')\n")
    assert main(["fuse", "check", str(path)]) == 2
    err = capsys.readouterr().err
    assert "it was not run" in err
    assert "define build(config)" in err


@pytest.mark.slow
def test_fuse_check_prints_every_figure_as_json(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "check", script, "--width", "2", "--seconds", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["width"] == 2
    assert found["fusible"]
    assert found["gain"] == pytest.approx(found["fused_steps_s"] / found["serial"]["steps_s"])
    assert found["alone_steps_s"] == found["alone"]["steps_s"]
    assert {"key", "peak_gib", "parts", "compiled", "batch"} <= set(found)


def test_a_missing_script_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "check", "nowhere.py", "--json"]) == 3
    assert "nowhere.py" in json.loads(capsys.readouterr().out)["error"]["message"]
