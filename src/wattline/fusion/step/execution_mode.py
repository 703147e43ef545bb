"""Execution mode of the steps of an array."""

from __future__ import annotations

from dataclasses import dataclass

from wattline.fusion.lowering.rules import Ways


@dataclass(frozen=True)
class ExecutionMode:
    """*width* members at a time (None: all); *ways* None: one after another, not fused."""

    width: int | None
    ways: Ways | None
    compiled: bool

    def __str__(self) -> str:
        if self.ways is None:
            how = "one member after another, not fused"
        else:
            how = f"{'all' if self.width is None else self.width} members fused ({self.ways})"
        return f"{how}, {'compiled' if self.compiled else 'operator by operator'}"
