"""The time of day, on a clock that never goes back.

A clock that is set forward is followed; one that is set back is ignored until the time of day has caught up,
so that nothing seems to happen before what was written down earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_JUMP_S = 1.0


class Clock:
    """Seconds since 1970; *last_s* is what was written down last."""

    def __init__(
        self,
        last_s: float = 0.0,
        tell: Callable[[str], None] = lambda text: None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady, self._tell = wall, steady, tell
        ahead_s = last_s - wall()
        if ahead_s > _JUMP_S:
            tell(f"the clock is {ahead_s:.0f} s behind what was written last: time goes on from there")
        self._offset_s = max(wall(), last_s) - steady()
        self._was_s = wall() - steady()

    def __call__(self) -> float:
        """Now."""
        steady = self._steady()
        real_s = self._wall() - steady
        if abs(real_s - self._was_s) > _JUMP_S:
            self._tell(
                f"the clock was set {'forward' if real_s > self._was_s else 'back'}"
                f" by {abs(real_s - self._was_s):.0f} s"
            )
            self._was_s = real_s
        self._offset_s = max(self._offset_s, real_s)
        return steady + self._offset_s
