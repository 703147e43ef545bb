"""Errors of submitted calls: submitit's own classes where it is installed, else classes of the same names."""

from __future__ import annotations


class _UncompletedJobError(RuntimeError):
    """The job has not ended, or ended without a result."""


class _FailedJobError(_UncompletedJobError):
    """The function raised an error; the message has its traceback, and `__cause__` is the error."""


def _find_classes() -> tuple[type[RuntimeError], type[RuntimeError]]:
    try:
        from submitit.core import utils
    except ImportError:
        return _UncompletedJobError, _FailedJobError
    return utils.UncompletedJobError, utils.FailedJobError


UncompletedJobError, FailedJobError = _find_classes()
