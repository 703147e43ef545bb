"""What a solver prints does not reach the output of a command, and costs may have any unit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from wattline.optimize.quiet_solver import _discard_c_output, solve_quietly

CODE = """
import ctypes
from wattline.optimize.quiet_solver import _discard_c_output
print("before", flush=True)
c = ctypes.CDLL(None)
with _discard_c_output():
    c.puts(b"a line of a library")
print("after", flush=True)
c.puts(b"a line outside of the block")
"""


def test_what_a_library_prints_within_the_block_is_discarded() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n") == ["before", "after", "a line outside of the block", ""]


def test_output_works_again_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def print_and_fail() -> None:
        ctypes.CDLL(None).puts(b"hidden")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), _discard_c_output():
        print_and_fail()
    os.write(1, b"shown")
    assert capfd.readouterr().out == "shown"


def test_a_closed_standard_output_is_no_problem() -> None:
    code = "import os; os.close(1)\n" + CODE.replace("print", "(lambda *a, **k: None)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_result_is_that_of_the_solver() -> None:
    result = solve_quietly(np.array([-1.0, -2.0]), integrality=np.ones(2), bounds=(0, 3))
    assert result.x.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("unit", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_costs_of_any_size_are_minimised(unit: float) -> None:
    result = solve_quietly(unit * np.array([-1.0, -1e-3, 0.0]), integrality=np.ones(3), bounds=(0, 3))
    assert result.x[:2].tolist() == [3.0, 3.0]
    assert result.fun == pytest.approx(-3.003 * unit, rel=1e-12)
    assert result.mip_dual_bound == pytest.approx(-3.003 * unit, rel=1e-12)


def test_a_programme_without_costs_or_without_a_solution_is_no_problem() -> None:
    assert solve_quietly(np.zeros(1), integrality=np.ones(1), bounds=(2, 3)).fun == 0.0
    assert solve_quietly(np.ones(1), integrality=np.ones(1), bounds=(0.2, 0.8)).x is None
