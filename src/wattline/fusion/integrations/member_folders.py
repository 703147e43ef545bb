"""Members of an array as folders that `from_pretrained` loads."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from wattline.errors import NotFusible
from wattline.fusion.array import FusedArray


def save_member_folder(array: FusedArray, index: int, folder: Path) -> None:
    """Save one member with `save_pretrained`; a padded LoRA adapter at its own rank."""
    model: Any = array.member(index)
    if _is_peft_model(model):
        from wattline.fusion.integrations.peft import unpad_lora

        model = unpad_lora(model)
    if not hasattr(model, "save_pretrained"):
        raise NotFusible(f"{type(model).__name__} has no save_pretrained", "set save_strategy='no'")
    model.save_pretrained(folder)


def load_member_folder(array: FusedArray, index: int, folder: Path) -> None:
    """Load one member from a folder written by `save_pretrained`."""
    member: Any = array.member(index)
    if _is_peft_model(member):
        from peft import load_peft_weights, set_peft_model_state_dict

        from wattline.fusion.integrations.peft import pad_state_dict, unpad_lora

        model = copy.deepcopy(unpad_lora(member))  # the base too, which members share
        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))
        state = pad_state_dict(member, model.state_dict())
    else:
        model = type(member).from_pretrained(folder, dtype=next(member.parameters()).dtype)
        state = model.state_dict()
    array.load_member(index, state)


def _is_peft_model(model: Any) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)
