"""LoRA adapters of peft over one frozen base: stored once, different ranks, members in and out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from support.fusion_equality import assert_same, assert_same_state, integer_tensor
from support.small_transformers import build_llama
from wattline import fusion
from wattline.errors import NotFusible
from wattline.fusion.integrations.peft import pad_lora, pad_state_dict, unpad_lora

IDS = integer_tensor(50, 4, 8)
TARGETS = ["q_proj", "v_proj", "embed_tokens"]


def build_adapter(seed: int, rank: int = 4, alpha: int = 8, **settings: Any) -> PeftModel:
    base = build_llama(0).double()
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=TARGETS, task_type="CAUSAL_LM", **settings)
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


def token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of predicting the next token in float64, of each member if *logits* has several."""
    shares = logits[..., :-1, :].log_softmax(-1)
    target = ids[:, 1:, None].expand(*shares.shape[:-1], 1)
    return -shares.gather(-1, target).mean(dim=(-3, -2, -1))


def train(model: nn.Module, optimiser: Any, steps: int = 4) -> list[Tensor]:
    losses = []
    for step in range(steps):
        ids = integer_tensor(50, 4, 8, seed=step)
        loss = token_loss(model(input_ids=ids).logits, ids)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def test_a_frozen_base_of_equal_value_is_stored_once() -> None:
    models = [build_adapter(seed) for seed in range(3)]
    array = fusion.fuse(models)
    assert {name for name, _ in array.body.named_parameters() if "lora" not in name} == set(array.common)
    assert all(len(tensor) == 3 for name, tensor in array.stacked.items() if "lora" in name)
    theirs = sum(p.numel() for p in models[0].parameters() if not p.requires_grad)
    assert sum(t.numel() for t in array.common.values()) == theirs


@pytest.mark.slow
def test_adapters_learn_the_same_as_separate_models() -> None:
    models = [build_adapter(seed) for seed in range(3)]
    array = fusion.fuse(models)
    rates = [0.01, 0.02, 0.03]
    ours = train(array, fusion.AdamW(array, lr=rates, weight_decay=0.1))
    for index, (model, lr) in enumerate(zip(models, rates, strict=True)):
        alone = train(model, torch.optim.AdamW(trained(model), lr=lr, weight_decay=0.1))
        assert_same([loss[index] for loss in ours], alone, f"losses of member {index}", 1e-8)
    assert_same_state(array, models, 1e-8)


@pytest.mark.slow
def test_a_member_loads_into_the_ordinary_model_and_back(tmp_path: Path) -> None:
    models = [build_adapter(seed) for seed in range(3)]
    array = fusion.fuse(models)
    train(array, fusion.SGD(array, lr=0.1))
    member: Any = array.member(1)
    member.save_pretrained(tmp_path, save_embedding_layers=False)
    loaded = PeftModel.from_pretrained(build_llama(0).double(), tmp_path, autocast_adapter_dtype=False)
    assert_same(loaded(input_ids=IDS).logits, array(input_ids=IDS).logits[1], "logits of the loaded model")
    ordinary = build_adapter(7)
    ordinary.load_state_dict(array.member_state_dict(1))
    array.load_member(0, ordinary.state_dict())
    assert_same(array.member_state_dict(0), array.member_state_dict(1), "state of a loaded member")


def test_a_state_with_another_base_does_not_load() -> None:
    array = fusion.fuse([build_adapter(seed) for seed in range(2)])
    state = {name: tensor + 1 for name, tensor in array.member_state_dict(0).items()}
    with pytest.raises(NotFusible, match="is shared by all members, but the state dict has another value"):
        array.load_member(0, state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_adapters_of_different_ranks_learn_what_they_would_alone(kind: str) -> None:
    settings = [(2, 8), (4, 4), (5, 16)]
    models = [build_adapter(seed, rank, alpha) for seed, (rank, alpha) in enumerate(settings)]
    array = fusion.fuse(pad_lora(models))
    numbers: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}
    ours = train(array, getattr(fusion, kind)(array, **numbers))
    for index, model in enumerate(models):
        alone = train(model, getattr(torch.optim, kind)(trained(model), **numbers))
        assert_same([loss[index] for loss in ours], alone, f"losses of member {index}", 1e-8)
        member = unpad_lora(array.member(index))
        assert member.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert_same(member.state_dict()[name], tensor, f"{name} of member {index}", 1e-8)


def test_the_padding_stays_zero() -> None:
    models = [build_adapter(seed, rank) for seed, rank in enumerate((1, 4))]
    array = fusion.fuse(pad_lora(models))
    train(array, fusion.AdamW(array, lr=0.1, weight_decay=0.5))
    rows = [tensor[0, 1:] for name, tensor in array.stacked.items() if "lora_A" in name]
    columns = [tensor[0, :, 1:] for name, tensor in array.stacked.items() if "lora_B" in name]
    assert len(rows) == len(columns) > 0
    assert all(bool((tensor == 0).all()) for tensor in [*rows, *columns])
    assert all(bool((tensor[1] != 0).all()) for name, tensor in array.stacked.items() if "lora_A" in name)


def test_a_padded_member_becomes_an_ordinary_adapter_of_its_own_rank(tmp_path: Path) -> None:
    models = [build_adapter(0, 2, 8, use_rslora=True), build_adapter(1, 5, 16, use_rslora=True)]
    array = fusion.fuse(pad_lora(models))
    array.drop([0])
    member: Any = unpad_lora(array.member(0))
    assert (member.peft_config["default"].r, member.peft_config["default"].lora_alpha) == (5, 16)
    member.save_pretrained(tmp_path, save_embedding_layers=False)
    loaded = PeftModel.from_pretrained(build_llama(0).double(), tmp_path, autocast_adapter_dtype=False)
    assert_same(loaded(input_ids=IDS).logits, models[1](input_ids=IDS).logits, "logits of the loaded model")


def test_a_state_of_the_own_rank_loads_into_a_padded_member() -> None:
    array = fusion.fuse(pad_lora([build_adapter(0, 2), build_adapter(1, 5)]))
    other = build_adapter(9, 2)
    array.load_member(0, pad_state_dict(array.member(0), other.state_dict()))
    assert_same(array(input_ids=IDS).logits[0], other(input_ids=IDS).logits, "logits of member 0")


def test_padding_leaves_the_models_unchanged_and_shares_their_base() -> None:
    models = [build_adapter(0, 2), build_adapter(1, 3)]
    before = copy.deepcopy(models[0].state_dict())
    padded = pad_lora(models)
    assert_same(models[0].state_dict(), before, "state of the model")
    assert models[0].peft_config["default"].r == 2
    frozen = [p for p in models[0].parameters() if not p.requires_grad]
    assert all(any(p is q for q in padded[0].parameters()) for p in frozen)


def test_the_factor_of_a_padded_layer_keeps_its_type() -> None:
    array = fusion.fuse(pad_lora([build_adapter(0, 3, 1), build_adapter(1, 2, 1)])).to(torch.bfloat16)
    factors = [tensor for name, tensor in array.stacked.items() if "scaling" in name]
    assert factors
    for factor in factors:
        torch.testing.assert_close(factor, torch.tensor([1 / 3, 1 / 2], dtype=torch.float64), rtol=0, atol=0)


def test_models_that_cannot_be_padded_are_refused() -> None:
    with pytest.raises(NotFusible, match="member 0 is LlamaForCausalLM, expected a peft model"):
        pad_lora([build_llama(0)])
    with pytest.raises(NotFusible, match="DoRA"):
        pad_lora([build_adapter(0, use_dora=True)])
    with pytest.raises(NotFusible, match="has rank 4, expected at most rank=2"):
        pad_lora([build_adapter(0)], rank=2)
    with pytest.raises(NotFusible, match="padded already"):
        pad_lora(pad_lora([build_adapter(0)]))
