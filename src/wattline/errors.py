"""Exceptions of this package.

    WattlineError
    ├── InputError              input of the user is invalid
    │   ├── TraceError          in a trace file; has its path and line
    │   ├── ProfileError        in a table of measurements; has its path and line
    │   ├── ConfigError         in a flag, a cluster description or a policy
    │   ├── NotFusible          models cannot be trained as one array
    │   ├── WrongChecksum       a downloaded file is not the expected one
    │   ├── NotFound            no object has this name
    │   ├── NotAllowed          the caller lacks the permission
    │   ├── Unsatisfiable       a job that the cluster can never run; has the field
    │   └── Conflict            the object is in the wrong state for the operation
    ├── ModelError              a prediction cannot be made
    │   ├── NotFitted           there are no measurements
    │   └── OutOfRange          too far outside the range of the measurements
    ├── PlanError               a policy or a placer broke its contract
    │   ├── Oversubscribed      leases exceed the resources of a node
    │   ├── UnknownJob          a lease of a job that is not in the queue
    │   └── GrantedTwice        two leases of one job on one node
    └── BackendError            the cluster failed to carry out an action
        ├── Unreachable         no response
        ├── StoreError          the state cannot be written or read
        └── MeterError          no meter reading
            └── NotPermitted    administrator rights are required

A job that cannot start now is not an error; its `Reason` is part of the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_CLOSE = 0.65  # similarity of words, of which one may be a misspelling of the other


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the closest of the *known* words, in any case; empty if none is close."""
    words = {name.casefold(): name for name in known}
    near = get_close_matches(word.casefold(), list(words), 1, _CLOSE)
    return f"did you mean {words[near[0]]}?" if near else ""


class WattlineError(Exception):
    """Base class of all errors of this package; `hint` is what to try next, or empty."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(WattlineError):
    """Input of the user is invalid."""

    code = "bad_input"


class _FileError(InputError):
    """A file is invalid: `path`, `line` (1-based, None: the whole file), `problem`."""

    def __init__(self, path: str, line: int | None, problem: str, hint: str = "") -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}", hint)
        self.path = path
        self.line = line
        self.problem = problem

    def __reduce__(self) -> tuple[type[_FileError], tuple[str, int | None, str, str]]:
        return type(self), (self.path, self.line, self.problem, self.hint)


class TraceError(_FileError):
    """A trace or run log is invalid: `path`, `line` (1-based, None: the whole file), `problem`."""

    code = "bad_trace"


class ProfileError(_FileError):
    """A table of measurements is invalid: `path`, `line` (1-based, None: the whole file), `problem`."""

    code = "bad_profile"


class ConfigError(InputError):
    """A flag, a cluster description or a policy is invalid."""

    code = "bad_config"


class NotFusible(InputError):
    """Models cannot be trained as one array, or an operation that a fused array does not support."""

    code = "not_fusible"


class WrongChecksum(InputError):
    """A downloaded file is not the expected one; it was deleted."""

    code = "wrong_checksum"


class NotFound(InputError):
    """No object has the given name or id."""

    code = "not_found"


class NotAllowed(InputError):
    """The caller is not authenticated or lacks the permission."""

    code = "not_allowed"


class Unsatisfiable(InputError):
    """The cluster can never run the job: `field` is what it lacks, such as `resources.gpus`."""

    code = "unsatisfiable"

    def __init__(self, message: str, hint: str = "", field: str = "") -> None:
        super().__init__(message, hint)
        self.field = field

    def __reduce__(self) -> tuple[type[Unsatisfiable], tuple[str, str, str]]:
        return type(self), (self.message, self.hint, self.field)


class Conflict(InputError):
    """The object is in the wrong state for the operation."""

    code = "conflict"


class ModelError(WattlineError):
    """A prediction cannot be made."""

    code = "model"


class NotFitted(ModelError):
    """There are no measurements to predict from."""

    code = "not_fitted"


class OutOfRange(ModelError):
    """The configuration is too far outside the range of the measurements."""

    code = "out_of_range"


class PlanError(WattlineError):
    """A policy or a placer broke its contract."""

    code = "bad_plan"


class Oversubscribed(PlanError):
    """Leases exceed the resources of a node."""

    code = "oversubscribed"


class UnknownJob(PlanError):
    """A job that is not in the queue has a lease."""

    code = "unknown_job"


class GrantedTwice(PlanError):
    """A job has two leases on one node."""

    code = "granted_twice"


class BackendError(WattlineError):
    """The cluster failed to carry out an action."""

    code = "backend"


class Unreachable(BackendError):
    """The backend or service does not respond."""

    code = "unreachable"


class StoreError(BackendError):
    """The state of the service cannot be written or read."""

    code = "store"


class MeterError(BackendError):
    """A power meter gives no reading."""

    code = "meter"


class NotPermitted(MeterError):
    """The operation, such as setting a power cap, requires administrator rights."""

    code = "not_permitted"
