"""Fit the iterations to the target, with which the Pollux reader predicts durations.

Reads the validation runs under $WATTLINE_DATA (default ../shared/data) and prints
src/wattline/trace/pollux_steps.toml; only fitted coefficients leave this script.

    python benchmarks/fit_pollux_steps.py > src/wattline/trace/pollux_steps.toml
"""

from __future__ import annotations

import numpy as np
from published import DATA, read_rows

from wattline.core.table import Floats

HEADER = """\
# Iterations to the target at a constant batch size: steps = at_one * batch ** -power, from the last iteration
# of Pollux' validation runs (OSDI'21, Apache-2.0). Made by benchmarks/fit_pollux_steps.py.
# points: runs behind an entry. error: mean relative error at runs left out of the fit one by one.
"""


def main() -> None:
    print(HEADER, end="")
    for folder in sorted(path for path in (DATA / "pollux/traces").iterdir() if path.is_dir()):
        batch, steps = [], []
        for path in sorted(folder.glob("validation-*.csv")):
            batch.append(float(path.stem.partition("-")[2]))
            steps.append(float(list(read_rows(path))[-1]["iteration"]))
        x, y = np.log(batch), np.log(steps)
        slope, offset = np.polyfit(x, y, 1)
        print(f'\n["{folder.name}"]\nat_one = {np.exp(offset):.4g}\npower = {-slope:.4g}')
        print(f"points = {len(y)}\nerror = {compute_left_out_error(x, y):.3f}")


def compute_left_out_error(x: Floats, y: Floats) -> float:
    errors = []
    for one in range(len(y)):
        rest = np.arange(len(y)) != one
        predicted = np.polyval(np.polyfit(x[rest], y[rest], 1), x[one])
        errors.append(abs(np.exp(predicted - y[one]) - 1.0))
    return float(np.mean(errors))


if __name__ == "__main__":
    main()
