"""Scripts that can be fused: what their command line says, and what checking them finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from wattline.errors import ConfigError, NotFound  # noqa: E402
from wattline.fusion.gain import load, measure_gain  # noqa: E402
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


def test_words_name_one_member_or_every_combination() -> None:
    assert read_configs([]) == [{}]
    assert read_configs(["lr=1e-3", "name=resnet", "deep=true"]) == [
        {"lr": 1e-3, "name": "resnet", "deep": True}
    ]
    assert [c["lr"] * 10 + c["seed"] for c in read_configs(["lr=1,2", "seed=3,4"])] == [13, 14, 23, 24]


def test_a_file_names_members(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    path.write_text(json.dumps([{"lr": 1}, {"lr": 2}]))
    assert read_configs(["--members", str(path)]) == [{"lr": 1}, {"lr": 2}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr"], "'lr' is not understood, expected name=value"),
        (["--lr=3"], "'--lr=3' is not understood"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["--members", "nowhere.json"], "nowhere.json: No such file"),
        (["--members"], "expected one file"),
    ],
)
def test_words_that_make_no_sense_are_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_configs(words)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "expected a JSON list"), ("[]", "one for each member"), ("[3]", "member 0 is 3")]
)
def test_a_file_of_members_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "members.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_configs(["--members", str(path)])


def test_main_trains_the_members_that_were_named() -> None:
    seen = []
    main(
        lambda config: torch.nn.Linear(2, 2),
        lambda array, configs: seen.append((len(array), configs)),
        ["lr=1,2,3"],
    )
    assert seen == [(3, [{"lr": 1}, {"lr": 2}, {"lr": 3}])]


def test_a_script_is_asked_without_being_trained(script: Path) -> None:
    build, train = load(script)
    assert isinstance(build({"hidden": 3}), torch.nn.Sequential)
    assert callable(train)


def test_a_script_that_only_defines_build_and_train_will_do(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("STEPS", "1"))
    assert load(path)[0]({"hidden": 3})


def test_a_script_without_main_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"nothing calls wattline.fusion.main"):
        load(path)
    with pytest.raises(NotFound, match="no such script"):
        load(tmp_path / "nowhere.py")


def test_the_gain_is_measured_alone_and_as_an_array(script: Path) -> None:
    found = measure_gain(script, 4, ["hidden=3"], seconds=0.05)
    assert found.width == 4
    assert found.gain == pytest.approx(4 * found.fused_steps_s / found.alone_steps_s)
    assert [part.how for part in found.parts] == ["container", "direct", "vmap", "direct"]
    other = measure_gain(script, 2, ["hidden=5"], seconds=0.05)
    assert other.key != found.key


def test_a_config_that_build_needs_is_asked_for(script: Path) -> None:
    with pytest.raises(ConfigError, match="build needs 'hidden'"):
        measure_gain(script, 2, [], seconds=0.05)


def test_a_training_that_is_too_short_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text(SCRIPT.replace("STEPS", "2") + CALL)
    with pytest.raises(ConfigError, match="train made 2 steps"):
        measure_gain(path, 2, ["hidden=3"], seconds=0.05)
