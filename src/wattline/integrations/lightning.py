"""`WattlineCallback` for Lightning.

    trainer = Trainer(callbacks=[WattlineCallback()], logger=...)
    trainer.fit(module, loader, ckpt_path=find_checkpoint())

Every logger of the Trainer (MLflow, W&B, TensorBoard, CSV) gets joules, watts, cap and job id.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from wattline.integrations.framework_run import FrameworkRun, describe_energy

_FILE = "lightning.ckpt"
_METHOD = "trainer.fit(..., ckpt_path=find_checkpoint())"


def find_checkpoint(folder: str | Path | None = None) -> str | None:
    """Return the checkpoint that the callback has saved in *folder*; None: there is none.

    Without *folder* it is WATTLINE_CHECKPOINT_DIR, which the service sets.
    """
    name = os.environ.get("WATTLINE_CHECKPOINT_DIR") or folder
    path = Path(name) / _FILE if name else None
    return str(path) if path is not None and path.exists() else None


class LightningEnergyCallback(Callback):
    """Progress, energy, power caps, checkpoints on request and the stop signal for a Trainer of Lightning.

    *settings* are those of `wattline.Session` without `save` and `load`. The checkpoint is `lightning.ckpt`
    in the folder `checkpoints=` or WATTLINE_CHECKPOINT_DIR. After the stop signal the process saves and ends
    with exit code 75.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.run: FrameworkRun | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the session at the step that Lightning has restored."""
        self.run = FrameworkRun(**self._settings)
        batches = trainer.num_training_batches
        steps = int(batches) if math.isfinite(batches) else 0
        progress = trainer.fit_loop.epoch_loop.batch_progress
        in_epoch = progress.current.ready % steps if steps else 0
        done = trainer.current_epoch * steps + in_epoch if steps else trainer.global_step
        epochs = int(trainer.max_epochs or 0)
        self.run.open(max(epochs, 0), steps, done, _METHOD)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record a step; save and stop if the session asks for it, and log the energy with the metrics."""
        from wattline.train.introspection import count_samples

        assert self.run is not None
        self.run.step(count_samples(batch) or self.run.session.batch_size)
        self._follow(trainer)
        if trainer.log_every_n_steps and (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics, record the end of the epoch, and save or stop if the session asks for it."""
        assert self.run is not None
        self.run.report(trainer.callback_metrics)
        self.run.end_epoch()
        self._log(trainer)
        self._follow(trainer, at_epoch_end=True)

    def _log(self, trainer: Any) -> None:
        assert self.run is not None
        energy = describe_energy(self.run.session)
        for logger in trainer.loggers:
            logger.log_metrics(energy, step=trainer.global_step)

    def _follow(self, trainer: Any, at_epoch_end: bool = False) -> None:
        assert self.run is not None
        run = self.run
        if run.take_save_request(at_epoch_end):
            folder = run.session.environment.checkpoints or self._settings["checkpoints"]
            path = Path(folder) / _FILE
            new = path.with_suffix(".new")
            trainer.save_checkpoint(new)
            if trainer.is_global_zero:
                os.replace(new, path)
        if run.session.should_stop:
            trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the session of a training that failed."""
        if self.run is not None:
            self.run.close(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Send what loggers hold back, and end the session: with exit code 75 if it was asked to yield."""
        if self.run is None:
            return
        if self.run.session.should_stop:
            for logger in trainer.loggers:
                logger.finalize("success")
        self.run.close()


WattlineCallback = LightningEnergyCallback
