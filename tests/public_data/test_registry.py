"""The registry of public data."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from wattline.errors import NotFound
from wattline.public_data.registry import SETS, find_sets


def test_every_file_has_a_public_address_and_a_whole_checksum_or_none() -> None:
    for data in SETS.values():
        assert data.licence
        assert data.source
        names = [file.name for file in data.files]
        assert len(set(names)) == len(names)
        for file in data.files:
            assert file.url.startswith("https://raw.githubusercontent.com/")
            assert file.url.endswith(f"/{file.name}")
            assert file.sha256 == "" or (len(file.sha256) == 64 and int(file.sha256, 16) >= 0)


def test_an_unknown_name_gets_the_nearest() -> None:
    assert len(find_sets("all")) == len(SETS)
    with pytest.raises(NotFound) as caught:
        find_sets("zues")
    assert caught.value.hint == "did you mean zeus?"


HOMES = {"pollux": "pollux/workloads", "openb": "pai/openb2023"}  # in the folder of the public data


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SETS))
def test_known_checksums_are_those_of_copies_at_hand(data: Path, name: str) -> None:
    for file in SETS[name].files:
        path = data / HOMES.get(name, name) / file.name
        if file.sha256:
            packed = path.with_name(f"{path.name}.gz")
            text = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
            assert hashlib.sha256(text).hexdigest() == file.sha256, path
