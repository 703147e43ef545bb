from __future__ import annotations

from pathlib import Path

import pytest

from wattline.backend.engine.slurm.accounts import SlurmAccount
from wattline.errors import ConfigError
from wattline.service.settings import DAY_S, RetentionSettings, ServiceSettings, read_settings


def test_a_settings_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    assert read_settings(path) == ServiceSettings()
    path.write_text('[retention]\njobs = "10d"\nlogs = "never"\nmax_size = "2G"\narchive = "/backup"\n')
    settings = read_settings(path).retention
    assert (settings.jobs_s, settings.logs_s, settings.max_bytes) == (10 * DAY_S, float("inf"), 2 * 2**30)
    assert (settings.archive, settings.events_s) == ("/backup", RetentionSettings().events_s)


def test_users_and_teams_have_accounts_in_slurm(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        '[slurm.teams.vision]\naccount = "vis"\n[slurm.users.ann]\naccount = "guests"\nqos = "low"\n'
    )
    accounts, default = read_settings(path).accounts, SlurmAccount("all", "normal")
    assert accounts.find("ann", "vision", default) == SlurmAccount("vis", "low")
    assert accounts.find("ann", "", default) == SlurmAccount("guests", "low")
    assert accounts.find("bob", "speech", default) == default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[retenton]", "unknown key retenton, expected one of retention, slurm"),
        ('[retention]\njob = "1d"', "retention.job is unknown"),
        ("[retention]\njobs = 30", "retention.jobs is 30, expected a text"),
        ('[retention]\njobs = "soon"', "retention.jobs is 'soon', expected an age such as 30d"),
        ('[retention]\nmax_size = "big"', "retention.max_size is 'big', expected a size"),
        ('[retention]\narchive = "here"', "expected an absolute path"),
        ('[retention]\nevery = "0s"', "retention.every is 0 s"),
        ("retention = 3", "expected a table"),
        ("[retention", "is not TOML"),
        ("[slurm.user.ann]", "slurm.user is unknown, expected one of teams, users"),
        ("[slurm.users]\nann = 3", "slurm.users.ann is 3, expected a table"),
        (
            '[slurm.users.ann]\naccounts = "a"',
            "slurm.users.ann.accounts is unknown, expected one of account, qos",
        ),
        ('[slurm.teams.vision]\nqos = "a b"', "slurm.teams.vision.qos is 'a b', expected the name"),
        ("[slurm.teams.vision]", "slurm.teams.vision is empty, expected account or qos"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_value(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert words in caught.value.message


def test_a_settings_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_settings(tmp_path / "none.toml", required=True)
