"""`wattline.Executor`: submit Python functions as jobs, with the interface of submitit's executors.

    executor = wattline.Executor(folder="log_test")
    executor.update_parameters(timeout_min=60, gpus_per_node=1)
    job = executor.submit(add, 5, 7)
    job.result()
    jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])  # one sweep

Functions, arguments and results are pickled by cloudpickle into *folder*, which jobs must be able to write.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from wattline.errors import ConfigError
from wattline.integrations.call_folder import Call, CallFolder
from wattline.integrations.executor_parameters import build_settings, normalise_parameters
from wattline.integrations.submitted_call import ServiceAddress, SubmittedCall
from wattline.meter.caps.record import state_folder

R = TypeVar("R")
LIMIT_CALLS = 10_000
"""Most calls of one array."""


class Executor:
    """Submits functions as jobs of the service.

    The service is found as by the commands: *url*, else the one that serves *dir*. *folder* is for pickles;
    parts of it from `%j` on are left out. Other named arguments are as for `update_parameters`.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        url: str | None = None,
        dir: str | None = None,
        **parameters: Any,
    ) -> None:
        self.folder = Path(state_folder() / "calls" if folder is None else folder).expanduser().absolute()
        self.parameters = normalise_parameters(parameters)
        self._service = ServiceAddress(url, dir)
        self._batch: list[tuple[SubmittedCall[Any], Call]] | None = None
        self._submits_implicitly = False

    def update_parameters(self, **parameters: Any) -> None:
        """Set parameters of later submissions: those of submitit, or fields of a job file such as `team`."""
        if self._batch is not None:
            raise ConfigError("parameters cannot be changed inside executor.batch()")
        self.parameters |= normalise_parameters(parameters)
        build_settings(self.parameters)  # raises now, not with the next submission

    def submit(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> SubmittedCall[R]:
        """Submit a call of *fn*, and return it; inside `batch()` it is submitted later."""
        if self._batch is not None:
            job: SubmittedCall[R] = SubmittedCall(self._service, self._submit_before_use)
            self._batch.append((job, (fn, args, kwargs)))
            return job
        return self._submit_calls([(fn, args, kwargs)])[0]

    def map_array(self, fn: Callable[..., R], *iterable: Iterable[Any]) -> list[SubmittedCall[R]]:
        """Submit a call of *fn* for each tuple of arguments, as `map` does; all are one sweep."""
        return self._submit_array([(fn, args, {}) for args in zip(*iterable, strict=False)])

    def submit_array(self, fns: Sequence[Callable[[], R]]) -> list[SubmittedCall[R]]:
        """Submit calls of functions without arguments; all are one sweep."""
        return self._submit_array([(fn, (), {}) for fn in fns])

    @contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """Submit all calls of the block as one sweep when it ends; after an error none is submitted.

        With *allow_implicit_submissions* the first use of a call submits those before it.
        """
        if self._batch is not None:
            raise ConfigError("executor.batch() is inside another one, expected one at a time")
        self._batch, self._submits_implicitly = [], allow_implicit_submissions
        try:
            yield
            if not self._batch and not allow_implicit_submissions:
                warnings.warn("executor.batch() ended without a submission", RuntimeWarning, stacklevel=3)
            self._submit_batch()
        finally:
            self._batch = None

    def _submit_before_use(self) -> None:
        if self._batch is None:
            raise AttributeError("this call was not submitted: its executor.batch() ended with an error")
        if not self._submits_implicitly:
            raise AttributeError("this call is submitted when executor.batch() ends, and not before")
        self._submit_batch()

    def _submit_batch(self) -> None:
        batch, self._batch = self._batch or [], []
        self._submit_calls([call for _, call in batch], [job for job, _ in batch])

    def _submit_array(self, calls: Sequence[Call]) -> list[SubmittedCall[Any]]:
        if not calls:
            warnings.warn("the array has no calls", RuntimeWarning, stacklevel=3)
        return self._submit_calls(calls)

    def _submit_calls(
        self, calls: Sequence[Call], jobs: Sequence[SubmittedCall[Any]] = ()
    ) -> list[SubmittedCall[Any]]:
        """Submit the calls by one request and return them; *jobs* are those that exist already."""
        if not calls:
            return []
        if len(calls) > LIMIT_CALLS:
            raise ConfigError(f"the array has {len(calls):,} calls, expected at most {LIMIT_CALLS:,}")
        fields, tasks = build_settings(self.parameters)
        client = self._service.connect()
        folder = CallFolder.create(self.folder, calls, tasks)
        document = {"name": _name(calls[0][0]), "workdir": os.getcwd(), **fields}
        if len(calls) == 1:
            document.pop("max_parallel", None)  # for arrays
            document["run"] = folder.build_command("0")
        else:
            document["run"] = folder.build_command("${call}")
            document["matrix"] = {"call": f"0..{len(calls) - 1}"}
        accepted = client.post("/jobs", document, key=folder.path.name)["jobs"]
        submitted = list(jobs) or [SubmittedCall(self._service) for _ in calls]
        for number, (job, row) in enumerate(zip(submitted, accepted, strict=True)):
            job._set_job(row["id"], folder, number, tasks)
        return submitted


def _name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    return "".join(char for char in name if char.isprintable())[:200].replace("$", "$$")
