"""What becomes of a job whose processes are over."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from wattline.backend.engine.job_record import Life, Run
from wattline.backend.engine.local.attempt import Exit

_QUICK_S = 30.0  # who asks to be started again sooner, and has done nothing, waits first
STOPPED_FOR_OTHERS = "It was stopped for others."


class Fate(Enum):
    """What happens next."""

    OVER = "it leaves for good"
    WAITS = "it gave its GPUs back as it was told"
    LOST = "it has lost its GPUs, and is in the queue again"
    LATER = "it is tried again after a while"
    BLAMED = "it was killed, and is tried again after a while unless that was too often"


class Verdict(NamedTuple):
    """A fate, the state if it is over, and the sentence its owner reads."""

    fate: Fate
    state: str
    message: str


def verdict(
    life: Life, run: Run, exit: Exit | None, *, held: bool, progressed: bool, lasted_s: float
) -> Verdict:
    """Of a job that was in *run*, whose processes ended so (None: they vanished).

    *held*: no policy had told it to leave. *progressed*: it has saved more than it came with.
    """
    state = "NODE_FAIL" if exit is None else exit.state
    message = "Its processes vanished." if exit is None else exit.message
    if life.cancelled:
        return Verdict(Fate.OVER, "CANCELLED", "It was cancelled.")
    if run.why == "budget":
        return Verdict(Fate.OVER, "FAILED", "It has used all of its own energy budget.")
    if state == "SUCCEEDED":
        return Verdict(Fate.OVER, state, "")
    if run.why == "stop" or not held:
        return Verdict(Fate.WAITS, state, STOPPED_FOR_OTHERS)
    if exit is not None and exit.asked == "stop":  # by a controller that is no more
        return Verdict(Fate.LOST, state, STOPPED_FOR_OTHERS)
    if state == "REQUEUE":
        if not progressed and lasted_s < _QUICK_S:
            return Verdict(Fate.LATER, state, "It asked to be started again, and had done nothing.")
        return Verdict(Fate.LOST, state, "It asked to be started again.")
    if state in ("TIMEOUT", "OUT_OF_MEMORY"):
        return Verdict(Fate.OVER, state, message)
    if run.array:  # that says nothing of a member: it is tried alone
        return Verdict(Fate.LATER, state, message)
    if exit is None:
        rebooted = run.attempt is not None and run.attempt.rebooted()
        return Verdict(Fate.LATER if rebooted else Fate.BLAMED, state, message)
    if exit.signal:
        return Verdict(Fate.BLAMED, state, message)
    return Verdict(Fate.OVER, "FAILED", message)
