"""Fit the gradient noise scale of Pollux' applications to the samples that they need at each batch size.

Reads the validation runs under $WATTLINE_DATA (default ../shared/data) and prints the table `PUBLISHED` of
src/wattline/models/batch_assignment.py, and the error of the law samples = c · (noise + batch).

    python benchmarks/fit_pollux_noise.py
"""

from __future__ import annotations

import numpy as np
from published import DATA, read_rows

from wattline.core.table import Floats

_GRID = 4000


def main() -> None:
    for folder in sorted(path for path in (DATA / "pollux/traces").iterdir() if path.is_dir()):
        runs = {
            int(path.stem.partition("-")[2]): float(list(read_rows(path))[-1]["iteration"])
            for path in folder.glob("validation-*.csv")
        }
        batch = np.array(sorted(runs), dtype=np.float64)
        samples = batch * np.array([runs[size] for size in sorted(runs)])
        noise, error = fit_noise(batch, samples)
        rounded = f"{float(f'{noise:.4g}'):_.0f}"
        print(f'"{folder.name}": PublishedBatches({batch[0]:.0f}, {batch[-1]:_.0f}, {rounded}),', end="")
        print(f"  # {len(batch)} runs, off by {error:.1%}")


def fit_noise(batch: Floats, samples: Floats) -> tuple[float, float]:
    """Return the noise scale of the law with the least spread of log errors, and that spread."""
    grid = np.geomspace(batch[0] / 4, batch[-1] * 100, _GRID)
    errors = np.log(samples / (grid[:, None] + batch)).std(axis=1)
    return float(grid[errors.argmin()]), float(errors.min())


if __name__ == "__main__":
    main()
