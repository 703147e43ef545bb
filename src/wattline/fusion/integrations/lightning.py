"""Arrays inside a LightningModule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import ConfigError
from wattline.fusion.array import FusedArray
from wattline.fusion.optim.clip import clip_grad_norm_, clip_grad_value_


class FusedLightningMixin:
    """Hooks that let Lightning train an array; a base class in front of `LightningModule`.

    >>> class Net(FusedLightningMixin, LightningModule):
    ...     def __init__(self):
    ...         self.model = fusion.fuse([build(seed) for seed in range(8)])
    ...
    ...     def training_step(self, batch, index):
    ...         losses = self.model.loss(F.cross_entropy, self.model(batch[0]), batch[1])
    ...         self.log_members("loss", losses)
    ...         return losses  # [B]; their sum is backpropagated

    `configure_optimizers` returns optimisers and schedules of `wattline.fusion`. `gradient_clip_val` of the
    Trainer clips each member by itself.
    """

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Backpropagate the sum of the members' losses."""
        if getattr(self.trainer, "precision", None) == "16-mixed":  # type: ignore[attr-defined]
            raise ConfigError("precision 16-mixed has one loss scale for all members; use bf16-mixed")
        super().backward(loss.sum(), *args, **kwargs)  # type: ignore[misc]

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of each member by itself."""
        if not gradient_clip_val:
            return
        clip = clip_grad_value_ if gradient_clip_algorithm == "value" else clip_grad_norm_
        clip([p for group in optimizer.param_groups for p in group["params"]], gradient_clip_val)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a schedule; a monitored *metric* must have one value per member."""
        scheduler.step(*([] if metric is None else [metric]))

    def log_members(self, name: str, values: Tensor, **settings: Any) -> None:
        """Log one value per member: `name_0`, `name_1`, …; *settings* as for `log`."""
        entries = {f"{name}_{member}": value for member, value in enumerate(values.detach())}
        self.log_dict(entries, **settings)  # type: ignore[attr-defined]

    def save_members(self, folder: str | Path) -> list[Path]:
        """Save a checkpoint of each member: `member0.ckpt`, …, and return the paths.

        The names of the tensors are those of the same module with an ordinary model in place of the array,
        of which `load_from_checkpoint` loads the file.
        """
        module: Any = self
        arrays = {name: child for name, child in module.named_children() if isinstance(child, FusedArray)}
        if not arrays:
            raise ConfigError(f"{type(self).__name__} has no array among its attributes")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        prefixes = tuple(f"{name}." for name in arrays)
        others = {k: v for k, v in module.state_dict().items() if not k.startswith(prefixes)}
        paths = []
        for index in range(min(len(array) for array in arrays.values())):
            state = dict(others)
            for name, array in arrays.items():
                state |= {f"{name}.{k}": v for k, v in array.member_state_dict(index).items()}
            paths.append(folder / f"member{index}.ckpt")
            torch.save(
                {
                    "state_dict": state,
                    "epoch": module.current_epoch,
                    "global_step": module.global_step,
                    "pytorch-lightning_version": _lightning_version(module),
                },
                paths[-1],
            )
        return paths


def _lightning_version(module: nn.Module) -> str:
    for kind in type(module).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("lightning", "pytorch_lightning"):
            return str(sys.modules[package].__version__)
    raise ConfigError(f"{type(module).__name__} is no LightningModule")
