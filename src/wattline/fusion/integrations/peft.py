"""LoRA adapters of peft with different ranks as one array: padded with zeros to the largest rank.

A padded row of A meets a padded column of B, and both are zero. The gradient of each has the other as a
factor, so it is zero too, and SGD, Adam and weight decay leave both at zero: every member computes and learns
what it would at its own rank. The factor alpha / r becomes a buffer, because it differs between members.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from wattline.errors import NotFusible

_ORIGIN, _ORIGINS = "lora_origin", "lora_origins"  # a buffer with the row, an attribute with the table
Settings = dict[str, tuple[int, float, float]]  # by adapter: rank, alpha, scaling


class LoraScaling(nn.Module):
    """The factors of a LoRA layer by adapter, as buffers; replaces the dictionary of numbers.

    The buffers are float64 and stay so, because a number of Python is one too; they are in no state dict.
    """

    def __init__(self, factors: Mapping[str, float]) -> None:
        super().__init__()
        for adapter, factor in factors.items():
            self[adapter] = factor

    def __getitem__(self, adapter: str) -> Tensor:
        tensor = self._buffers[adapter]
        assert tensor is not None
        return tensor

    def __setitem__(self, adapter: str, factor: float | Tensor) -> None:
        value = torch.as_tensor(factor, dtype=torch.float64)
        self.register_buffer(adapter, value, persistent=False)

    def __contains__(self, adapter: object) -> bool:
        return adapter in self._buffers

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LoraScaling:
        """Follow moves to another device, but no change of type."""
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(fn(tensor).device)
        return self


def pad_lora(models: Sequence[PeftModel], rank: int | None = None) -> list[PeftModel]:
    """Return copies of *models* that can be fused although their ranks and alphas differ.

    Each layer is padded to its largest rank among *models*, or to *rank*. The copies share the frozen
    parameters with *models*. `unpad_lora(array.member(i))` returns a model of its own rank again.
    """
    models = list(models)
    for index, model in enumerate(models):
        _check_padable(index, model)
    origins = [
        {"layers": _layer_settings(model), "config": copy.deepcopy(model.peft_config)} for model in models
    ]
    ranks = _largest_ranks([origin["layers"] for origin in origins], rank)
    config = copy.deepcopy(models[0].peft_config)
    for adapter, of_adapter in config.items():
        of_adapter.r = max(own[adapter] for own in ranks.values() if adapter in own)
        of_adapter.lora_alpha, of_adapter.rank_pattern, of_adapter.alpha_pattern = of_adapter.r, {}, {}
    return [_pad(model, index, ranks, config, origins) for index, model in enumerate(models)]


def unpad_lora(model: nn.Module) -> nn.Module:
    """Return a copy of a padded model at its own rank, as peft made it; any other model unchanged.

    The copy shares the frozen parameters with *model*.
    """
    if not hasattr(model, _ORIGINS):
        return model
    out: Any = _copy_trained(model)
    origin = getattr(model, _ORIGINS)[int(getattr(model, _ORIGIN))]
    for path, settings in origin["layers"].items():
        layer = out.get_submodule(path)
        _set_ranks(layer, {adapter: own[0] for adapter, own in settings.items()})
        del layer.scaling
        layer.lora_alpha = {adapter: own[1] for adapter, own in settings.items()}
        layer.scaling = {adapter: own[2] for adapter, own in settings.items()}
    delattr(out, _ORIGINS)
    delattr(out, _ORIGIN)
    _set_config(out, copy.deepcopy(origin["config"]))
    return out


def pad_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the *state* of a model of its own rank with zeros added, so that the padded *model* loads it."""
    own = model.state_dict()
    return {
        name: _resize(tensor, tuple(own[name].shape)) if name in own else tensor
        for name, tensor in state.items()
    }


def _pad(
    model: PeftModel, index: int, ranks: dict[str, dict[str, int]], config: Any, origins: list[Any]
) -> PeftModel:
    out = _copy_trained(model)
    for path, layer in _lora_layers(out).items():
        _set_ranks(layer, ranks[path])
        factors = layer.scaling
        del layer.scaling
        layer.scaling = LoraScaling(factors)
        layer.lora_alpha = dict(ranks[path])
    out.register_buffer(_ORIGIN, torch.tensor(index), persistent=False)
    setattr(out, _ORIGINS, origins)
    _set_config(out, copy.deepcopy(config))
    return out


def _check_padable(index: int, model: Any) -> None:
    if not isinstance(model, PeftModel) or not _lora_layers(model):
        raise NotFusible(f"member {index} is {type(model).__name__}, expected a peft model with LoRA layers")
    if hasattr(model, _ORIGINS):
        raise NotFusible(f"member {index} is padded already", "pass the result of unpad_lora")
    for path, layer in _lora_layers(model).items():
        if layer.lora_variant or layer.merged or layer.lora_magnitude_vector:
            raise NotFusible(
                f"{path} of member {index} is merged or no plain LoRA (DoRA or the like) and cannot be padded"
            )
        kinds = [type(layer.lora_A[adapter]) for adapter in layer.lora_A]
        if any(kind is not nn.Linear for kind in kinds):
            raise NotFusible(
                f"{path} of member {index} has a {kinds[0].__name__} as adapter and cannot be padded",
                "only adapters of linear layers and embeddings can",
            )


def _lora_layers(model: nn.Module) -> dict[str, Any]:
    return {path: module for path, module in model.named_modules() if isinstance(module, LoraLayer)}


def _layer_settings(model: nn.Module) -> dict[str, Settings]:
    return {
        path: {
            adapter: (layer.r[adapter], layer.lora_alpha[adapter], layer.scaling[adapter])
            for adapter in layer.r
        }
        for path, layer in _lora_layers(model).items()
    }


def _largest_ranks(settings: list[dict[str, Settings]], rank: int | None) -> dict[str, dict[str, int]]:
    """Return the rank of each layer and adapter."""
    largest: dict[str, dict[str, int]] = {}
    for member in settings:
        for path, of_layer in member.items():
            for adapter, (own, _, _) in of_layer.items():
                if rank is not None and own > rank:
                    raise NotFusible(f"{path} has rank {own}, expected at most rank={rank}")
                ranks = largest.setdefault(path, {})
                ranks[adapter] = max(own, ranks.get(adapter, 0)) if rank is None else rank
    return largest


def _copy_trained(model: Any) -> Any:
    """Return a copy of *model* that shares its frozen parameters."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})


def _set_ranks(layer: Any, ranks: Mapping[str, int]) -> None:
    """Cut the adapters of *layer* to *ranks*, or fill them up with zeros."""
    for adapter, rank in ranks.items():
        if adapter in layer.lora_A:
            a, b = layer.lora_A[adapter], layer.lora_B[adapter]
            a.weight, a.out_features = _resize_parameter(a.weight, 0, rank), rank
            b.weight, b.in_features = _resize_parameter(b.weight, 1, rank), rank
        if adapter in layer.lora_embedding_A:
            a, b = layer.lora_embedding_A, layer.lora_embedding_B
            a[adapter] = _resize_parameter(a[adapter], 0, rank)
            b[adapter] = _resize_parameter(b[adapter], 1, rank)
        layer.r[adapter] = rank


def _resize_parameter(parameter: nn.Parameter, dim: int, size: int) -> nn.Parameter:
    shape = tuple(size if at == dim else length for at, length in enumerate(parameter.shape))
    return nn.Parameter(_resize(parameter.detach(), shape), parameter.requires_grad)


def _resize(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) == shape:
        return tensor
    out = tensor.new_zeros(shape)
    common = tuple(slice(min(a, b)) for a, b in zip(tensor.shape, shape, strict=True))
    out[common] = tensor[common]
    return out


def _set_config(model: Any, config: Any) -> None:
    """Set the adapters' configuration of a peft model and of the tuner inside, which share one object."""
    model.peft_config.clear()
    model.peft_config.update(config)
    if model.base_model.peft_config is not model.peft_config:
        model.base_model.peft_config.clear()
        model.base_model.peft_config.update(config)
