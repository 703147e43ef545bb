"""How fast storage is: measured once, and remembered."""

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wattline.errors import BackendError
from wattline.measurement import storage as module
from wattline.measurement.storage import default_cache, device, read_mib_s, storage


def clock() -> Callable[[], float]:
    """A second passes at every look."""
    return map(float, itertools.count()).__next__


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "storage.json"


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Bandwidths that will be measured, one after the other."""
    found = [100.0, 200.0, 300.0]
    monkeypatch.setattr(module, "read_mib_s", lambda *_, **__: found.pop(0))
    return found


def test_a_device_is_measured_once(tmp_path: Path, cache: Path, counted: list[float]) -> None:
    first = storage(tmp_path, clock(), cache=cache)
    second = storage(tmp_path, clock(), cache=cache)
    assert (first.mib_s, first.remembered) == (100.0, False)
    assert (second.mib_s, second.remembered) == (100.0, True)
    assert first.device == second.device == device(tmp_path)
    assert len(counted) == 2


def test_a_device_is_measured_again_when_asked(tmp_path: Path, cache: Path) -> None:
    storage(tmp_path, clock(), cache=cache)
    assert storage(tmp_path, clock(), cache=cache, again=True).mib_s == 200.0
    assert storage(tmp_path, clock(), cache=cache).mib_s == 200.0


def test_other_devices_and_nodes_are_kept(tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(json.dumps({"mib_s": {"other /dev/sda1 /data": 512.5}}))
    storage(tmp_path, clock(), cache=cache)
    assert json.loads(cache.read_text())["mib_s"] == {"other /dev/sda1 /data": 512.5, device(tmp_path): 100.0}
    assert [path.name for path in cache.parent.iterdir()] == ["storage.json"]


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"mib_s": 3}', '{"mib_s": {"x": "fast"}}'])
def test_a_broken_cache_is_no_cache(tmp_path: Path, cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert storage(tmp_path, clock(), cache=cache).mib_s == 100.0
    assert storage(tmp_path, clock(), cache=cache).remembered


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = storage(tmp_path, clock(), cache=tmp_path / "file" / "storage.json")
    assert (found.mib_s, found.remembered) == (100.0, False)


def test_the_cache_is_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "wattline" / "storage.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache() == Path("/home/me/.cache/wattline/storage.json")


def test_a_device_is_named_by_node_source_and_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "21 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n22 21 0:5 / /proc rw shared:2 - proc proc rw\n"
    )
    node = os.uname().nodename
    assert device(Path("/proc/self/fd"), mounts) == f"{node} proc /proc"
    assert device(Path("/proc"), tmp_path / "missing") == f"{node} /proc"


def test_bandwidth_is_bytes_over_seconds(tmp_path: Path) -> None:
    # Four MiB are 16 blocks: a look at the clock before each, and one at the end.
    assert read_mib_s(tmp_path, clock(), size_mib=4, most_s=1e9) == pytest.approx(4 / 17)
    assert not list(tmp_path.iterdir())


def test_a_slow_device_is_not_read_to_the_end(tmp_path: Path) -> None:
    looks = clock()
    read_mib_s(tmp_path, looks, size_mib=1024, most_s=5.0)
    assert looks() < 50  # of 4096 blocks


def test_a_real_device_has_a_bandwidth(tmp_path: Path) -> None:
    assert read_mib_s(tmp_path, time.perf_counter, size_mib=4) > 0


def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot be measured") as caught:
        read_mib_s(tmp_path / "missing", clock())
    assert "--storage 500MB/s" in caught.value.hint
