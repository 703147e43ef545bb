"""What a forward is called with: tensors that all members share, and tensors that each has of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattline.errors import NotFusible
from wattline.fusion.module_state import flatten


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a forward is called with: tensors, of which some are of each member, in a structure."""

    tensors: tuple[Tensor, ...]
    own: tuple[bool, ...]  # of each tensor
    flags: tuple[bool, ...]  # of each positional argument
    others: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], members: bool | Sequence[bool], size: int
    ) -> Inputs:
        """*members* says of all arguments, or of each positional one, whether it has B rows in front."""
        each = [members] * len(args) if isinstance(members, bool) else list(members)
        if len(each) != len(args):
            raise NotFusible(
                f"members has {len(each)} entries, expected one for each of {len(args)} arguments"
            )
        leaves, spec = opened(lambda: flatten((args, kwargs)))
        own: list[bool] = []
        for arg, is_own in zip(args, each, strict=True):
            own += [is_own] * len(tree_flatten(arg)[0])
        own += [members is True] * (len(leaves) - len(own))
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        tensors = tuple(leaf for leaf, yes in zip(leaves, is_tensor, strict=True) if yes)
        marks = tuple(flag for flag, yes in zip(own, is_tensor, strict=True) if yes)
        for tensor, flag in zip(tensors, marks, strict=True):
            if flag and (tensor.dim() == 0 or tensor.shape[0] != size):
                raise NotFusible(
                    f"an input of each member has the shape {tuple(tensor.shape)}, "
                    f"expected {size} members in front"
                )
        others = tuple(None if yes else leaf for leaf, yes in zip(leaves, is_tensor, strict=True))
        return cls(tensors, marks, tuple(each), others, (spec, tuple(is_tensor)))

    def rows(self, part: slice) -> Inputs:
        """What some of the members get."""
        own = zip(self.tensors, self.own, strict=True)
        return dataclasses.replace(self, tensors=tuple(t[part] if mine else t for t, mine in own))

    def build(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments with these tensors."""
        spec, is_tensor = self.spec
        given = iter(tensors)
        leaves = [next(given) if yes else o for o, yes in zip(self.others, is_tensor, strict=True)]
        args, kwargs = tree_unflatten(leaves, spec)
        return args, kwargs


def opened(look: Callable[[], Any]) -> Any:
    """What *look* finds in the tensors of a call; `NotFusible` where it cannot look."""
    try:
        return look()
    except TypeError as error:
        raise NotFusible(str(error)) from None
