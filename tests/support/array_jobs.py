"""Arrays with members as jobs: the files of the service, a training script, and separate training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.fusion_equality import assert_same, build_members, integer_tensor, normal_tensor
from wattline import fusion
from wattline.train.checkpoint import Checkpoints, TrainingPosition

RATES = [0.01, 0.02, 0.03, 0.04]
STEPS = 4  # of an epoch


def net() -> nn.Module:
    # A bias before a batch norm has only a rounding error as gradient, which Adam scales to full steps.
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data(epoch: int) -> list[tuple[Tensor, Tensor]]:
    return [
        (normal_tensor(6, 4, seed=9 * epoch + n), integer_tensor(3, 6, seed=9 * epoch + n))
        for n in range(STEPS)
    ]


class PreparedArray:
    """The files and variables that the service prepares for an array, and the files after its run."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, attempt: int = 1) -> None:
        self.root, self.names = tmp_path, [f"job-{index}" for index in range(count)]
        self.attempt = attempt
        for name in self.names:
            self.folder(name).mkdir(parents=True)
        members = [
            {
                "id": name,
                "name": "",
                "folder": str(self.folder(name)),
                "checkpoint": str(self.checkpoint_folder(name)),
                "config": {"lr": lr},
            }
            for name, lr in zip(self.names, RATES, strict=False)
        ]
        lead = self.folder(self.names[0])
        (lead / "members.json").write_text(json.dumps(members))
        self.environment = {
            "WATTLINE_MEMBERS": str(lead / "members.json"),
            "WATTLINE_JOB_ID": self.names[0],
            "WATTLINE_EVENTS": str(lead / "events.jsonl"),
            "WATTLINE_CHECKPOINT_DIR": str(self.checkpoint_folder(self.names[0])),
        }
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    def folder(self, name: str) -> Path:
        return self.root / "jobs" / name / str(self.attempt)

    def checkpoint_folder(self, name: str) -> Path:
        return self.root / "jobs" / name / "checkpoint"

    def position(self, name: str) -> TrainingPosition | None:
        return Checkpoints(self.checkpoint_folder(name), None, None).read()

    def events(self, name: str) -> list[dict[str, Any]]:
        return lines(self.folder(name) / "events.jsonl")

    def event_names(self, name: str) -> list[str]:
        return [line["event"] for line in self.events(name)]

    def log(self, name: str) -> str:
        return (self.folder(name) / "rank0.log").read_text()

    def cancel(self, name: str) -> None:
        (self.folder(name) / "cancel").touch()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Stop(BaseException):
    """Stands for a kill of the process."""


def train(
    count: int = 3,
    epochs: int = 3,
    after_step: Callable[[Any, int], None] = lambda run, step: None,
    rates: list[float] | None = None,
    scheduled: bool = True,
    **options: Any,
) -> tuple[Any, Any]:
    """Train an array as a script would; *after_step* is called with the number of each step."""
    rates = RATES[:count] if rates is None else rates
    chosen = [RATES.index(rate) for rate in rates]
    models = build_members(net, 4)
    array = fusion.fuse([models[index] for index in chosen])
    configs = [{"lr": rate} for rate in rates]
    optimiser = fusion.Adam(array, lr=rates)
    kind = torch.optim.lr_scheduler.StepLR
    parts = [fusion.Schedule(optimiser, kind, step_size=1, gamma=0.7)] if scheduled else []
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False, clip_norm=1.0)
    with fusion.Session(array, configs, optimiser, *parts, **options) as run:
        for epoch in run.epochs(epochs):
            for x, y in run.steps(data(epoch)):
                losses = step(x, y)
                after_step(run, run.process.position.steps + 1)
            run.report(loss=losses)
            for schedule in parts:
                schedule.step()
    return run, array


def train_alone(index: int, steps: int, scheduled: bool = True) -> nn.Module:
    """Train one member by itself with plain PyTorch."""
    model = build_members(net, 4)[index]
    optimiser = torch.optim.Adam(model.parameters(), lr=RATES[index])
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.7 if scheduled else 1.0)
    for number in range(steps):
        x, y = data(number // STEPS)[number % STEPS]
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if number % STEPS == STEPS - 1:
            schedule.step()
    return model


def assert_checkpoint(folder: Path, model: nn.Module) -> None:
    """Assert that the newest checkpoint has the weights of *model*."""
    state = torch.load(max(folder.glob("0*")) / "user", weights_only=False)
    for name, tensor in model.state_dict().items():
        assert_same(state["model"][name], tensor, name)


def interrupt(number: int) -> Callable[[Any, int], None]:
    def after_step(run: Any, step: int) -> None:
        if step == number:
            os.kill(os.getpid(), signal.SIGTERM)

    return after_step
