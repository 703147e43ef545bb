"""Downloads over a real connection to a server on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.file_server import FileServer, serve_files
from wattline.errors import ConfigError, NotFound, Unreachable, WrongChecksum
from wattline.public_data.cache import read_sums
from wattline.public_data.fetch import fetch_set
from wattline.public_data.registry import DataFile, DataSet

BODY = bytes(range(256)) * 1000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as files:
        files.files["/demo/a.bin"] = BODY
        yield files


def build_set(server: FileServer, sha256: str | None = None, url: str = "") -> DataSet:
    known = hashlib.sha256(BODY).hexdigest() if sha256 is None else sha256
    file = DataFile("a.bin", url or f"{server.url}/demo/a.bin", known)
    return DataSet("demo", "made up", "nowhere", "CC0", (file,))


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_once_and_its_source_is_written_beside_it(
    server: FileServer, tmp_path: Path
) -> None:
    (first,) = fetch_set(build_set(server), tmp_path)
    (second,) = fetch_set(build_set(server), tmp_path)
    assert (first.state, second.state) == ("fetched", "present")
    assert first.path.read_bytes() == BODY
    assert list_files(tmp_path) == ["demo/SHA256SUMS", "demo/SOURCE.txt", "demo/a.bin"]
    assert "CC0" in (tmp_path / "demo" / "SOURCE.txt").read_text()
    assert len(server.requests) == 1


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(WrongChecksum, match="expected 0000"):
        fetch_set(build_set(server, "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_download_is_continued_where_it_ended(server: FileServer, tmp_path: Path) -> None:
    server.cut["/demo/a.bin"] = 100_000
    with pytest.raises(Unreachable, match="broke off") as caught:
        fetch_set(build_set(server), tmp_path)
    assert "continues" in caught.value.hint
    assert list_files(tmp_path) == ["demo/a.bin.part"]
    (done,) = fetch_set(build_set(server), tmp_path)
    assert done.path.read_bytes() == BODY
    assert server.requests[-1] == ("/demo/a.bin", "bytes=100000-")


def test_a_part_of_another_file_is_found_by_the_checksum(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "a.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(WrongChecksum):
        fetch_set(build_set(server), tmp_path)
    assert fetch_set(build_set(server), tmp_path)[0].state == "fetched"


def test_a_part_that_is_too_long_is_deleted(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "a.bin.part").write_bytes(BODY + b"x")
    with pytest.raises(Unreachable, match="did not fit"):
        fetch_set(build_set(server), tmp_path)
    assert fetch_set(build_set(server), tmp_path)[0].state == "fetched"


def test_without_a_known_checksum_a_broken_download_leaves_nothing(
    server: FileServer, tmp_path: Path
) -> None:
    server.cut["/demo/a.bin"] = 100_000
    with pytest.raises(Unreachable):
        fetch_set(build_set(server, ""), tmp_path, accept=True)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_checksum_must_be_accepted_and_is_then_required(
    server: FileServer, tmp_path: Path
) -> None:
    unknown = build_set(server, "")
    (refused,) = fetch_set(unknown, tmp_path)
    assert (refused.state, refused.sha256) == ("refused", hashlib.sha256(BODY).hexdigest())
    assert list(tmp_path.iterdir()) == []
    (kept,) = fetch_set(unknown, tmp_path, accept=True)
    assert (kept.state, kept.verified) == ("fetched", False)
    assert read_sums(tmp_path / "demo") == {"a.bin": refused.sha256}
    kept.path.unlink()
    server.files["/demo/a.bin"] = b"another version"
    with pytest.raises(WrongChecksum, match="accepted before"):
        fetch_set(unknown, tmp_path, accept=True)


def test_a_damaged_file_in_the_cache_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    (first,) = fetch_set(build_set(server), tmp_path)
    first.path.write_bytes(b"damaged")
    (again,) = fetch_set(build_set(server), tmp_path)
    assert again.state == "fetched"
    assert again.path.read_bytes() == BODY


def test_redirects_are_followed(server: FileServer, tmp_path: Path) -> None:
    server.moved["/old"] = f"{server.url}/demo/a.bin"
    assert fetch_set(build_set(server, url=f"{server.url}/old"), tmp_path)[0].state == "fetched"


def test_a_redirect_to_another_protocol_is_refused(server: FileServer, tmp_path: Path) -> None:
    server.moved["/old"] = "ftp://127.0.0.1/a.bin"
    with pytest.raises(Unreachable, match="redirects to ftp"):
        fetch_set(build_set(server, url=f"{server.url}/old"), tmp_path)


def test_a_missing_file_names_its_address_and_the_way_out(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="/gone: HTTP 404") as caught:
        fetch_set(build_set(server, url=f"{server.url}/gone"), tmp_path)
    assert "--from" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    with serve_files() as gone:
        pass
    with pytest.raises(Unreachable, match="refused"):
        fetch_set(build_set(gone), tmp_path)


def test_a_mirror_is_an_address_or_a_folder(server: FileServer, tmp_path: Path) -> None:
    elsewhere = build_set(server, url="http://127.0.0.1:9/never")
    assert fetch_set(elsewhere, tmp_path / "1", mirror=f"{server.url}/")[0].state == "fetched"
    folder = tmp_path / "mirror" / "demo"
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(BODY)
    assert fetch_set(elsewhere, tmp_path / "2", mirror=str(tmp_path / "mirror"))[0].state == "fetched"
    with pytest.raises(NotFound, match="expected a folder with SET/FILE"):
        fetch_set(elsewhere, tmp_path / "3", mirror=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="ftp"):
        fetch_set(elsewhere, tmp_path / "3", mirror="ftp://somewhere")
