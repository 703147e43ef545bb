"""Explanations for pages: they simulate, so one at a time is made, and kept until the next decision."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from wattline.service.http.schemas import ExplanationResponse
from wattline.service.storage.projection import JobRow
from wattline.service.view import ControllerView

_KEPT = 64
_Key = tuple[str, str, int, float]


class ExplanationCache:
    """The explanations of the jobs that were opened last."""

    def __init__(self, explain: Callable[[ControllerView, JobRow], ExplanationResponse]) -> None:
        self._explain = explain
        self._lock = threading.Lock()  # held while one is made
        self._kept: OrderedDict[_Key, ExplanationResponse] = OrderedDict()

    def explain(self, view: ControllerView, job: JobRow) -> ExplanationResponse:
        """Return the explanation of a job as of the last decision."""
        decided_s = -1.0 if view.step is None else view.step.state.now_s
        key = job.id, job.state, view.epoch, decided_s
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = self._explain(view, job)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return found
