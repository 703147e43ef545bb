from __future__ import annotations

import os
from pathlib import Path

import pytest

from wattline.backend.engine.user_files import create_file, open_file, read_json, replace_file

NOBODY = 65534


def test_a_file_is_replaced_and_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "1" / "orders.json"
    outside.write_text("theirs")
    path.parent.mkdir()
    path.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        open_file(path)
    replace_file(path, b"[1]")
    assert (read_json(path), outside.read_text(), path.is_symlink()) == ([1], "theirs", False)
    assert os.listdir(path.parent) == ["orders.json"]


def test_a_new_file_is_never_one_that_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "cancel").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "cancel")
    assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_second_name_of_a_file_of_the_service_is_not_read(tmp_path: Path) -> None:
    token, folder = tmp_path / "token", tmp_path / "1"
    token.write_text("[1]")
    folder.mkdir()
    os.link(token, folder / "exit.json")
    assert read_json(folder / "exit.json") == [1]  # the folder is of the service
    os.chown(folder, NOBODY, NOBODY)
    assert read_json(folder / "exit.json") is None
    (folder / "own.json").write_text("[2]")
    assert read_json(folder / "own.json") == [2]


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.log")
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path / "rank0.log")
