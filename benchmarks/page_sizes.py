"""Sizes of the pages of `compare --policies all` and `simulate`, and of their gzip."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

TRACE = "synth:count=1000,seed=1,load=0.95,gpus_total=64"
CASES = {
    "compare, 13 policies, 8 nodes": ["compare", "--cluster", "8xa100:8", "--policies", "all"],
    "compare, 13 policies, 100 nodes": ["compare", "--cluster", "100xa100:8", "--policies", "all"],
    "simulate, 8 nodes": ["simulate", "--cluster", "8xa100:8", "--policy", "fifo"],
}
LIMIT_MB = 1.5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, words in CASES.items():
            page = Path(folder) / "page.html"
            command = [sys.executable, "-m", "wattline", *words, "--trace", TRACE, "--html", str(page)]
            models = ["--models", "library", "--draw-models"]
            subprocess.run([*command, *models], check=True, capture_output=True)
            data = page.read_bytes()
            small = len(gzip.compress(data)) / 1e6
            print(f"{name}: {len(data) / 1e6:.2f} MB (gzip {small:.2f} MB), bar {LIMIT_MB} MB")
            assert len(data) < LIMIT_MB * 1e6


if __name__ == "__main__":
    main()
