"""Callbacks of training frameworks as jobs of a service: stopped, started again, resumed, logged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from wattline.integrations.submitted_call import ServiceAddress, SubmittedCall
from wattline.service.client import find_service
from wattline.service.controller import Controller

SOURCE = str(Path(__file__).parents[2] / "src")

HUGGING_FACE = """
import os, signal
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from wattline.integrations.huggingface import WattlineCallback, find_checkpoint

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x)[:, 0] - labels) ** 2).mean()}

class Preempt(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        print("step", state.global_step, flush=True)
        if state.global_step == 5 and os.environ["WATTLINE_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)

data = [{"x": torch.ones(4) * k, "labels": torch.tensor(1.0)} for k in range(16)]
args = TrainingArguments(
    "out", num_train_epochs=3, per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
    report_to=["tensorboard"], use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(Net(), args, train_dataset=data, callbacks=[Preempt()])
WattlineCallback().attach(trainer)
trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))
print("history", sorted(trainer.state.log_history[-2]))
"""

LIGHTNING = """
import os, signal
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from wattline.integrations.lightning import WattlineCallback, find_checkpoint

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = (self.layer(batch) ** 2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

class Preempt(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        print("step", trainer.global_step, flush=True)
        if trainer.global_step == 5 and os.environ["WATTLINE_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)

loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=4)
trainer = Trainer(
    max_epochs=3, logger=CSVLogger("logs"), callbacks=[Preempt(), WattlineCallback()], accelerator="cpu",
    log_every_n_steps=2, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), loader, ckpt_path=find_checkpoint())
"""


def run_job(service: Controller, folder: Path, script: str) -> tuple[dict[str, Any], str]:
    """Run *script* as a job and return the job and its output in all attempts."""
    (folder / "train.py").write_text(script)
    client = find_service(None, str(service.folder))
    env = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    document = {"run": [sys.executable, "train.py"], "workdir": str(folder), "env": env}
    job = client.post("/jobs", document)["jobs"][0]["id"]
    SubmittedCall[Any](ServiceAddress(None, str(service.folder)), job_id=job).wait_for_end()
    row = client.get(f"/jobs/{job}")
    texts = [
        b"".join(client.text(f"/jobs/{job}/logs", {"attempt": number})).decode()
        for number in range(1, row["starts"] + 1)
    ]
    return row, "\n".join(texts)


def check_resumed(row: dict[str, Any], output: str) -> None:
    assert row["state"] == "SUCCEEDED", output
    assert row["starts"] == 2
    steps = [int(line.split()[1]) for line in output.splitlines() if line.startswith("step ")]
    assert steps[0] == 1
    assert steps[-1] == 12
    assert steps == sorted(set(steps))  # no step is trained twice
    assert "loss" in row["metrics"]
    assert row["energy_j"] > 0
    assert row["progress"] == 1.0


@pytest.mark.slow
def test_a_trainer_of_hugging_face_saves_yields_and_resumes(service: Controller, here: Path) -> None:
    pytest.importorskip("transformers")
    row, output = run_job(service, here, HUGGING_FACE)
    check_resumed(row, output)
    assert "wattline/energy_j" in output
    assert "wattline/cap_w" in output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    names = set()
    for file in here.rglob("events.out.tfevents.*"):
        names |= set(EventAccumulator(str(file)).Reload().Tags()["scalars"])
    assert {f"train/wattline/{name}" for name in ("energy_j", "power_w", "cap_w", "job_id")} <= names


@pytest.mark.slow
def test_a_trainer_of_lightning_saves_yields_and_resumes(service: Controller, here: Path) -> None:
    pytest.importorskip("lightning")
    row, output = run_job(service, here, LIGHTNING)
    check_resumed(row, output)
    texts = [path.read_text() for path in here.rglob("metrics.csv")]
    assert texts
    for name in ("energy_j", "power_w", "cap_w", "job_id"):
        assert all(f"wattline/{name}" in text for text in texts)
