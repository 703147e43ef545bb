"""What can go wrong, as one tree.

    WattlineError
    ├── InputError              what the user gave cannot be used
    │   ├── TraceError          a trace file, with its path and line
    │   ├── ProfileError        a table of measurements, with its path and line
    │   ├── ConfigError         a flag, a cluster description, a policy text
    │   ├── NotFusible          models that cannot be trained as one array
    │   ├── NotFound            a name that nothing has
    │   ├── NotAllowed          somebody may not do that
    │   └── Conflict            not as things are now
    ├── ModelError              a prediction cannot be made
    │   ├── NotFitted           nothing has been measured yet
    │   └── OutOfRange          too far from everything that was measured
    ├── PlanError               a policy or a placer broke its contract
    │   ├── Oversubscribed      a node was given more than it has
    │   ├── UnknownJob          a job that is not in the queue
    │   └── GrantedTwice        a job in two places at once
    └── BackendError            the machines do not do what they were told
        ├── Unreachable         no answer
        ├── StoreError          the state cannot be written
        └── MeterError          no reading
            └── NotPermitted    what only an administrator may do

"Cannot start this job now" is not an error: it is a `Reason` in the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest of the *known* words; empty when none is near."""
    near = get_close_matches(word, list(known), 1, 0.4)
    return f"did you mean {near[0]}?" if near else ""


class WattlineError(Exception):
    """Anything this package raises on purpose; `hint` says what to try next."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(WattlineError):
    """What the user gave cannot be used."""

    code = "bad_input"


class _FileError(InputError):
    """A file that cannot be read as what it should be: says where and what was expected."""

    def __init__(self, path: str, line: int | None, problem: str, hint: str = "") -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}", hint)
        self.path = path
        self.line = line
        self.problem = problem

    def __reduce__(self) -> tuple[type[_FileError], tuple[str, int | None, str, str]]:
        return type(self), (self.path, self.line, self.problem, self.hint)


class TraceError(_FileError):
    """A trace that cannot be read: `path`, `line` (1-based, None for the whole file), `problem`."""

    code = "bad_trace"


class ProfileError(_FileError):
    """A table of measurements that cannot be used: `path`, `line`, `problem`."""

    code = "bad_profile"


class ConfigError(InputError):
    """A flag, a cluster description or a policy text that makes no sense."""

    code = "bad_config"


class NotFusible(InputError):
    """Models that cannot be trained as one array, or a use that an array does not allow."""

    code = "not_fusible"


class NotFound(InputError):
    """A name that nothing has."""

    code = "not_found"


class NotAllowed(InputError):
    """Somebody who is not known, or may not do that."""

    code = "not_allowed"


class Conflict(InputError):
    """What cannot be done to something as it is now."""

    code = "conflict"


class ModelError(WattlineError):
    """A prediction cannot be made."""

    code = "model"


class NotFitted(ModelError):
    """Nothing has been measured yet."""

    code = "not_fitted"


class OutOfRange(ModelError):
    """Too far from everything that was measured."""

    code = "out_of_range"


class PlanError(WattlineError):
    """A policy or a placer broke its contract."""

    code = "bad_plan"


class Oversubscribed(PlanError):
    """A node was given more than it has."""

    code = "oversubscribed"


class UnknownJob(PlanError):
    """A plan names a job that is not in the queue."""

    code = "unknown_job"


class GrantedTwice(PlanError):
    """A plan gives one job two grants."""

    code = "granted_twice"


class BackendError(WattlineError):
    """The machines do not do what they were told."""

    code = "backend"


class Unreachable(BackendError):
    """No answer from what should run the jobs."""

    code = "unreachable"


class StoreError(BackendError):
    """The state of the service cannot be written or read."""

    code = "store"


class MeterError(BackendError):
    """No reading from a power meter."""

    code = "meter"


class NotPermitted(MeterError):
    """Something that only an administrator may do, such as setting a power cap."""

    code = "not_permitted"
