"""A data-parallel PyTorch job on the CPU, with the same result on any number of ranks.

    python gloo_trainee.py STEPS_PER_EPOCH EPOCHS SECONDS_PER_STEP WEIGHTS_FILE

Each rank takes its part of every batch of 64 samples; gradients are summed in double precision.
"""

import os
import sys
import time
from pathlib import Path

import torch

import wattline

steps, epochs, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, dtype=torch.float64)
momenta = [torch.zeros_like(weights) for weights in model.parameters()]


def save(path: Path) -> None:
    torch.save({"model": model.state_dict(), "momenta": momenta}, path)


def load(path: Path) -> None:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    momenta[:] = state["momenta"]


with wattline.Session(save=save, load=load, aim="none") as run:
    print("from step", run.position.steps, "rank", rank, "of", ranks, os.uname().nodename, flush=True)
    for epoch in run.epochs(epochs):
        generator = torch.Generator().manual_seed(epoch)
        batches = [torch.randn(64, 4, generator=generator, dtype=torch.float64) for _ in range(steps)]
        for batch in run.steps(batches):
            part = batch[rank::ranks]
            loss = ((model(part) - 2 * part.sum(1, keepdim=True)) ** 2).sum() / 64
            model.zero_grad()
            loss.backward()
            with torch.no_grad():  # an optimiser would import the compiler of PyTorch, for over a second
                for weights, momentum in zip(model.parameters(), momenta, strict=True):
                    torch.distributed.all_reduce(weights.grad)
                    momentum.mul_(0.9).add_(weights.grad)
                    weights -= 0.01 * momentum
            time.sleep(pause_s)
    if rank == 0:
        Path(sys.argv[4]).write_text(repr([w.flatten().tolist() for w in model.parameters()]))
