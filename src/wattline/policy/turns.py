"""Policies in which jobs take turns, and how long a turn is."""

from __future__ import annotations

from typing import NamedTuple

from wattline.core.protocols import Policy
from wattline.policy.chain import Chain, spell
from wattline.policy.gandiva import Gandiva
from wattline.policy.gavel.policy import Gavel
from wattline.policy.gittins import Gittins
from wattline.policy.ordering import Las, keep

_KNOBS = {Las: "quantum_s", Gittins: "quantum_s", Gandiva: "slice_s", Gavel: "round_s"}


class Turn(NamedTuple):
    """The stage that lets jobs take turns, its knob, and the least length of a turn."""

    stage: str
    knob: str
    least_s: float


def find_turn(policy: Policy) -> Turn | None:
    """Return the shortest turn after which *policy* may stop a job for one like it; None: it has none.

    Other policies stop a job only for one with less work, an earlier deadline or the like, and do not
    return to it, or they price a restart.
    """
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    if keep in stages:
        return None
    turns = [
        Turn(spell(stage).partition(":")[0], knob, getattr(stage, knob))
        for stage in stages
        for kind, knob in _KNOBS.items()
        if isinstance(stage, kind)
    ]
    return min(turns, key=lambda turn: turn.least_s, default=None)
