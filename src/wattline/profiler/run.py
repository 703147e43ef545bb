"""Measurement of the speed of a command with a given number of cores.

For each point the command is started in a session of its own, limited to that many cores. Its steps are
counted until the rate is known well enough, and then all its processes are stopped. Steps are bytes in a
pipe (`profiler.step_counter`), or lines of the output that match a pattern.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import BackendError, ConfigError, NotFound
from wattline.profiler.core_sweep import SpeedPoint
from wattline.profiler.cpu_limits import CpuLimits, count_whole_cores
from wattline.profiler.step_counter import CPUS, PIPE
from wattline.profiler.step_rate import STEP_PATTERN, OutputStepCounter, StepRate, estimate_rate

_MIN_STEPS = 20  # before the precision of a rate is trusted
_MIN_TIME_SHARE = 0.1  # of the time limit: slower variations would go unnoticed
_HANG_STEPS = 10  # expected but missing steps: the command saves or hangs, which is part of its speed
_STUDENT_95 = 2.26  # 97.5 % quantile for ten batch means
_TAIL = 12  # lines of output to quote
_POLL_S = 0.1  # between two checks of a silent command


class JobDied(BackendError):
    """The command failed, or ended after too few steps."""

    code = "job_died"


class NoSteps(BackendError):
    """The command runs without making steps."""

    code = "no_steps"


@dataclass(frozen=True)
class ProfiledJob:
    """A command with *batch* samples per step; *pattern* finds steps in its output.

    `{cpus}` in a word of the command is replaced by the number of cores.
    """

    command: tuple[str, ...]
    batch: float = 1.0
    pattern: str = STEP_PATTERN

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError(
                "no command was given, expected one after --: wattline profile -- python train.py"
            )
        try:
            re.compile(self.pattern)
        except re.error as problem:
            raise ConfigError(
                f"the step pattern {self.pattern!r} is not a regular expression: {problem}"
            ) from None
        if shutil.which(self.command[0]) is None:
            exists = Path(self.command[0]).exists()
            why = "it is not executable" if exists else "no such command"
            raise (ConfigError if exists else NotFound)(f"{self.command[0]} cannot be started: {why}")

    def build_command(self, cpus: float) -> list[str]:
        """Return the command for *cpus* cores."""
        return [word.replace("{cpus}", str(count_whole_cores(cpus))) for word in self.command]


@dataclass(frozen=True)
class Patience:
    """Time limits and precision of a point.

    The first *warmup* steps are not measured (None: ten, plus two per core, the prefetch of data loaders).
    Then steps are counted for *most_s*, or until the 95 % interval of their rate is within *precision*.
    The command is given up after *first_step_s* without a step, and killed *grace_s* after SIGTERM.
    """

    warmup: int | None = None
    most_s: float = 30.0
    precision: float = 0.02
    first_step_s: float = 300.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("most_s", "first_step_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a finite number above 0")
        if not 0 < self.precision < 1:
            raise ConfigError(f"precision is {self.precision}, expected a share between 0 and 1")

    def warmup_steps(self, cpus: float) -> int:
        """Return the number of warm-up steps with *cpus* cores."""
        return 10 + 2 * count_whole_cores(cpus) if self.warmup is None else self.warmup


def build_environment(cpus: float, pipe: str) -> dict[str, str]:
    """Return the environment of the command: its number of cores, and the pipe for its steps."""
    count = str(count_whole_cores(cpus))
    return {**os.environ, CPUS: count, "OMP_NUM_THREADS": count, PIPE: pipe, "PYTHONUNBUFFERED": "1"}


def measure_speed(
    job: ProfiledJob,
    cpus: float,
    limit: CpuLimits,
    patience: Patience,
    report: Callable[[float], None] = lambda share: None,
) -> SpeedPoint:
    """Run *job* with *cpus* cores until its speed is known.

    *report* is called with the share of the time limit that has passed.
    """
    with tempfile.TemporaryDirectory(prefix="wattline-") as folder:
        pipe = os.path.join(folder, "steps")
        os.mkfifo(pipe)
        # Open for reading and writing, so that the pipe has no end of file before the first writer.
        steps = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            command = limit.wrap_command(job.build_command(cpus))
            process = _start(command, cpus, limit, build_environment(cpus, pipe))
            try:
                monitor = _JobMonitor(job, process, steps)
                rate = monitor.wait(patience, patience.warmup_steps(cpus), report)
            finally:
                _stop(process, patience.grace_s, limit)
        finally:
            os.close(steps)
    return SpeedPoint(cpus, rate.steps_s * job.batch, rate.stderr * job.batch, rate.steps)


def _start(
    command: list[str], cpus: float, limit: CpuLimits, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    try:
        with limit.restrict(cpus):
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None


class _JobMonitor:
    """Counts the steps of a running command."""

    def __init__(self, job: ProfiledJob, process: subprocess.Popen[bytes], steps: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._steps = steps
        self._counter = OutputStepCounter(job.pattern)
        self._uses_pipe = False  # if it writes to the pipe, steps in its output are ignored
        self._at_s: list[float] = []
        self._done: list[int] = []
        self._incomplete_lines = dict.fromkeys((process.stdout.fileno(), process.stderr.fileno()), b"")
        self._tails = {fd: deque[str](maxlen=_TAIL) for fd in self._incomplete_lines}
        self._start_s = time.monotonic()

    def wait(self, patience: Patience, warmup: int, report: Callable[[float], None]) -> StepRate:
        """Return the rate when it is precise enough, or the time limit is reached."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._steps, *self._incomplete_lines):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            checked_s = 0.0
            while True:
                for key, _ in selector.select(_POLL_S):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
                if time.monotonic() - checked_s < _POLL_S:
                    continue  # thousands of steps may arrive per second
                code = _exit_code(self._process)
                if code is not None:
                    for fd in (self._steps, *self._incomplete_lines):
                        self._read(fd)
                rate = self._estimate_if_ready(patience, warmup, report, ended=code is not None)
                if code or (code == 0 and rate is None):
                    raise self._build_exit_error(code)
                if rate is not None:
                    return rate
                checked_s = time.monotonic()

    def _estimate_if_ready(
        self, patience: Patience, warmup: int, report: Callable[[float], None], *, ended: bool
    ) -> StepRate | None:
        """Return the rate if it is precise or time is up, else None; raise if steps do not arrive."""
        now_s = time.monotonic()
        silent_s = now_s - (self._at_s[-1] if self._done else self._start_s)
        if silent_s > patience.first_step_s and not ended:
            raise self._build_silence_error(now_s)
        if not self._done:
            return None
        # If steps are slow, the time limit ends the warm-up.
        late = bisect_left(self._at_s, self._at_s[0] + patience.most_s)
        first = min(bisect_left(self._done, warmup), late)
        if first == len(self._done):
            return None
        measured_s = now_s - self._at_s[first]
        rate = estimate_rate(self._at_s, self._done, self._done[first])
        report(min(measured_s / patience.most_s, 1.0))
        if rate is None or rate.steps < 2:
            return None
        if ended:
            return rate if rate.steps >= _MIN_STEPS else None
        is_precise = rate.steps >= _MIN_STEPS and measured_s >= _MIN_TIME_SHARE * patience.most_s
        is_precise &= _STUDENT_95 * rate.stderr < patience.precision * rate.steps_s
        hangs = silent_s * rate.steps_s > _HANG_STEPS
        return rate if (is_precise or measured_s >= patience.most_s) and not hangs else None

    def _read(self, fd: int) -> bool:
        """Read available data; False: end of file."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        now_s = time.monotonic()
        if fd == self._steps:
            if not self._uses_pipe:
                self._uses_pipe = True
                self._at_s, self._done = [], []
            self._at_s.append(now_s)
            self._done.append((self._done[-1] if self._done else 0) + len(data))
            return True
        *lines, self._incomplete_lines[fd] = re.split(rb"[\r\n]+", self._incomplete_lines[fd] + data)
        for line in (text.decode("utf-8", "replace") for text in lines if text.strip()):
            self._tails[fd].append(line)
            if not self._uses_pipe and self._counter.add_line(line):
                self._at_s.append(now_s)
                self._done.append(self._counter.steps)
        return bool(data)

    def _build_exit_error(self, code: int) -> JobDied:
        progress = f" after {self._done[-1]} steps" if self._done else " before its first step"
        if code == 0:
            return JobDied(
                f"the command ended{progress}, too few to measure its speed",
                "let it train for longer, or give fewer --warmup steps",
            )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        for fd, rest in self._incomplete_lines.items():
            self._tails[fd] += [rest.decode("utf-8", "replace")] if rest.strip() else []
        tail = next((lines for lines in reversed(self._tails.values()) if lines), ())
        quoted = "".join(f"\n  | {line}" for line in tail)
        return JobDied(f"the command {how}{progress}{quoted}")

    def _build_silence_error(self, now_s: float) -> NoSteps:
        elapsed = f"{now_s - self._start_s:.0f} s"
        if self._done:
            return NoSteps(
                f"the command did {self._done[-1]} steps in {elapsed}, and then no more",
                "if its steps are that slow, give it more time with --first-step",
            )
        return NoSteps(
            f"the command did no step in {elapsed}",
            "iterate over wattline.profiler.step_counter.steps(loader), match steps in its output with"
            " --step-pattern 'step (\\d+)', or give it more time with --first-step",
        )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code, None while it runs; not reaped, so that its group id cannot be reused."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _stop(process: subprocess.Popen[bytes], grace_s: float, limit: CpuLimits) -> None:
    """End all processes of the command: SIGTERM, *grace_s* to finish, then SIGKILL."""
    _signal_group(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        # Its output is still read: a full pipe would keep it from ending.
        while _exit_code(process) is None and time.monotonic() < deadline_s:
            for key, _ in selector.select(0.02):
                with suppress(BlockingIOError):
                    if not os.read(key.fd, 1 << 16):
                        selector.unregister(key.fileobj)
        _signal_group(process.pid, signal.SIGKILL)
        if limit.cgroup is not None:
            with suppress(OSError):
                (limit.cgroup / "cgroup.kill").write_text("1")
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def format_command(command: Sequence[str]) -> str:
    """Return a command as typed in a shell."""
    return shlex.join(command)
