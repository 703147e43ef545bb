"""`FusedTrainer`: the Trainer of Hugging Face drives an array."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, Trainer, TrainingArguments, get_scheduler
from transformers.trainer_pt_utils import find_batch_size

from wattline.errors import ConfigError
from wattline.fusion.array import FusedArray
from wattline.fusion.integrations.member_folders import load_member_folder, save_member_folder
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.clip import clip_grad_norm_
from wattline.fusion.optim.schedule import Schedule
from wattline.fusion.torch_internals import tree_map, tree_map_only

_PER_MEMBER = {
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "warmup_ratio",
}
_OF_THE_FIRST = {"output_dir", "logging_dir", "run_name"}  # may differ; those of the first member are used
_REFUSED = {
    "fp16": "has one loss scale for all members; use bf16=True",
    "gradient_checkpointing": "recomputes parts of the forward, which arrays do not support",
    "torch_compile": "is not supported; use fusion.train_step for compiled steps",
    "load_best_model_at_end": "chooses one step for all members; compare the eval metrics of each member",
    "push_to_hub": "is not supported; push the folders of the members",
    "label_smoothing_factor": "is not supported; pass compute_loss_func",
    "neftune_noise_alpha": "is not supported",
    "deepspeed": "is not supported",
    "use_liger_kernel": "is not supported",
}


class FusedTrainer(Trainer):
    """A Trainer of an array: all members see the same batches, and each learns as under its own Trainer.

    *args* is one `TrainingArguments`, or a list of one per member; these may differ in learning rate, weight
    decay, Adam's numbers, schedule, warm-up and the norm for clipping. Logs and metrics have one entry per
    member (`loss_0`, `eval_accuracy_1`); a name without a number is the mean over the members. A checkpoint
    has a folder `member0`, `member1`, … for each, which `from_pretrained` loads.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: FusedArray,
        args: TrainingArguments | Sequence[TrainingArguments],
        *positional: Any,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        **settings: Any,
    ) -> None:
        if not isinstance(model, FusedArray):
            raise ConfigError(f"model is {type(model).__name__}, expected an array of fusion.fuse")
        if optimizers[0] is not None and not isinstance(optimizers[0], ArrayOptimizer):
            raise ConfigError(
                f"the optimiser is {type(optimizers[0]).__name__}, expected one of wattline.fusion"
            )
        self.array = model
        self.member_args = _arguments_per_member(args, len(model))
        self._losses = _MemberLosses()
        self._norms: Tensor | None = None
        self._eval: tuple[Tensor | float, int] = (0.0, 0)  # the sum over samples, and their number
        # The ordinary constructor looks at the class and the forward of a member.
        super().__init__(
            model.body,
            _common_arguments(self.member_args),
            *positional,
            compute_loss_func=compute_loss_func and self._map_loss(compute_loss_func),
            compute_metrics=compute_metrics and self._map_metrics(compute_metrics),
            preprocess_logits_for_metrics=preprocess_logits_for_metrics
            and self._map_logits(preprocess_logits_for_metrics),
            optimizers=optimizers,
            **settings,
        )
        self._set_signature_columns_if_needed()
        self.model = self.model_wrapped = self.callback_handler.model = model
        if self.args.n_gpu > 1 or self.args.world_size > 1:
            raise ConfigError("arrays are trained by one process on one device; set CUDA_VISIBLE_DEVICES")

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator; it backpropagates the sum of losses and clips each member by itself."""
        super().create_accelerator_and_postprocess()
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **kwargs: backward(loss.sum(), **kwargs)
        self.accelerator.clip_grad_norm_ = self._clip_members

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the array optimiser that `args.optim` names, with the numbers of each member."""
        if self.optimizer is None:
            kind, numbers = self._optimiser_settings()
            decayed = set(self.get_decay_parameter_names(self.array))
            groups: dict[bool, list[Any]] = {True: [], False: []}
            for name, parameter in self.array.named_parameters():
                if parameter.requires_grad:
                    groups[name in decayed].append(parameter)
            decay = [args.weight_decay for args in self.member_args]
            entries = [
                {"params": params, "weight_decay": decay if is_decayed else 0.0}
                for is_decayed, params in groups.items()
                if params
            ]
            self.optimizer = kind(entries, **numbers)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create a schedule with the ordinary scheduler of each member."""
        if self.lr_scheduler is None:
            optimiser = self.optimizer if optimizer is None else optimizer
            optimiser = getattr(optimiser, "optimizer", optimiser)  # accelerate wraps it

            def build(one: Any, member: int) -> Any:
                args = self.member_args[member]
                return get_scheduler(
                    args.lr_scheduler_type,
                    optimizer=one,
                    num_warmup_steps=args.get_warmup_steps(num_training_steps),
                    num_training_steps=num_training_steps,
                    scheduler_specific_kwargs=args.lr_scheduler_kwargs,
                )

            self.lr_scheduler = Schedule(optimiser, build)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Return the losses of the members, [B]."""
        losses, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if losses.shape != (len(self.array),):
            shape = list(losses.shape[1:])
            raise ConfigError(f"the loss of a member has the shape {shape}, expected one number")
        self._last_losses = losses.detach()
        return (losses, outputs) if return_outputs else losses

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Make one step of all members and return the mean of their losses."""
        losses = super().training_step(*args, **kwargs)
        self._losses.add(losses, self.state.global_step)
        return losses.mean()

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return loss, logits and labels of a batch; the members are the last dimension of the logits."""
        if ignore_keys is None:
            config = getattr(self.array.body, "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if loss is not None:
            total, count = self._eval
            size = find_batch_size(inputs) or 1
            self._eval = total + self._last_losses * size, count + size
        # Batches of different lengths are padded and joined along the first two dimensions.
        return loss, tree_map_only(Tensor, lambda t: t.movedim(0, -1), logits), labels

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Return metrics of each member; predictions have the members in front, as outputs of the array."""
        self._eval = 0.0, 0
        out = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )
        total, count = self._eval
        if isinstance(total, Tensor):
            out.metrics.update(_name_members(f"{metric_key_prefix}_loss", total / count))
        front = tree_map_only(np.ndarray, lambda a: np.moveaxis(a, -1, 0), out.predictions)
        return out._replace(predictions=front)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log with one entry per member added to losses, rates and norms."""
        if "loss" in logs and self._losses.steps(self.state.global_step):
            logs.update(_name_members("loss", self._losses.take_mean(self.state.global_step)))
            logs.update(_name_members("learning_rate", self._rates))
            if self._norms is not None:
                logs.update(_name_members("grad_norm", self._norms))
        if "train_loss" in logs and self._losses.start is not None:
            logs.update(_name_members("train_loss", self._losses.total_mean(self.state.global_step)))
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save each member as an ordinary model in a folder of its own: `member0`, `member1`, …"""
        folder = Path(output_dir or self.args.output_dir)
        for index, args in enumerate(self.member_args):
            own = folder / f"member{index}"
            save_member_folder(self.array, index, own)
            tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
            if tokenizer is not None:
                tokenizer.save_pretrained(own)
            torch.save(args, own / "training_args.bin")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        for index in range(len(self.array)):
            load_member_folder(self.array, index, Path(resume_from_checkpoint) / f"member{index}")

    def _get_learning_rate(self) -> float:
        self._rates = self.lr_scheduler.get_last_lr()[0]
        return float(self._rates.mean())

    def _clip_members(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        bounds = [args.max_grad_norm or float("inf") for args in self.member_args]
        measure_only = max_norm == float("inf")
        self._norms = clip_grad_norm_(list(parameters), max_norm if measure_only else bounds, norm_type)
        return self._norms.mean()

    def _optimiser_settings(self) -> tuple[type[ArrayOptimizer], dict[str, Any]]:
        if self.optimizer_cls_and_kwargs is not None:
            kind, numbers = self.optimizer_cls_and_kwargs
            if not (isinstance(kind, type) and issubclass(kind, ArrayOptimizer)):
                raise ConfigError(f"the optimiser is {kind}, expected one of wattline.fusion")
            return kind, numbers
        settings = [self.get_optimizer_cls_and_kwargs(args, self.array.body) for args in self.member_args]
        kind = _array_class(settings[0][0])
        merged: dict[str, Any] = {}
        for key in settings[0][1]:
            values = [numbers[key] for _, numbers in settings]
            if key == "betas":
                merged[key] = tuple(list(row) for row in zip(*values, strict=True))
            elif key not in ("fused", "foreach"):
                merged[key] = values[0] if isinstance(values[0], bool) else values
        return kind, merged

    def _map_loss(self, fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def losses(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
            def one(own: Any) -> Tensor:
                return fn(own, labels, num_items_in_batch=num_items_in_batch)

            return self.array.each(one, outputs)

        return losses

    def _map_metrics(self, fn: Callable[[Any], dict[str, float]]) -> Callable[..., dict[str, float]]:
        def metrics(prediction: Any, **settings: Any) -> dict[str, float]:
            out: dict[str, float] = {}
            for member in range(len(self.array)):
                own = EvalPrediction(
                    predictions=_select(prediction.predictions, member),
                    label_ids=prediction.label_ids,
                    inputs=prediction.inputs,
                )
                out.update({f"{name}_{member}": value for name, value in fn(own, **settings).items()})
            return {**_means(out, len(self.array)), **out}

        return metrics

    def _map_logits(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def logits(of_all: Any, labels: Any) -> Any:
            each = [fn(_select(of_all, member), labels) for member in range(len(self.array))]
            return tree_map(lambda *parts: torch.stack(parts, -1), *each)

        return logits


class _MemberLosses:
    """Sums of the members' losses since the last log and since the start of training."""

    def __init__(self) -> None:
        self.start: int | None = None
        self._since = 0
        self._recent: Tensor | float = 0.0
        self._total: Tensor | float = 0.0

    def add(self, losses: Tensor, step: int) -> None:
        if self.start is None:
            self.start = self._since = step
        self._recent = self._recent + losses

    def steps(self, step: int) -> int:
        return 0 if self.start is None else step - self._since

    def take_mean(self, step: int) -> Tensor:
        mean = torch.as_tensor(self._recent) / max(self.steps(step), 1)
        self._total, self._recent, self._since = self._total + self._recent, 0.0, step
        return mean

    def total_mean(self, step: int) -> Tensor:
        return torch.as_tensor(self._total + self._recent) / max(step - (self.start or 0), 1)


def _arguments_per_member(args: Any, size: int) -> list[Any]:
    """Return the arguments of each member; raise `ConfigError` where an array cannot follow them."""
    each = [args] * size if isinstance(args, TrainingArguments) else list(args)
    if len(each) != size:
        raise ConfigError(f"args has {len(each)} entries, expected one or {size} (one per member)")
    for name, reason in _REFUSED.items():
        if any(getattr(own, name, None) for own in each):
            raise ConfigError(f"{name} {reason}")
    for own in each:
        if own.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
            raise ConfigError(f"lr_scheduler_type {own.lr_scheduler_type.value} is not supported")
    for field in dataclasses.fields(each[0]):
        if field.name in _PER_MEMBER | _OF_THE_FIRST:
            continue
        values = [getattr(own, field.name, None) for own in each]
        if any(value != values[0] for value in values):
            raise ConfigError(
                f"args of the members differ in {field.name}: {values}; "
                f"expected one value (members may differ in {', '.join(sorted(_PER_MEMBER))})"
            )
    return each


def _common_arguments(each: Sequence[Any]) -> Any:
    """Return the arguments of the first member; clipping is on if any member clips."""
    common = copy.copy(each[0])
    common.max_grad_norm = max(args.max_grad_norm or 0.0 for args in each)
    return common


def _array_class(torch_class: type) -> type[ArrayOptimizer]:
    kinds = [ArrayOptimizer]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if vars(kind).get("torch_class") is torch_class:
            return kind
    raise ConfigError(
        f"no array optimiser is equivalent to {torch_class.__name__}",
        "choose another optim=, or pass optimizers=(optimiser of wattline.fusion, None)",
    )


def _select(values: Any, member: int) -> Any:
    return tree_map_only((Tensor, np.ndarray), lambda t: t[..., member], values)


def _name_members(name: str, values: Tensor) -> dict[str, float]:
    return {f"{name}_{member}": value for member, value in enumerate(values.tolist())}


def _means(metrics: dict[str, float], size: int) -> dict[str, float]:
    names = [name.removesuffix("_0") for name in metrics if name.endswith("_0")]
    rows = {name: [metrics[f"{name}_{member}"] for member in range(size)] for name in names}
    return {name: float(np.mean(row)) for name, row in rows.items()}
