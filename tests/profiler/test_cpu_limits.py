"""Limits on the cores of a command."""

import os
from pathlib import Path

import pytest

from wattline.profiler.cpu_limits import CpuLimits, limit_cpus

ALL_CORES = CpuLimits(tuple(sorted(os.sched_getaffinity(0))))


def test_started_processes_are_restricted_and_the_profiler_is_not() -> None:
    before = os.sched_getaffinity(0)
    with ALL_CORES.restrict(1):
        assert os.sched_getaffinity(0) == {ALL_CORES.cores[0]}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ZeroDivisionError), ALL_CORES.restrict(1):
        _ = 1 / 0
    assert os.sched_getaffinity(0) == before


def make_cgroups(
    root: Path, controllers: str, subtree: str, most: str = "max 100000"
) -> tuple[Path, Path, Path]:
    home = root / "jobs" / "mine"
    home.mkdir(parents=True)
    files = {"controllers": controllers, "subtree_control": subtree, "procs": ""}
    for name, text in files.items():
        (home / f"cgroup.{name}").write_text(text)
    (home / "cpu.max").write_text(most)
    own = root / "own"
    own.write_text("1:cpu:/\n0::/jobs/mine\n")
    return root, own, home


def test_a_cgroup_is_created_if_possible(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu memory", "cpu")
    with limit_cpus(root, own) as limit:
        assert str(limit) == "a cgroup (cpu.max) and CPU affinity"
        assert limit.cgroup is not None
        assert limit.cgroup.parent == home
        with limit.restrict(0.5):
            assert (limit.cgroup / "cpu.max").read_text() == "50000 100000"
        assert limit.wrap_command(["a", "b"])[-3:] == [str(limit.cgroup / "cgroup.procs"), "a", "b"]


def test_the_profiler_moves_to_a_child_cgroup_if_necessary(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu", "")
    with limit_cpus(root, own) as limit:
        assert limit.cgroup is not None
        assert (home / "cgroup.subtree_control").read_text() == "+cpu"
        own_cgroup = next(home.glob("*-self"))
        assert (own_cgroup / "cgroup.procs").read_text() == str(os.getpid())
    assert (home / "cgroup.subtree_control").read_text() == "-cpu"
    assert (home / "cgroup.procs").read_text() == str(os.getpid())


def test_without_a_cgroup_cores_are_limited_by_affinity(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "memory", "")
    with limit_cpus(root, own) as limit:
        assert limit == ALL_CORES
        assert str(limit) == "CPU affinity"
    assert not list(home.glob("wattline*"))


def test_a_cgroup_that_cannot_be_created_leaves_nothing_behind(tmp_path: Path) -> None:
    root, own, home = make_cgroups(tmp_path, "cpu", "cpu")
    (home / f"wattline-{os.getpid()}").write_text("in the way")
    with limit_cpus(root, own) as limit:
        assert limit.cgroup is None


def test_the_cores_are_limited_by_the_quota_of_the_profiler(tmp_path: Path) -> None:
    root, own, _ = make_cgroups(tmp_path, "cpu", "cpu", "150000 100000")
    with limit_cpus(root, own) as limit:
        assert len(limit.cores) == 1
