"""The command line of fusible scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion.script_main import main, read_configs  # noqa: E402


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
