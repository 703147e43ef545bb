"""Fixtures and settings of all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

import wattline.loop.run
import wattline.reports  # noqa: F401  both compile their kernels now, before a test captures output
from support.check_cases import mark_extra_cases
from support.slurm_cluster import SlurmCluster, require_slurm

# Threads of several test processes would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Examples are the same every time; `make check` runs few of them, `make test` many. Hypothesis would also
# draw constants of those of our modules that a worker has imported by then, and so others in every run.
assert hasattr(providers, "is_local_module_file"), "hypothesis finds local modules in another way now"
providers.is_local_module_file = lambda path: False
settings.register_profile("check", max_examples=5, derandomize=True, deadline=None)
settings.register_profile("test", max_examples=30, derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the extra cases of parametrised tests to `make test`."""
    mark_extra_cases(items)


@pytest.fixture(autouse=True)
def no_cap_guard_is_left() -> Iterator[None]:
    """Fail the test that leaves a guard of power caps active: later ones would find its signal handlers."""
    before = _list_cap_guards()  # of a service that several tests share
    yield
    left = [guard for guard in _list_cap_guards() if guard not in before]
    for guard in left:
        guard.__exit__(None, None, None)
    assert not left, f"{len(left)} guards of power caps are still active; close the session or the guard"


def _list_cap_guards() -> list[Any]:
    module = sys.modules.get("wattline.meter.caps.guard")
    return [] if module is None else list(module._active_guards)


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of the public traces and measurements; skip the test where it is missing."""
    root = Path(os.environ.get("WATTLINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"the public data is missing: {root} does not exist; set WATTLINE_DATA")
    return root


@pytest.fixture(scope="session")
def shared_slurm_cluster() -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster of four nodes with two GPUs each; use `slurm_cluster`."""
    require_slurm()
    with SlurmCluster(nodes=4, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(
    shared_slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """Return the cluster, with all nodes idle, that Slurm's commands find in this test."""
    for name, value in shared_slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield shared_slurm_cluster
    shared_slurm_cluster.repair()
