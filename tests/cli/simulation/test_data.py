"""`wattline data` against a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command
from support.file_server import FileServer, serve_files
from wattline.public_data.registry import SETS

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Serve a set without known checksums, and use an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serve_files() as server:
        server.files |= {f"/zeus/{file.name}": b"made up" for file in SETS["zeus"].files}
        yield server


def test_the_list_names_source_licence_and_state(mirror: FileServer, capsys: Capsys) -> None:
    code, out, err = run_command(capsys, "data", "list")
    assert code == 0
    assert "github.com/ml-energy/zeus" in out
    assert "0 of 3 files here; checksums known of 0; Apache-2.0" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "wattline data fetch" in err
    assert {row["name"] for row in run_json_command(capsys, "data", "list")["sets"]} == set(SETS)


def test_files_without_a_known_checksum_need_accept(
    mirror: FileServer, capsys: Capsys, tmp_path: Path
) -> None:
    code, _, err = run_command(capsys, "data", "fetch", "zeus", "--from", mirror.url)
    assert code == 1
    assert "licence Apache-2.0" in err
    assert "--accept keeps such files" in err
    assert not (tmp_path / "wattline" / "data" / "zeus").exists()
    found = run_json_command(capsys, "data", "fetch", "zeus", "--from", mirror.url, "--accept")
    assert [file["checksum"] for file in found["sets"]["zeus"]] == ["accepted"] * 3
    assert (tmp_path / "wattline" / "data" / "zeus" / "summary_train.csv").read_bytes() == b"made up"
    code, out, _ = run_command(capsys, "data", "fetch", "zeus", "--from", mirror.url)
    assert code == 0
    assert out.count("present") == 3


def test_a_wrong_checksum_is_an_error_in_json_too(mirror: FileServer, capsys: Capsys) -> None:
    mirror.files |= {f"/synergy/{file.name}": b"made up" for file in SETS["synergy"].files}
    code, out, _ = run_command(capsys, "data", "fetch", "synergy", "--from", mirror.url, "--json")
    assert code == 2
    assert parse_strict_json(out)["error"]["code"] == "wrong_checksum"


def test_an_unknown_set_is_not_found(mirror: FileServer, capsys: Capsys) -> None:
    code, _, err = run_command(capsys, "data", "fetch", "zues")
    assert code == 3
    assert "did you mean zeus?" in err


def test_all_goes_on_after_a_set_that_fails(mirror: FileServer, capsys: Capsys) -> None:
    code, out, err = run_command(capsys, "data", "fetch", "all", "--from", mirror.url, "--accept", "--json")
    assert code == 1
    found = parse_strict_json(out)
    assert list(found["sets"]) == ["zeus"]
    assert found["failed"]["itp"]["code"] == "not_found"
    assert "itp failed" in err
