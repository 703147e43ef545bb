"""`wattline tune`: what is known of recurring jobs, and recorded trainings replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from wattline.batch_size.bandit import TuningTask
from wattline.batch_size.history import RunHistory
from wattline.cli import main


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "memory.db"
    with RunHistory.open(path) as memory:
        memory.store_task("nightly", TuningTask((16, 32, 64), 32, 50))
        for batch, epochs in ((32, 8), (64, 9)):
            memory.add_run(
                "nightly",
                "a100",
                batch=batch,
                reached=True,
                seconds=80.0,
                joules=16000.0,
                epochs=epochs,
                method="nvml energy counter",
            )
    return str(path)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Record a small cifar100 with its best batch size below the default, and an unknown workload."""
    train = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    power = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for batch, epochs, seconds in ((256, 10, 12.0), (512, 15, 10.0), (1024, 30, 9.0)):
        train += [f"cifar100,net,{batch},adam,1e-3,{run},0.6,{epochs}" for run in (1, 2)]
        power += [f"cifar100,net,{batch},adam,{cap},{seconds * 200 / cap},{cap}" for cap in (100, 200)]
    train.append("unheard-of,net,8,adam,1e-3,1,0.6,5")
    (tmp_path / "summary_train.csv").write_text("\n".join(train) + "\n")
    (tmp_path / "summary_power_x9.csv").write_text("\n".join(power) + "\n")
    return tmp_path


def test_show_prints_the_runs_and_the_next_batch_size(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "show", "nightly", "--state", store]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nightly on a100\nbatch  runs  stopped  epochs")
    assert "\nnext: " in out
    assert "\ncost: joules (nvml energy counter) and time, weighted by eta 0.5\n" in out


def test_show_in_json_has_all_batch_sizes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "show", "nightly", "--state", store, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (gpu,) = printed["gpus"]
    assert [row["batch"] for row in gpu["batches"]] == [16, 32, 64]
    assert gpu["batches"][0]["cost_j"] is None
    assert gpu["batches"][1]["epochs"] == pytest.approx(8)
    assert gpu["next"] in (16, 32, 64)
    assert gpu["method"] == "nvml energy counter"


def test_an_unknown_job_is_an_error_with_a_hint(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "show", "nightli", "--state", store]) == 3
    assert "did you mean nightly?" in capsys.readouterr().err
    assert main(["tune", "reset", "weekly", "-y", "--state", store]) == 3


def test_reset_needs_yes_if_stdin_is_no_terminal(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "reset", "nightly", "--state", store]) == 2
    assert "-y" in capsys.readouterr().err
    assert main(["tune", "reset", "nightly", "--state", store, "-y"]) == 0
    assert capsys.readouterr().out == "nightly: deleted 2 runs\n"
    assert main(["tune", "show", "nightly", "--state", store]) == 3


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_reset_asks_a_terminal(store: str, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["tune", "reset", "nightly", "--state", store]) == code


def test_replay_prints_a_line_for_each_optimiser(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "replay", "--data", str(recorded), "--gpu", "all", "--seeds", "2", "--optimizer", "both"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert [line.split()[:4] for line in printed.out.splitlines()[1:]] == [
        ["x9", "cifar100", "12", "zeus"],
        ["x9", "cifar100", "12", "wattline"],
    ]
    assert "unheard-of is left out" in printed.err


def test_a_replay_has_a_page_with_a_summary_and_error_bars(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "tune.html"
    words = ["tune", "replay", "--data", str(recorded), "--gpu", "all", "--seeds", "3", "--optimizer", "both"]
    assert main([*words, "--html", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert re.search(r"zeus: mean regret [0-9.]+ oracle runs", text)
    assert 'class="error"' in text
    assert len(text) < 1.5e6


def test_replay_in_json_carries_goals_and_figures(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "replay", "--data", str(recorded), "--gpu", "x9", "--seeds", "2", "--json"]
    assert main(words) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert (cell["target"], cell["max_epochs"], cell["default"]["batch"]) == (0.6, 100, 1024)
    assert (cell["oracle"]["batch"], cell["oracle"]["cap_w"]) == (256, 200)
    assert cell["optimizers"]["wattline"]["regret"]["mean"] <= cell["default_regret"] + 1


def test_a_gpu_without_recordings_is_an_error(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "replay", "--data", str(recorded), "--gpu", "h100"]) == 3
    assert "only of x9" in capsys.readouterr().err
