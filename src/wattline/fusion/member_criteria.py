"""`MemberCriteria`: one criterion for each member, run as one function of the members' outputs.

The criteria stay the user's. Their numbers and tensors are read before every call and passed as an argument,
so that a later change takes effect, in compiled steps too.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.architecture_check import check_same_architecture
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.number_mode import MemberNumberMode
from wattline.fusion.member_numbers import find_differing_numbers, ordinary_numbers, register_numbers
from wattline.fusion.module_state import TORCH_ATTRIBUTES, call_with_tensors, named_tensors
from wattline.fusion.torch_internals import is_batchedtensor

Rows = dict[str, Tensor]


class MemberCriteria:
    """The function `criteria(output, *arguments, rows)`, with *rows* as `read_rows` returns them.

    `body` is a copy of the first criterion, in which the numbers that differ are buffers.
    """

    def __init__(self, criteria: Sequence[nn.Module], size: int) -> None:
        self.criteria = list(criteria)
        self._check(size)
        self.body = nn.Module()
        self._settings: list[dict[str, Any]] = []
        self._last: list[tuple[Tensor, int]] = []
        self._build()

    @property
    def __name__(self) -> str:
        return type(self.criteria[0]).__name__

    def _check(self, size: int) -> None:
        for index, criterion in enumerate(self.criteria):
            if not isinstance(criterion, nn.Module):
                raise NotFusible(
                    f"criterion {index} is a {type(criterion).__name__}, expected a torch.nn.Module",
                    "pass one function for all members, and numbers of members as arguments of the step",
                )
            own = [name for name, p in criterion.named_parameters() if p.requires_grad]
            if own:
                raise NotFusible(
                    f"criterion {index} has parameters of its own ({own[0]}), which no optimiser trains",
                    "make the loss a part of the model, or freeze them with requires_grad_(False)",
                )
        if len(self.criteria) != size:
            raise NotFusible(
                f"there are {len(self.criteria)} criteria, expected one for each of {size} members"
            )

    def _build(self) -> None:
        """Compare the criteria and copy the first one; raise `NotFusible` if they cannot be one function."""
        try:
            check_same_architecture([copy.deepcopy(c) for c in self.criteria])  # they may share tensors
        except NotFusible as error:
            text = error.message.replace("member ", "criterion ")
            raise NotFusible(f"the criteria cannot be fused: {text}", error.hint) from None
        numbers = find_differing_numbers(self.criteria)
        self.body = copy.deepcopy(self.criteria[0])
        for (path, name), values in numbers.items():
            register_numbers(self.body.get_submodule(path), name, values, torch.device("cpu"))
        self._numbers = list(numbers)
        self._settings = [_read_settings(c, numbers) for c in self.criteria]

    def read_rows(self, device: torch.device) -> Rows:
        """Return the present numbers and tensors of the criteria, stacked over the members."""
        for tensor, version in self._last:
            if tensor._version != version:
                raise NotFusible(
                    f"{self.__name__} writes to a buffer of its own, which would be lost",
                    "keep such values in buffers of the model",
                )
        if any(
            _read_settings(c, self._numbers) != s for c, s in zip(self.criteria, self._settings, strict=True)
        ):
            self._build()
        all_have = [named_tensors(criterion) for criterion in self.criteria]
        rows = {
            name: torch.stack([own[name].detach() for own in all_have]).to(device) for name in all_have[0]
        }
        for path, name in self._numbers:
            values = [vars(criterion.get_submodule(path))[name] for criterion in self.criteria]
            rows[f"{path}.{name}" if path else name] = torch.tensor(
                values, dtype=torch.float64, device=device
            )
        self._last = [(row, row._version) for row in rows.values()]
        return rows

    def __call__(self, output: Any, *arguments: Any) -> Any:
        """Return the criterion's value: of all members under vmap, else of the one that *rows* belong to."""
        *args, rows = arguments
        tensors = dict(rows)
        if any(map(is_batchedtensor, tensors.values())):
            with MemberNumberMode():
                result = call_with_tensors(self.body, tensors, (output, *args), {})
        else:
            with ordinary_numbers(self.body, tensors):
                result = call_with_tensors(self.body, tensors, (output, *args), {})
        if any(tensors[name] is not rows[name] for name in rows):
            raise NotFusible(
                f"{self.__name__} replaces a buffer of its own, which would be lost",
                "keep such values in buffers of the model",
            )
        return result

    def keep(self, members: Sequence[int]) -> None:
        """Keep the criteria of some members."""
        self.criteria = [self.criteria[member] for member in members]
        self._settings = [self._settings[member] for member in members]
        self._last = []

    def extend(self, count: int) -> None:
        """Add *count* copies of the last criterion, and warn of it."""
        warnings.warn(
            f"new members get copies of the last criterion, {self.criteria[-1]}; "
            "change them in step.loss.criteria",
            FusionWarning,
            stacklevel=4,
        )
        self.criteria += [copy.deepcopy(self.criteria[-1]) for _ in range(count)]
        self._settings += [self._settings[-1]] * count
        self._last = []


def _read_settings(criterion: nn.Module, numbers: Any) -> dict[str, Any]:
    """Return the plain values of a criterion, except for the numbers of members."""
    return {
        f"{path}.{name}": value
        for path, module in criterion.named_modules()
        for name, value in vars(module).items()
        if (name == "training" or name not in TORCH_ATTRIBUTES)
        and (path, name) not in numbers
        and (value is None or isinstance(value, bool | int | float | str))
    }


def share_criteria(criteria: Sequence[nn.Module], size: int, last: MemberCriteria | None) -> MemberCriteria:
    """Return *criteria* as one function: *last*, if it was built from the same objects."""
    if last is not None and size == len(criteria) and list(map(id, last.criteria)) == list(map(id, criteria)):
        return last
    return MemberCriteria(criteria, size)
