"""Arrays inside a LightningModule: equal to separate runs of `Trainer.fit`, clipping and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from support.fusion_equality import assert_same, assert_same_state, integer_tensor, normal_tensor
from wattline import fusion
from wattline.errors import ConfigError
from wattline.fusion.integrations.lightning import FusedLightningMixin

pytestmark = pytest.mark.filterwarnings(  # of Lightning itself
    "ignore:.*does not have many workers", "ignore:.isinstance.treespec, LeafSpec:FutureWarning"
)
RATES = [0.01, 0.05, 0.2]


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    # A bias in front of a batch norm has no gradient but rounding, which Adam would scale up.
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


class Alone(lightning.LightningModule):
    def __init__(self, seed: int = 0, lr: float = 0.0) -> None:
        super().__init__()
        self.model, self.lr, self.losses = build(seed), lr, []

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        optimiser = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimiser], [StepLR(optimiser, 1, gamma=0.5)]


class Fused(FusedLightningMixin, lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = fusion.fuse([build(seed) for seed in range(3)]), []

    def training_step(self, batch: Any, index: int) -> Tensor:
        losses = self.model.loss(F.cross_entropy, self.model(batch[0]), batch[1])
        self.losses.append(losses.detach())
        self.log_members("loss", losses)
        return losses

    def configure_optimizers(self) -> Any:
        optimiser = fusion.AdamW(self.model, lr=RATES)
        return [optimiser], [fusion.Schedule(optimiser, StepLR, step_size=1, gamma=0.5)]


@pytest.fixture
def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(normal_tensor(12, 5), integer_tensor(3, 12)), batch_size=4)


def fit(module: lightning.LightningModule, loader: Any, folder: Path, **settings: Any) -> lightning.Trainer:
    resume = settings.pop("ckpt_path", None)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 3, "enable_checkpointing": False, **settings},
    )
    trainer.fit(module, loader, ckpt_path=resume)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 2},
    ],
    ids=["plain", "norm", "value", "accumulated"],
)
def test_an_array_learns_what_separate_runs_do(settings: Any, loader: Any, tmp_path: Path) -> None:
    fused = Fused()
    trainer = fit(fused, loader, tmp_path, **settings)
    models = []
    for index, lr in enumerate(RATES):
        alone = Alone(index, lr)
        fit(alone, loader, tmp_path, **settings)
        assert_same([losses[index] for losses in fused.losses], alone.losses, f"losses of member {index}")
        assert_same(trainer.callback_metrics[f"loss_{index}"].double(), alone.losses[-1], "log", 1e-6)
        models.append(alone.model)
    assert_same_state(fused.model, models)


@pytest.mark.slow
def test_a_member_loads_from_its_checkpoint_into_the_ordinary_module(loader: Any, tmp_path: Path) -> None:
    fused = Fused()
    fit(fused, loader, tmp_path)
    for index, path in enumerate(fused.save_members(tmp_path / "members")):
        loaded = Alone.load_from_checkpoint(path)
        assert_same(loaded.model.state_dict(), fused.model.member_state_dict(index), f"member {index}", 0)
        fused.model.load_member(index, loaded.model.state_dict())


@pytest.mark.slow
def test_training_resumes_from_a_checkpoint_of_lightning(loader: Any, tmp_path: Path) -> None:
    whole, first, second = Fused(), Fused(), Fused()
    fit(whole, loader, tmp_path, max_epochs=4)
    fit(first, loader, tmp_path, max_epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(second, loader, tmp_path, max_epochs=4, ckpt_path=tmp_path / "half.ckpt")
    assert_same_state(second.model, whole.model.split())


def test_a_module_without_an_array_has_no_members_to_save(tmp_path: Path) -> None:
    fused: Any = Fused()
    fused.model = build(0)
    with pytest.raises(ConfigError, match="Fused has no array among its attributes"):
        fused.save_members(tmp_path)
