"""Compiled kernels and their cache."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wattline.jit import compute_stamp, find
from wattline.loop import reconcile

SOURCE = Path(reconcile.__file__)


def test_find_returns_the_first_row_that_is_not_below_the_value() -> None:
    column = np.array([1.0, 3.0, 3.0, 7.0])
    assert [find(column, 4, value) for value in (0, 1, 2, 3, 8)] == [0, 0, 1, 1, 4]


@pytest.mark.slow
def test_the_stamp_of_a_kernel_depends_on_what_its_module_imports(tmp_path: Path) -> None:
    package = tmp_path / "wattline"
    (package / "loop").mkdir(parents=True)
    (package / "loop" / "outer.py").write_text("from wattline.loop.inner import add\n")
    (package / "loop" / "inner.py").write_text("STEP = 1\n")
    (package / "loop" / "other.py").write_text("STEP = 1\n")
    code = (
        "import sys; from pathlib import Path; from wattline import jit\n"
        f"jit._PACKAGE = Path({str(package)!r})\n"
        f"print(jit.compute_stamp(Path({str(package / 'loop' / 'outer.py')!r})))"
    )

    def stamp() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    before = stamp()
    (package / "loop" / "other.py").write_text("STEP = 2\n")
    assert stamp() == before
    (package / "loop" / "inner.py").write_text("STEP = 2\n")
    assert stamp() != before


def test_the_stamp_of_a_module_is_stable() -> None:
    assert compute_stamp(SOURCE) == compute_stamp(SOURCE)


def test_every_module_with_kernels_is_compiled_by_one_call() -> None:
    code = "import sys; from wattline.jit import compile_kernels; print(compile_kernels(), *sys.modules)"
    count, *modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(count) > 10
    assert {"wattline.loop.reconcile", "wattline.placement.pack"} <= set(modules)
