"""`WattlineCallback` for the Trainer of Hugging Face transformers.

    trainer = Trainer(model, args, train_dataset=data)
    WattlineCallback().attach(trainer)
    trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))

Joules, watts, cap and job id are in the logs beside the loss, and so in MLflow, W&B, TensorBoard and every
other tracker of `report_to`. With Accelerate and a loop of your own use a session:
`wattline.Session(save=accelerator.save_state, load=accelerator.load_state)`, and
`accelerator.log(describe_energy(run), step=step)`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from wattline.integrations.framework_run import FrameworkRun, describe_energy

_METHOD = "trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))"


def find_checkpoint(folder: str | Path) -> str | None:
    """Return the newest checkpoint of a Trainer in its output folder; None: there is none."""
    from transformers.trainer_utils import get_last_checkpoint

    return get_last_checkpoint(str(folder)) if Path(folder).is_dir() else None


class TrainerEnergyCallback(TrainerCallback):
    """Progress, energy, power caps, checkpoints on request and the stop signal for a Trainer.

    *settings* are those of `wattline.Session` without `save` and `load`. After the stop signal the Trainer
    saves a checkpoint and the process ends with exit code 75.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.run: FrameworkRun | None = None

    def attach(self, trainer: Trainer) -> None:
        """Add this callback before those of trackers, which then log the joules, too."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Start the session at the step that the Trainer has restored."""
        batch = args.train_batch_size * args.gradient_accumulation_steps
        self.run = FrameworkRun(**{"batch_size": batch, **self._settings})
        loader = more.get("train_dataloader")
        try:
            steps = math.ceil(len(loader) / args.gradient_accumulation_steps)  # type: ignore[arg-type]
        except TypeError:  # a stream has no length
            steps = 0
        self.run.open(int(state.num_train_epochs or 0), steps, int(state.global_step), _METHOD)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Record a step; save and stop if the session asks for it."""
        assert self.run is not None
        self.run.step(args.train_batch_size * args.gradient_accumulation_steps)
        return self._follow(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Record the end of an epoch; save and stop if the session asks for it."""
        assert self.run is not None
        self.run.end_epoch()
        return self._follow(control, at_epoch_end=True)

    def _follow(self, control: Any, at_epoch_end: bool = False) -> Any:
        assert self.run is not None
        control.should_save = self.run.take_save_request(at_epoch_end) or control.should_save
        control.should_training_stop = self.run.session.should_stop or control.should_training_stop
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Add joules, watts, cap and job id to the logs, and report the metrics to the service."""
        if self.run is None or logs is None or self._has_ended:
            return
        self.run.report(logs)
        energy = describe_energy(self.run.session)
        logs.update(energy)
        if state.log_history:
            state.log_history[-1].update(energy)

    @property
    def _has_ended(self) -> bool:
        return self.run is not None and self.run.session._closed

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """End the session; the process ends with exit code 75 if the job was asked to yield."""
        if self.run is not None:
            self.run.close()


WattlineCallback = TrainerEnergyCallback
