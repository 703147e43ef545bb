"""Joules, watts, cap and job id in MLflow, W&B and TensorBoard, through their own loggers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from support.environment import isolate_environment
from support.sessions import describe_gpus

NAMES = {f"wattline/{name}" for name in ("energy_j", "power_w", "cap_w", "job_id")}


def train(logger: Any, tmp_path: Path) -> None:
    """Train a small module with Lightning, one epoch of two steps."""
    import torch
    from lightning.pytorch import LightningModule, Trainer

    from wattline.integrations.lightning import WattlineCallback

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = Trainer(
        max_epochs=1,
        logger=logger,
        callbacks=[WattlineCallback(meter=describe_gpus(tmp_path), aim="none")],
        accelerator="cpu",
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_environment(tmp_path, monkeypatch)
    monkeypatch.setenv("WATTLINE_JOB_ID", "12")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("lightning")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the trackers
def test_mlflow_gets_the_energy(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", experiment_name="one")
    train(logger, tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    metrics = client.get_run(logger.run_id).data.metrics
    assert set(metrics) >= NAMES
    assert metrics["wattline/energy_j"] > 0
    assert metrics["wattline/job_id"] == 12
    assert metrics["wattline/cap_w"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_the_energy(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(TensorBoardLogger(str(tmp_path / "board")), tmp_path)
    (file,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    assert set(EventAccumulator(str(file)).Reload().Tags()["scalars"]) >= NAMES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_the_energy_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_MODE", "offline")
    train(WandbLogger(project="one", save_dir=str(tmp_path), offline=True), tmp_path)
    wandb.finish()
    wandb.teardown()  # its process writes the rest of the file
    (file,) = tmp_path.rglob("offline-run-*/run-*.wandb")
    rows = read_wandb_file(file)
    last = {name: value for row in rows for name, value in row.items()}
    assert set(last) >= NAMES
    assert last["wattline/energy_j"] > 0
    assert last["wattline/job_id"] == 12
    assert last["wattline/cap_w"] > 0


def read_wandb_file(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the history in a run file of at most one block.

    After a header of 7 bytes come records: checksum (4 bytes), length (2), kind (1), and a protobuf message.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, rows, start = path.read_bytes(), [], 7
    assert len(data) < 32768, "records would be split"
    while start + 7 <= len(data):
        (length,) = struct.unpack_from("<H", data, start + 4)
        record = Record.FromString(data[start + 7 : start + 7 + length])
        start += 7 + length
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows
