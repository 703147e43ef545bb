"""A submitted call, with the interface of submitit's `Job`: result, state, output, cancel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

from wattline.errors import Conflict, Unreachable
from wattline.integrations.call_folder import Call, CallFolder
from wattline.integrations.submitit_errors import FailedJobError, UncompletedJobError
from wattline.service.client import PATIENCE_S, Client, find_service

R = TypeVar("R", covariant=True)
LIVE = ("PENDING", "RUNNING")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class ServiceAddress(NamedTuple):
    """Address of the service, or its folder; None: as the commands find it."""

    url: str | None = None
    folder: str | None = None

    def connect(self) -> Client:
        """Return a client of the service."""
        return find_service(self.url, self.folder)


class CallPaths(NamedTuple):
    """Files of a call."""

    folder: Path
    submitted_pickle: Path
    result_pickle: Path
    stdout: Path
    stderr: Path


class SubmittedCall(Generic[R]):
    """A call that runs as a job; inside `executor.batch()` it is submitted when the block ends.

    `result()` waits and returns the value of the function. If the function raised an error, it raises
    `FailedJobError` with the traceback of the job, caused by that error.
    """

    def __init__(
        self, service: ServiceAddress, submit: Callable[[], None] | None = None, *, job_id: str = ""
    ) -> None:
        self._service = service
        self._submit = submit  # submits the batch that this call is part of
        self._job_id = job_id
        self._folder = CallFolder(Path())
        self._number = 0
        self._tasks: tuple[int, ...] = (0,)
        self._cancel_at_deletion = False
        self._last_state = ""

    def _set_job(self, job_id: str, folder: CallFolder, number: int, tasks: int) -> None:
        """Enter the job that was submitted for this call."""
        self._job_id, self._folder, self._number = job_id, folder, number
        self._tasks, self._submit = tuple(range(tasks)), None

    # -- the job

    @property
    def job_id(self) -> str:
        """Number of the job."""
        if not self._job_id and self._submit is not None:
            self._submit()
        return self._job_id

    @property
    def num_tasks(self) -> int:
        """Number of its processes."""
        return len(self._tasks)

    @property
    def task_id(self) -> int | None:
        """Rank of this task; None: the call has several."""
        return self._tasks[0] if len(self._tasks) == 1 else None

    def task(self, task_id: int) -> SubmittedCall[R]:
        """Return one of the tasks, which has the methods of a call."""
        _ = self.job_id
        if not 0 <= task_id < len(self._tasks):
            raise ValueError(f"task_id is {task_id}, expected a number from 0 to {len(self._tasks) - 1}")
        one: SubmittedCall[R] = SubmittedCall(self._service)
        one._set_job(self._job_id, self._folder, self._number, 1)
        one._tasks = (self._tasks[task_id],)
        return one

    def get_info(self, mode: str = "force") -> dict[str, Any]:
        """Return the job as the API describes it; *mode* is submitit's and has no effect."""
        info: dict[str, Any] = self._service.connect().get(f"/jobs/{self.job_id}")
        self._last_state = info["state"]
        return info

    @property
    def state(self) -> str:
        """State of the job, such as RUNNING."""
        return str(self.get_info()["state"])

    @property
    def energy_j(self) -> float | None:
        """Wait until the job has ended, and return its joules; None: unmetered."""
        self.wait_for_end()
        energy_j = self.get_info()["energy_j"]
        return None if energy_j is None else float(energy_j)

    @property
    def paths(self) -> CallPaths:
        """Files of the call and the log of its job, which holds stdout and stderr."""
        _ = self.job_id
        folder, task = self._folder, self._tasks[0]
        log = Path(self.get_info()["log"] or folder.path / "log")
        log = log.with_name(f"rank{task}.log")
        result = folder.result_path(self._number, task)
        return CallPaths(folder.path, folder.call_path(self._number), result, log, log)

    def submission(self) -> Call:
        """Return the function, its arguments and its named arguments."""
        _ = self.job_id
        return self._folder.read_call(self._number)

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; with *check* raise if it has ended already."""
        try:
            self._service.connect().post(f"/jobs/{self.job_id}/cancel", repeat=True)
        except Conflict:
            if check:
                raise

    def cancel_at_deletion(self, value: bool = True) -> SubmittedCall[R]:
        """Cancel the job when this object is deleted; return this object."""
        self._cancel_at_deletion = value
        return self

    # -- its end

    def done(self, force_check: bool = False) -> bool:
        """Return True if there is a result or the job has ended."""
        _ = self.job_id
        if all(self._folder.result_path(self._number, task).exists() for task in self._tasks):
            return True
        return self.state not in LIVE

    def wait(self) -> None:
        """Wait until the call is done; the service may be unreachable for some minutes meanwhile."""
        self._wait_until(self.done)

    def wait_for_end(self) -> None:
        """Wait until the job has ended, which is somewhat later than its result."""
        self._wait_until(lambda: self.state not in LIVE)

    def _wait_until(self, is_over: Callable[[], bool]) -> None:
        pause_s, answered_s = _FIRST_PAUSE_S, time.monotonic()
        while True:
            try:
                if is_over():
                    return
                answered_s = time.monotonic()
            except Unreachable:
                if time.monotonic() - answered_s > PATIENCE_S:
                    raise
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)

    def result(self) -> R:
        """Wait for the value of the function and return it."""
        if self.num_tasks > 1:
            raise ValueError(f"the job has {self.num_tasks} tasks: use results(), or task(N).result()")
        return self.results()[0]

    def results(self) -> list[R]:
        """Wait for the values of all tasks and return them."""
        self.wait()
        values = []
        for task in self._tasks:
            error = self._find_error(task)
            if error is not None:
                raise error
            result = self._folder.read_result(self._number, task)
            assert result is not None
            values.append(cast(R, result.value))
        return values

    def exception(self) -> BaseException | None:
        """Wait, and return the error of the first task that failed; None: all have a result."""
        self.wait()
        return next((error for task in self._tasks if (error := self._find_error(task))), None)

    def _find_error(self, task: int) -> RuntimeError | None:
        result = self._folder.read_result(self._number, task)
        if result is None:
            job = self.get_info()
            reason = f": {job['reason'].removesuffix('.')}" if job["reason"] else ""
            lines = "\n".join(job["log_tail"])
            output = f"\nlast lines of its log:\n{lines}" if lines else ""
            where = self._folder.result_path(self._number, task)
            return UncompletedJobError(
                f"job {self.job_id} is {job['state']}{reason}; there is no result in {where}{output}"
            )
        if not result.failed:
            return None
        error = FailedJobError(
            f"job {self.job_id} (task {task}) failed:\n{result.trace}its log: wattline logs {self.job_id}"
        )
        if isinstance(result.value, BaseException):
            error.__cause__ = result.value
        return error

    # -- its output

    def stdout(self) -> str:
        """Return the output of all tasks so far; a job has one log for stdout and stderr."""
        if self.done():
            self.wait_for_end()  # its last lines may not be in the log yet
        client, texts = self._service.connect(), []
        for task in self._tasks:
            blocks = client.text(f"/jobs/{self.job_id}/logs", {"rank": task})
            texts.append(b"".join(blocks).decode("utf-8", "replace"))
        return "".join(texts)

    def stderr(self) -> str:
        """Return the same as `stdout`."""
        return self.stdout()

    def awaitable(self) -> AwaitableCall[R]:
        """Return an object with the same methods as coroutines."""
        return AwaitableCall(self)

    def __repr__(self) -> str:
        name = self._job_id or "not submitted"
        return f"SubmittedCall(job_id={name!r}, task_id={self.task_id})"

    def __del__(self) -> None:
        if getattr(self, "_cancel_at_deletion", False) and self._last_state in ("", *LIVE):
            self.cancel(check=False)


class AwaitableCall(Generic[R]):
    """Methods of a call as coroutines, which wait in a thread."""

    def __init__(self, job: SubmittedCall[R]) -> None:
        self.job = job

    async def wait(self, poll_interval: float = 1) -> None:
        """Wait until the call is done; *poll_interval* is submitit's and has no effect."""
        await asyncio.to_thread(self.job.wait)

    async def result(self, poll_interval: float = 1) -> R:
        """Wait for the value of the function and return it."""
        return await asyncio.to_thread(self.job.result)

    async def results(self, poll_interval: float = 1) -> list[R]:
        """Wait for the values of all tasks and return them."""
        return await asyncio.to_thread(self.job.results)
