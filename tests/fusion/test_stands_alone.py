"""`wattline.fusion` beside PyTorch and NumPy only, and without effects on the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

HIDE_OTHER_DISTRIBUTIONS = """
import sys
from importlib.metadata import packages_distributions

NEEDED_BY_TORCH = {
    "filelock", "fsspec", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "nvidia", "setuptools",
    "sympy", "torchgen", "triton", "typing_extensions",
}
hidden = set(packages_distributions()) - NEEDED_BY_TORCH - {"numpy", "torch", "wattline"}

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

assert {"numba", "rich", "scipy"} <= hidden
before = {name.partition(".")[0] for name in sys.modules}  # by the start of Python
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
TRAIN = """
import torch
from torch.nn import functional as F
from wattline import fusion

for name in fusion.__all__:
    getattr(fusion, name)
array = fusion.fuse([torch.nn.Linear(4, 2) for _ in range(3)])
optimiser = fusion.Adam(array, lr=[0.1, 0.2, 0.3])
schedule = fusion.Schedule(optimiser, torch.optim.lr_scheduler.StepLR, step_size=1)
step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
batches = [(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))] * 2
with fusion.Session(array, [{}] * 3, optimiser, aim="none") as run:
    for _ in run.epochs(1):
        for x, y in run.steps(batches):
            losses = step(x, y)
        schedule.step()
assert losses.shape == (3,)
assert not (loaded := hidden & ({name.partition(".")[0] for name in sys.modules} - before)), loaded
print("trained")
"""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_array_is_trained_where_only_torch_and_numpy_are_installed() -> None:
    assert run_python(HIDE_OTHER_DISTRIBUTIONS + TRAIN).endswith("trained\n")


def test_importing_fusion_does_not_import_torch_yet() -> None:
    assert run_python("import sys, wattline.fusion; print('torch' in sys.modules)") == "False\n"
