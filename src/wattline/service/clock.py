"""Wall-clock time that never goes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_JUMP_S = 1.0  # smaller differences are drift, not a change of the clock
_logger = logging.getLogger(__name__)


class Clock:
    """Seconds since 1970, at least *last_s* (the time of the latest event in the store).

    A wall clock that is set forward is followed. One that is set back is ignored until it has caught up, so
    that no event seems to happen before an earlier one.
    """

    def __init__(
        self,
        last_s: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        behind_s = last_s - wall()
        if behind_s > _JUMP_S:
            _logger.warning(
                "the clock is %.0f s behind the latest stored event; time continues from that event", behind_s
            )
        self._offset_s = max(wall(), last_s) - steady()
        self._wall_offset_s = wall() - steady()

    def __call__(self) -> float:
        """Return the current time."""
        steady_s = self._steady()
        wall_offset_s = self._wall() - steady_s
        jump_s = wall_offset_s - self._wall_offset_s
        if abs(jump_s) > _JUMP_S:
            _logger.warning(
                "the clock was set %s by %.0f s", "forward" if jump_s > 0 else "back", abs(jump_s)
            )
            self._wall_offset_s = wall_offset_s
        self._offset_s = max(self._offset_s, wall_offset_s)
        return steady_s + self._offset_s
