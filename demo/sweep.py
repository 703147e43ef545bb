"""One training of a sweep, or many as one array, as the command line or the service decides.

python demo/sweep.py lr=1e-3 seed=0
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from wattline import fusion

EPOCHS, BATCH = 4, 64


def data():
    """Return points in two spirals, which no straight line separates, and their classes."""
    draw = torch.Generator().manual_seed(0)
    turn = 4 * torch.rand(1024, generator=draw)
    side = torch.randint(2, (1024,), generator=draw)
    angle = turn + torch.pi * side
    x = torch.stack((turn * angle.cos(), turn * angle.sin()), 1) / 4
    return x + 0.02 * torch.randn(1024, 2, generator=draw), side


def build(config):
    """Return the model of one member."""
    torch.manual_seed(config["seed"])
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train(array, configs):
    """Train the members of an array, one or many."""
    torch.set_num_threads(1)
    x, y = data()
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    optimiser = fusion.Adam(array, lr=[config["lr"] for config in configs])
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
    with fusion.Session(array, configs, optimiser) as run:
        for _ in run.epochs(EPOCHS):
            for inputs, labels in run.steps(batches):
                run.add(loss=step(inputs, labels))
            with torch.no_grad():
                run.report(accuracy=(array(x).argmax(-1) == y).float().mean(-1))


if __name__ == "__main__":
    fusion.main(build, train)
