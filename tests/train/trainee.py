"""A small PyTorch job as a user writes it: the model learns y = 2x on the CPU, with simulated GPUs.

python trainee.py STEPS_PER_EPOCH EPOCHS [die_at]

With FACE=push the loop is the script's own, as in a framework, and calls the session after each step.
"""

import os
import sys
from pathlib import Path

import torch

import wattline

steps, epochs = int(sys.argv[1]), int(sys.argv[2])
die_at = int(sys.argv[3]) if len(sys.argv) > 3 else -1
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)


def print_line(*words: object) -> None:
    """Print with a single write, so that lines of two ranks do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def save(path: Path) -> None:
    torch.save(model.state_dict(), path)


def load(path: Path) -> None:
    model.load_state_dict(torch.load(path))


def batches(epoch: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(epoch)
    return [torch.randn(64, 4, generator=generator) for _ in range(steps)]


def train_step(batch: torch.Tensor) -> torch.Tensor:
    loss = ((model(batch) - 2 * batch.sum(1, keepdim=True)) ** 2).mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():  # an optimiser would import the compiler of PyTorch, which takes over a second
        for weights in model.parameters():
            weights -= 0.01 * weights.grad
    if run.position.steps == die_at:
        os.kill(os.getpid(), 9)
    return loss


def iterate() -> None:
    for epoch in run.epochs(epochs):
        for batch in run.steps(batches(epoch)):
            loss = train_step(batch)
        run.report(loss=loss.item() + 1000.0 * run.ranks.rank)


def push() -> None:
    run.expect(epochs=epochs, steps=steps)
    skip = run.position.step
    for epoch in range(run.position.epoch, epochs):
        for batch in batches(epoch)[skip:]:
            loss = train_step(batch)
            run.step(len(batch))
            if run.should_stop:
                return
        skip = 0
        if run.epoch(loss=loss.item() + 1000.0 * run.ranks.rank):
            return


with wattline.Session(save=save, load=load, batch_size=64, every_s=5.0) as run:
    print_line("resumed" if run.resumed else "fresh", run.position.epoch, run.position.step)
    push() if os.environ.get("FACE") == "push" else iterate()
    cap_w = run.gpus[0].cap_w() if run.gpus else 0.0
    print_line("done", run.position.steps, run.position.epoch, cap_w, run.energy_j, run.reached, run.stopped)
    print_line("weights", model.weight.tolist())
