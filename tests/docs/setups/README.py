"""Names and files of README.md."""

import torch
import torch.nn.functional as F  # noqa: F401, N812
from torch import nn

import wattline  # noqa: F401
from support.page_samples import SACCT, TRAIN

FILES = {"jobs.txt": SACCT, "train.py": TRAIN}
REPLACE = {"count=300": "count=60", 'width="auto"': "compile=False"}
AFTER = {"# sweep.yaml": lambda page: page.run_shell("wattline submit sweep.yaml --wait")}

loader, acc = [0] * 3, 0.5
x, target = torch.randn(16, 4), torch.randint(3, (16,))


def save(path):
    path.write_text("state")


def load(path):
    path.read_text()


def build(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3)
