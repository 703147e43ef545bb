"""Arguments of a forward: tensors that all members share, and tensors with a row for each member."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wattline.errors import NotFusible
from wattline.fusion.module_state import flatten_tree
from wattline.fusion.torch_internals import tree_flatten, tree_unflatten


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tensors and the structure of a call's arguments."""

    tensors: tuple[Tensor, ...]
    per_member: tuple[bool, ...]  # one flag per tensor: it has a row for each member
    argument_flags: tuple[bool, ...]  # the same per positional argument
    are_keywords_own: bool  # keyword arguments have a row for each member
    others: Sequence[Any]
    spec: Any

    @classmethod
    def from_call(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], members: bool | Sequence[bool], size: int
    ) -> Inputs:
        """Build from a call; *members* flags arguments (all, or each positional one) with B rows in front."""
        each = [members] * len(args) if isinstance(members, bool) else list(members)
        if len(each) != len(args):
            raise NotFusible(
                f"members has {len(each)} entries, expected one for each of {len(args)} arguments"
            )
        leaves, spec, own = _flatten_call(args, kwargs, each, members is True)
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        tensors = tuple(leaf for leaf, yes in zip(leaves, is_tensor, strict=True) if yes)
        marks = tuple(flag for flag, yes in zip(own, is_tensor, strict=True) if yes)
        for tensor, flag in zip(tensors, marks, strict=True):
            if flag and (tensor.dim() == 0 or tensor.shape[0] != size):
                raise NotFusible(
                    f"a per-member input has the shape {tuple(tensor.shape)}, "
                    f"expected {size} members in front"
                )
        others = tuple(None if yes else leaf for leaf, yes in zip(leaves, is_tensor, strict=True))
        return cls(tensors, marks, tuple(each), members is True, others, (spec, tuple(is_tensor)))

    def select_members(self, part: slice) -> Inputs:
        """Return the inputs of some of the members."""
        flagged = zip(self.tensors, self.per_member, strict=True)
        return dataclasses.replace(self, tensors=tuple(t[part] if own else t for t, own in flagged))

    def build(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with these tensors."""
        spec, is_tensor = self.spec
        remaining = iter(tensors)
        leaves = [next(remaining) if yes else o for o, yes in zip(self.others, is_tensor, strict=True)]
        if spec is None:
            return tuple(leaves), {}
        args, kwargs = tree_unflatten(leaves, spec)
        return args, kwargs


_LEAVES = (Tensor, int, float, str, type(None))


def _flatten_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], each: list[bool], are_keywords_own: bool
) -> tuple[list[Any], Any, list[bool]]:
    """Return the leaves of the arguments, their structure, and a flag for each: it has a row per member.

    The structure is None for positional arguments without nested ones, which need not be taken apart.
    """
    if not kwargs and all(isinstance(arg, _LEAVES) for arg in args):
        return list(args), None, each
    leaves, spec = flatten_inputs((args, kwargs))
    own: list[bool] = []
    for arg, is_own in zip(args, each, strict=True):
        own += [is_own] * len(tree_flatten(arg)[0])
    return leaves, spec, [*own, *[are_keywords_own] * (len(leaves) - len(own))]


def flatten_inputs(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of *tree*; raise `NotFusible` where tensors cannot be reached."""
    try:
        return flatten_tree(tree)
    except TypeError as error:
        raise NotFusible(str(error)) from None
