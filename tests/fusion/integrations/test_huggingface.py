"""Arrays under the Trainer of Hugging Face: equal to separate Trainers, per-member logs and checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from support.fusion_equality import assert_same, assert_same_state, integer_tensor
from support.small_transformers import CLASSES, VOCABULARY, build_classifier, build_llama
from wattline import fusion
from wattline.errors import ConfigError
from wattline.fusion.integrations.huggingface import FusedTrainer
from wattline.fusion.integrations.peft import pad_lora

RATES = [1e-3, 3e-3, 1e-2]
CHECKPOINTING = next(  # transformers 5.23 has another name for it
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)


class Sentences(Dataset[dict[str, Tensor]]):
    """Random sentences with a class each; without *classes* the sentences are their own labels."""

    def __init__(self, count: int = 20, classes: bool = True) -> None:
        self.ids = integer_tensor(VOCABULARY, count, 6)
        self.labels = integer_tensor(CLASSES, count, seed=1) if classes else self.ids
        self.mask = (integer_tensor(4, count, 6, seed=2) > 0).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.ids[index],
            "attention_mask": self.mask[index],
            "labels": self.labels[index],
        }


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 8,
            "max_steps": 6,
            "logging_steps": 2,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "seed": 3,
            **settings,
        },
    )


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train_alone(model: nn.Module, args: TrainingArguments, data: Any, **settings: Any) -> Trainer:
    trainer = Trainer(model=model, args=args, train_dataset=data, **settings)
    trainer.train()
    return trainer


def logged(trainer: Trainer, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_grad_norm": 0.5, "weight_decay": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 2},
        {"gradient_accumulation_steps": 2, "max_steps": 3},
        {"optim": "sgd", "max_grad_norm": 0.0},
    ],
    ids=["plain", "clipped", "accumulated", "sgd"],
)
@pytest.mark.parametrize("build", [build_classifier, build_llama])
def test_an_array_learns_what_separate_trainers_do(build: Any, settings: Any, tmp_path: Path) -> None:
    data = Sentences(classes=build is build_classifier)
    models = [build(seed) for seed in range(3)]
    args = [arguments(tmp_path, learning_rate=lr, **settings) for lr in RATES]
    array = fusion.fuse(models)
    ours = FusedTrainer(model=array, args=args, train_dataset=data)
    out = ours.train()
    for index, model in enumerate(models):
        alone = train_alone(model, args[index], data)
        for name in ("loss", "learning_rate", "grad_norm", "train_loss"):
            expected = logged(alone, name)
            assert expected
            assert logged(ours, f"{name}_{index}") == pytest.approx(expected, rel=1e-4), name
    assert_same_state(array, models, 2e-5)
    assert out.training_loss == pytest.approx(np.mean([out.metrics[f"train_loss_{i}"] for i in range(3)]))


@pytest.mark.slow
def test_members_may_have_schedules_and_clipping_of_their_own(tmp_path: Path) -> None:
    data, models = Sentences(), [build_classifier(seed) for seed in range(3)]
    own: list[dict[str, Any]] = [
        {"lr_scheduler_type": "cosine", "max_grad_norm": 0.0, "adam_beta1": 0.8},
        {"lr_scheduler_type": "constant", "max_grad_norm": 0.1, "weight_decay": 0.3},
        {"warmup_steps": 3, "max_grad_norm": 2.0, "adam_epsilon": 1e-5},
    ]
    args = [arguments(tmp_path, learning_rate=3e-3, **settings) for settings in own]
    array = fusion.fuse(models)
    FusedTrainer(model=array, args=args, train_dataset=data).train()
    for model, of_member in zip(models, args, strict=True):
        train_alone(model, of_member, data)
    assert_same_state(array, models, 2e-5)


@pytest.mark.slow
def test_evaluation_reports_the_metrics_of_each_member(tmp_path: Path) -> None:
    data, models = Sentences(21), [build_classifier(seed) for seed in range(3)]
    ours = FusedTrainer(
        model=fusion.fuse(models), args=arguments(tmp_path), eval_dataset=data, compute_metrics=accuracy
    )
    metrics = ours.evaluate()
    predicted = ours.predict(data).predictions
    for index, model in enumerate(models):
        alone = Trainer(model=model, args=arguments(tmp_path), eval_dataset=data, compute_metrics=accuracy)
        expected = alone.evaluate()
        assert metrics[f"eval_loss_{index}"] == pytest.approx(expected["eval_loss"], rel=1e-5)
        assert metrics[f"eval_accuracy_{index}"] == expected["eval_accuracy"]
        np.testing.assert_allclose(predicted[index], alone.predict(data).predictions, rtol=1e-4, atol=1e-5)
    assert metrics["eval_accuracy"] == pytest.approx(
        np.mean([metrics[f"eval_accuracy_{i}"] for i in range(3)])
    )


@pytest.mark.slow
def test_a_checkpoint_has_an_ordinary_model_for_each_member(tmp_path: Path) -> None:
    models = [build_classifier(seed) for seed in range(3)]
    array = fusion.fuse(models)
    args = arguments(tmp_path, save_strategy="steps", save_steps=3)
    FusedTrainer(model=array, args=args, train_dataset=Sentences()).train()
    for index in range(3):
        folder = tmp_path / "checkpoint-6" / f"member{index}"
        loaded = AutoModelForSequenceClassification.from_pretrained(folder)
        assert_same(loaded.state_dict(), array.member_state_dict(index), f"member {index}", 0)
        array.load_member(index, loaded.state_dict())


@pytest.mark.slow
def test_training_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    data, models = Sentences(), [build_classifier(seed) for seed in range(3)]
    args = [arguments(tmp_path, save_strategy="steps", save_steps=3, learning_rate=lr) for lr in RATES]
    array, again = fusion.fuse(models), fusion.fuse(models)
    FusedTrainer(model=array, args=args, train_dataset=data).train()
    resumed = FusedTrainer(model=again, args=args, train_dataset=data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert_same_state(again, array.split(), 1e-6)


@pytest.mark.slow
def test_a_loss_function_and_a_selection_of_logits_apply_to_each_member(tmp_path: Path) -> None:
    data, models = Sentences(), [build_classifier(seed) for seed in range(3)]

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return nn.functional.multi_margin_loss(outputs.logits, labels, reduction="sum") / num_items_in_batch

    def choose(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(-1)

    def share(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}

    settings: dict[str, Any] = {
        "compute_loss_func": loss,
        "preprocess_logits_for_metrics": choose,
        "compute_metrics": share,
        "eval_dataset": data,
    }
    array = fusion.fuse(models)
    ours = FusedTrainer(model=array, args=arguments(tmp_path), train_dataset=data, **settings)
    with pytest.warns(fusion.FusionWarning, match="runs separately for each member"):
        ours.train()
    metrics = ours.evaluate()
    for index, model in enumerate(models):
        expected = train_alone(model, arguments(tmp_path), data, **settings).evaluate()
        assert metrics[f"eval_accuracy_{index}"] == expected["eval_accuracy"]
    assert_same_state(array, models, 2e-5)


@pytest.mark.slow
def test_bfloat16_of_the_trainer_equals_separate_trainers(tmp_path: Path) -> None:
    data, models = Sentences(), [build_classifier(seed) for seed in range(3)]
    array = fusion.fuse(models)
    args = arguments(tmp_path, bf16=True, max_steps=2, logging_steps=1, optim="sgd")
    ours = FusedTrainer(model=array, args=args, train_dataset=data)
    ours.train()
    for index, model in enumerate(models):
        alone = train_alone(model, args, data)
        assert logged(ours, f"loss_{index}") == pytest.approx(logged(alone, "loss"), rel=2e-2)
    assert_same_state(array, models, 1e-3)


def test_arguments_that_an_array_cannot_follow_are_refused(tmp_path: Path) -> None:
    array = fusion.fuse([build_classifier(seed) for seed in range(2)])
    for settings, words in (
        ({"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps"}, "load_best"),
        ({CHECKPOINTING: True}, "checkpointing recomputes"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor is not supported"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"},
            "plateau is not supported",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            FusedTrainer(model=array, args=arguments(tmp_path, **settings))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="args has 3 entries, expected one or 2"):
        FusedTrainer(model=array, args=[arguments(tmp_path)] * 3)
    with pytest.raises(ConfigError, match=r"differ in seed: \[1, 2\]"):
        FusedTrainer(model=array, args=[arguments(tmp_path, seed=seed) for seed in (1, 2)])
    with pytest.raises(ConfigError, match="expected an array"):
        FusedTrainer(model=build_classifier(0), args=arguments(tmp_path))
    optimiser = torch.optim.SGD(array.parameters())
    with pytest.raises(ConfigError, match="the optimiser is SGD, expected one of wattline"):
        FusedTrainer(model=array, args=arguments(tmp_path), optimizers=(optimiser, None))
    with pytest.raises(ConfigError, match="no array optimiser is equivalent to Adafactor"):
        FusedTrainer(model=array, args=arguments(tmp_path, optim="adafactor")).create_optimizer()


@pytest.mark.slow
def test_adapters_of_different_ranks_under_the_trainer(tmp_path: Path) -> None:
    data = Sentences(classes=False)
    models = [build_adapter(seed, rank) for seed, rank in enumerate((2, 4))]
    args = arguments(tmp_path, learning_rate=1e-2, save_strategy="steps", save_steps=3)
    array, again = fusion.fuse(pad_lora(models)), fusion.fuse(pad_lora(models))
    FusedTrainer(model=array, args=args, train_dataset=data).train()
    FusedTrainer(model=again, args=args, train_dataset=data).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-3")
    )
    assert_same_state(again, array.split(), 1e-6)
    for index, model in enumerate(models):
        folder = tmp_path / "checkpoint-6" / f"member{index}"
        loaded = PeftModel.from_pretrained(build_llama(0), folder)
        train_alone(model, arguments(tmp_path / "alone", learning_rate=1e-2), data)
        assert_same(loaded.state_dict(), model.state_dict(), f"member {index}", 2e-5)


def build_adapter(seed: int, rank: int) -> PeftModel:
    base = build_llama(0)
    torch.manual_seed(seed)
    return get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )


def test_a_copy_of_the_models_is_trained(tmp_path: Path) -> None:
    models = [build_classifier(seed) for seed in range(2)]
    before = copy.deepcopy(models[0].state_dict())
    FusedTrainer(
        model=fusion.fuse(models), args=arguments(tmp_path, max_steps=1), train_dataset=Sentences()
    ).train()
    assert_same(models[0].state_dict(), before, "state of the model", 0)
