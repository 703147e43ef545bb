"""Fusible scripts: their command line, loading, and the measured gain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from wattline.errors import ConfigError, NotFound  # noqa: E402
from wattline.fusion.gain import load_script, measure_gain  # noqa: E402
from wattline.fusion.script_main import main, read_configs  # noqa: E402

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from wattline import fusion

def build(config):
    torch.manual_seed(config.get("seed", 0))
    return nn.Sequential(nn.Linear(4, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 2))

def train(array, configs):
    step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), compile=False)
    for _ in range(STEPS):
        step(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
"""
CALL = "fusion.main(build, train)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("STEPS", "10_000_000") + CALL)
    return path


def test_arguments_describe_one_member_or_every_combination() -> None:
    assert read_configs([]) == [{}]
    assert read_configs(["lr=1e-3", "name=resnet", "deep=true"]) == [
        {"lr": 1e-3, "name": "resnet", "deep": True}
    ]
    assert [c["lr"] * 10 + c["seed"] for c in read_configs(["lr=1,2", "seed=3,4"])] == [13, 14, 23, 24]


def test_members_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    path.write_text(json.dumps([{"lr": 1}, {"lr": 2}]))
    assert read_configs(["--members", str(path)]) == [{"lr": 1}, {"lr": 2}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lr"], "cannot parse 'lr', expected name=value"),
        (["--lr=3"], "cannot parse '--lr=3'"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["--members", "nowhere.json"], "nowhere.json: No such file"),
        (["--members"], "expected one file"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_configs(arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "expected a JSON list"), ("[]", "one for each member"), ("[3]", "member 0 is 3")],
)
def test_an_invalid_members_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "members.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_configs(["--members", str(path)])


def test_main_trains_the_members_given_on_the_command_line() -> None:
    seen = []
    main(
        lambda config: torch.nn.Linear(2, 2),
        lambda array, configs: seen.append((len(array), configs)),
        ["lr=1,2,3"],
    )
    assert seen == [(3, [{"lr": 1}, {"lr": 2}, {"lr": 3}])]


def test_a_script_is_loaded_without_training(script: Path) -> None:
    build, train = load_script(script)
    assert isinstance(build({"hidden": 3}), torch.nn.Sequential)
    assert callable(train)


def test_a_script_that_only_defines_build_and_train_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("STEPS", "1"))
    assert load_script(path)[0]({"hidden": 3})


def test_a_script_without_main_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"nothing calls wattline.fusion.main"):
        load_script(path)
    with pytest.raises(NotFound, match="no such script"):
        load_script(tmp_path / "nowhere.py")


def test_the_gain_is_measured_alone_and_as_an_array(script: Path) -> None:
    gain = measure_gain(script, 4, ["hidden=3"], seconds=0.05)
    assert gain.width == 4
    assert gain.gain == pytest.approx(4 * gain.fused_steps_s / gain.alone_steps_s)
    assert [part.how for part in gain.parts] == ["container", "direct", "vmap", "direct"]
    other = measure_gain(script, 2, ["hidden=5"], seconds=0.05)
    assert other.key != gain.key


def test_a_missing_config_value_is_named(script: Path) -> None:
    with pytest.raises(ConfigError, match="build needs 'hidden'"):
        measure_gain(script, 2, [], seconds=0.05)


def test_a_training_too_short_to_measure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text(SCRIPT.replace("STEPS", "2") + CALL)
    with pytest.raises(ConfigError, match="train made 2 steps"):
        measure_gain(path, 2, ["hidden=3"], seconds=0.05)
