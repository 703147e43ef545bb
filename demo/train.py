"""One training with a `wattline.Session`: it can be stopped, resized and given a batch size.

python demo/train.py --epochs 8
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from sweep import data
from torch import nn

import wattline


def main():
    """Train, alone or as one of several ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = data()

    def save(path):
        torch.save([model.state_dict(), optimiser.state_dict()], path)

    def load(path):
        for part, state in zip((model, optimiser), torch.load(path), strict=True):
            part.load_state_dict(state)

    with wattline.Session(save=save, load=load, batch_size=args.batch) as run:
        local = run.batch_size // ranks  # samples of a step on this GPU
        batches = list(zip(x[rank::ranks].split(local), y[rank::ranks].split(local), strict=True))
        for _ in run.epochs(args.epochs):
            for inputs, labels in run.steps(batches):
                loss = F.cross_entropy(model(inputs), labels)
                optimiser.zero_grad()
                loss.backward()
                if ranks > 1:
                    for weight in model.parameters():
                        dist.all_reduce(weight.grad)
                        weight.grad /= ranks
                optimiser.step()
            with torch.no_grad():
                run.report(accuracy=float((model(x).argmax(-1) == y).float().mean()))


if __name__ == "__main__":
    main()
