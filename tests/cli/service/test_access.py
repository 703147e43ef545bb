"""The commands of operators: quotas, the audit log, and tokens."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from wattline.errors import NotAllowed
from wattline.service.client import find_service
from wattline.service.controller import Controller

Capsys = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.slow
def test_a_quota_is_set_shown_and_unset(capsys: Capsys) -> None:
    code, out, _ = run_command(
        capsys, "quota", "set", "--team", "vision", "--gpus", "8", "--gpu-hours-per-week", "500"
    )
    assert code == 0
    assert "team vision  0 of 8" in out
    shown = run_json_command(capsys, "quota", "show")
    assert shown["quotas"][0]["gpu_hours_left"] == 500.0
    run_command(capsys, "quota", "set", "--user", "ann", "--share", "2")
    code, out, err = run_command(capsys, "quota", "unset", "--team", "vision")
    assert code == 0
    assert "vision" not in out
    assert run_command(capsys, "quota", "unset", "--team", "vision")[0] == 3
    code, out, err = run_command(capsys, "quota", "unset", "--user", "ann")
    assert err == "no quota is set\n"


@pytest.mark.parametrize(
    "words",
    [
        ["set", "--gpus", "8"],
        ["set", "--team", "a", "--user", "b", "--gpus", "8"],
        ["set", "--team", "a"],
        ["set", "--team", "a", "--gpus", "-1"],
        ["set", "--team", "a", "--share", "0"],
        ["set", "--team", "a b", "--gpus", "1"],
        ["unset"],
    ],
)
def test_wrong_arguments_of_quota_are_refused(capsys: Capsys, words: list[str]) -> None:
    assert run_command(capsys, "quota", *words)[0] == 2


def test_the_audit_log_is_printed(capsys: Capsys) -> None:
    run_command(capsys, "quota", "set", "--team", "speech", "--gpus", "3")
    run_command(capsys, "quota", "set", "--team", "speech", "--gpus", "5")
    code, out, _ = run_command(capsys, "audit", "--since", "1h")
    assert code == 0
    assert out.splitlines()[0].split() == ["at", "by", "action", "what", "change"]
    assert "team speech" in out
    assert "gpus 3 → gpus 5" in out
    records = run_json_command(capsys, "audit", "--by", "service")["records"]
    assert records[-1]["after"] == {"team": "speech", "gpus": 5}
    assert run_json_command(capsys, "audit", "--by", "absent") == {"records": []}
    assert run_command(capsys, "audit", "--since", "yesterday")[0] == 2


def test_a_token_is_created_rotated_and_revoked(capsys: Capsys) -> None:
    code, first, err = run_command(capsys, "token", "create", "ann", "--role", "viewer")
    assert code == 0
    code, _, err = run_command(capsys, "token", "add", "ann", "--role", "viewer")
    assert code == 1
    assert "names are unique" in err
    code, second, err = run_command(capsys, "token", "rotate", "ann", "--grace", "10m")
    assert code == 0
    assert second != first
    assert "valid for 10 min" in err
    code, _, err = run_command(capsys, "token", "revoke", "ann")
    assert (code, err) == (0, "revoked the token of ann\n")


def test_a_token_of_an_unknown_user_is_refused(capsys: Capsys) -> None:
    words = ("token", "create", "eve", "--role", "user", "--user", "no-such-user")
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert "'no-such-user' does not exist on this machine" in err


def test_a_command_that_runs_reads_a_rotated_token_of_the_service_again(
    capsys: Capsys, service: Controller
) -> None:
    client = find_service()
    path, old = service.folder / "token", (service.folder / "token").read_text()
    code, out, _err = run_command(capsys, "token", "rotate", "service")
    assert (code, out) == (0, "")
    assert path.read_text() != old
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert client.get("/jobs")["jobs"] is not None
    assert "token" not in json.loads(run_command(capsys, "token", "rotate", "service", "--json")[1])


def test_the_last_operator_is_warned(capsys: Capsys, service: Controller, tmp_path: Path) -> None:
    for token in service.store.tokens():
        if token["role"] == "operator" and token["name"] != "service":
            run_command(capsys, "token", "revoke", token["name"])
    code, _, err = run_command(capsys, "token", "revoke", "service")
    assert code == 0
    assert "WARNING: no operator's token is left" in err
    assert not (service.folder / "token").exists()
    with pytest.raises(NotAllowed):
        find_service().get("/tokens")
