"""How fast does a command step when it may use so many cores?

The command is started anew for each point, in a session of its own, with so many cores and no more; its
steps are counted until the rate is known well enough, and then all of its processes are stopped. Steps
are bytes in a pipe (`profile.steps`), or lines of its output that a pattern finds.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattline.errors import BackendError, ConfigError, NotFound
from wattline.profiler.core_sweep import Point
from wattline.profiler.step_counter import CPUS, PIPE

STEP_PATTERN = r"(?i)(?<![a-z])(?:step|iter|iteration|batch)s?\W{0,3}(\d+)|\s(\d+)/\d+ \[\d+:"
"""Finds `step 12`, `Iter: 12`, `batch [12/391]`, `global_step=12`, and bars: ` 12/391 [00:03<`."""

_FEWEST = 20  # steps of a rate that may be sure of itself
_SHORTEST = 0.1  # of the time that it may take: what goes on more slowly than that is not seen
_HANGS = 10  # steps that should have been: it saves or hangs, and either belongs to its speed
_BATCHES = 10  # into which they are divided to see how much they vary
_STUDENT_95 = 2.26  # for that many
_TAIL = 12  # lines of output that are kept
_LOOK_S = 0.1  # how often we look whether a silent job is still there
_PERIOD_US = 100_000


class JobDied(BackendError):
    """The command ended, and should not have."""

    code = "job_died"


class NoSteps(BackendError):
    """The command runs and does not step."""

    code = "no_steps"


class Rate(NamedTuple):
    """Steps per second, their standard error, and of how many steps."""

    steps_s: float
    stderr: float
    steps: int


@dataclass(frozen=True)
class Job:
    """A command, and how its steps are told: *batch* samples each.

    `{cpus}` in a word of the command is how many cores it has.
    """

    command: tuple[str, ...]
    batch: float = 1.0
    pattern: str = STEP_PATTERN

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError(
                "there is no command, expected one after --: wattline profile -- python train.py"
            )
        try:
            re.compile(self.pattern)
        except re.error as problem:
            raise ConfigError(
                f"the step pattern {self.pattern!r} is no regular expression: {problem}"
            ) from None
        if shutil.which(self.command[0]) is None:
            exists = Path(self.command[0]).exists()
            raise (ConfigError if exists else NotFound)(
                f"{self.command[0]} cannot be started: {'it may not be run' if exists else 'no such command'}"
            )

    def words(self, cpus: float) -> list[str]:
        """The command for so many cores."""
        return [word.replace("{cpus}", str(whole(cpus))) for word in self.command]


@dataclass(frozen=True)
class Patience:
    """How long a point may take, and how good is good enough.

    *warmup* steps are left out (None: ten, and two for each core, which is what loaders fetch ahead);
    then steps are counted for *most_s*, or until the 95 % interval of their rate is within *precision*.
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

    def warmup_of(self, cpus: float) -> int:
        """Steps that are left out with so many cores."""
        return 10 + 2 * whole(cpus) if self.warmup is None else self.warmup


def whole(cpus: float) -> int:
    """As many whole cores as *cpus* need."""
    return math.ceil(cpus)


def rate(at_s: Sequence[float], done: Sequence[int], warmup: int) -> Rate | None:
    """The rate after *warmup* steps, of a job that had *done* so many at each moment; None: not yet known.

    The error is that of batch means: steps come in bursts, one from each worker of a loader.
    """
    first = bisect_left(done, warmup)
    moments, steps = np.array(at_s[first:]), np.array(done[first:], np.float64)
    if len(moments) < 2 or moments[-1] <= moments[0]:
        return None
    steps_s = float((steps[-1] - steps[0]) / (moments[-1] - moments[0]))
    batches = min(_BATCHES, len(moments) - 1)
    edges = np.round(np.linspace(0, len(moments) - 1, batches + 1)).astype(np.int64)
    each_s = np.diff(moments[edges]) / np.diff(steps[edges])
    relative = float(np.std(each_s, ddof=1) / np.sqrt(batches) / each_s.mean()) if batches > 1 else math.inf
    return Rate(steps_s, steps_s * relative, int(steps[-1] - steps[0]))


class Counter:
    """How many steps the lines of a job's output tell."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._last: int | None = None
        self._stride = 1
        self.steps = 0

    def see(self, line: str) -> bool:
        """Whether *line* tells that steps were done.

        A number that grows by 50 is 50 steps. One that falls is a new epoch, and taken to be as many
        steps as the last time. A pattern without a number is a step for every line.
        """
        found = None
        for found in self._pattern.finditer(line):  # noqa: B007  of a bar that was redrawn, the last state
            pass
        if found is None:
            return False
        number = next((int(group) for group in found.groups() if group and group.isdigit()), None)
        if number is None:
            self.steps += 1
            return True
        if self._last == number:
            return False
        if self._last is not None:
            if number > self._last:
                self._stride = number - self._last
            self.steps += self._stride
        self._last = number
        return True


@dataclass(frozen=True)
class Limits:
    """What keeps a job to its cores: the *cores* it may run on, and where there is one, a *cgroup*."""

    cores: tuple[int, ...]
    cgroup: Path | None = None

    def __str__(self) -> str:
        if self.cgroup is not None:
            return "a cgroup (cpu.max) and CPU affinity"
        return (
            "CPU affinity" if hasattr(os, "sched_setaffinity") else "OMP_NUM_THREADS and WATTLINE_CPUS only"
        )

    def joined(self, words: list[str]) -> list[str]:
        """The command that runs *words* inside the cgroup: it joins before it becomes the job."""
        if self.cgroup is None:
            return words
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.cgroup / "cgroup.procs"), *words]

    @contextmanager
    def starting(self, cpus: float) -> Iterator[None]:
        """While this lasts, whatever this thread starts has so many cores."""
        if self.cgroup is not None:
            (self.cgroup / "cpu.max").write_text(f"{round(cpus * _PERIOD_US)} {_PERIOD_US}")
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores[: whole(cpus)])
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[Limits]:
    """The best limits to be had here: with a cgroup (v2) of our own where one can be made."""
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    cores = cores or tuple(range(os.cpu_count() or 1))
    home = _home(root, own)
    made = _make(home) if home is not None else None
    try:
        yield Limits(cores[: _quota(home) or None], made)
    finally:
        if home is not None and made is not None:
            _unmake(home, made)


def _home(root: Path, own: Path) -> Path | None:
    """The cgroup we are in, where it knows how to limit cores."""
    try:
        for line in own.read_text().splitlines():
            if line.startswith("0::/"):
                home = root / line.removeprefix("0::/")
                return home if "cpu" in (home / "cgroup.controllers").read_text().split() else None
    except OSError:
        pass  # cgroups of the first kind, or none
    return None


def _quota(home: Path | None) -> int:
    """Whole cores that we may use ourselves; 0: all that there are."""
    if home is None:
        return 0
    try:
        quota, period = (home / "cpu.max").read_text().split()
        return 0 if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 0


def _make(home: Path) -> Path | None:
    """A cgroup under *home* whose cpu.max can be set; None, and nothing left behind, where that is not to be.

    Only a cgroup without processes may limit those below it, so we step aside into one of our own.
    Where others are in *home* too, that does not help: they are not ours to move.
    """
    made = home / f"wattline-{os.getpid()}"
    try:
        if "cpu" not in (home / "cgroup.subtree_control").read_text().split():
            _aside(home).mkdir()
            (_aside(home) / "cgroup.procs").write_text(str(os.getpid()))
            (home / "cgroup.subtree_control").write_text("+cpu")
        made.mkdir()
        (made / "cpu.max").write_text(f"max {_PERIOD_US}")
        return made
    except OSError:
        _unmake(home, made)
        return None


def _unmake(home: Path, made: Path) -> None:
    with suppress(OSError):
        made.rmdir()
    if _aside(home).exists():
        for file, text in (("cgroup.subtree_control", "-cpu"), ("cgroup.procs", str(os.getpid()))):
            with suppress(OSError):
                (home / file).write_text(text)
        with suppress(OSError):
            _aside(home).rmdir()


def _aside(home: Path) -> Path:
    return home / f"wattline-{os.getpid()}-self"


def environment(cpus: float, pipe: str) -> dict[str, str]:
    """What the job is told: its cores, for threads and for loaders, and where its steps go."""
    count = str(whole(cpus))
    return {**os.environ, CPUS: count, "OMP_NUM_THREADS": count, PIPE: pipe, "PYTHONUNBUFFERED": "1"}


def measure(
    job: Job,
    cpus: float,
    limit: Limits,
    patience: Patience,
    report: Callable[[float], None] = lambda share: None,
) -> Point:
    """Run *job* with so many cores until its speed is known; *report* gets how much of the time is over."""
    with tempfile.TemporaryDirectory(prefix="wattline-") as folder:
        pipe = os.path.join(folder, "steps")
        os.mkfifo(pipe)
        # Open for both: a pipe that nobody writes to yet has not ended.
        steps = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            words = limit.joined(job.words(cpus))
            process = _start(words, cpus, limit, environment(cpus, pipe))
            try:
                found = _Watch(job, process, steps).wait(patience, patience.warmup_of(cpus), report)
            finally:
                _stop(process, patience.grace_s, limit)
        finally:
            os.close(steps)
    return Point(cpus, found.steps_s * job.batch, found.stderr * job.batch, found.steps)


def _start(words: list[str], cpus: float, limit: Limits, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        with limit.starting(cpus):
            return subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigError(f"{words[0]} cannot be started: {error.strerror}") from None


class _Watch:
    """A running job, and the steps that it told."""

    def __init__(self, job: Job, process: subprocess.Popen[bytes], steps: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._steps = steps
        self._counter = Counter(job.pattern)
        self._piped = False  # whether it writes into the pipe: then its output tells nothing
        self._at_s: list[float] = []
        self._done: list[int] = []
        self._rest = dict.fromkeys((process.stdout.fileno(), process.stderr.fileno()), b"")
        self._said = {fd: deque[str](maxlen=_TAIL) for fd in self._rest}
        self._began_s = time.monotonic()

    def wait(self, patience: Patience, warmup: int, report: Callable[[float], None]) -> Rate:
        """The rate, when it is good enough or time is up."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._steps, *self._rest):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            looked_s = 0.0
            while True:
                for key, _ in selector.select(_LOOK_S):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
                if time.monotonic() - looked_s < _LOOK_S:
                    continue  # steps may come by the thousand
                code = _exit_code(self._process)
                if code is not None:
                    for fd in (self._steps, *self._rest):
                        self._read(fd)
                found = self._rate(patience, warmup, report, ended=code is not None)
                if code or (code == 0 and found is None):
                    raise self._died(code)
                if found is not None:
                    return found
                looked_s = time.monotonic()

    def _rate(
        self, patience: Patience, warmup: int, report: Callable[[float], None], *, ended: bool
    ) -> Rate | None:
        now_s = time.monotonic()
        silent_s = now_s - (self._at_s[-1] if self._done else self._began_s)
        if silent_s > patience.first_step_s and not ended:
            raise self._silent(now_s)
        if not self._done:
            return None
        # Steps may be so slow that the warm-up alone would take for ever.
        late = bisect_left(self._at_s, self._at_s[0] + patience.most_s)
        first = min(bisect_left(self._done, warmup), late)
        if first == len(self._done):
            return None
        warm, warm_s = self._done[first], self._at_s[first]
        found = rate(self._at_s, self._done, warm)
        report(min((now_s - warm_s) / patience.most_s, 1.0))
        if found is None or found.steps < 2:
            return None
        if ended:
            return found if found.steps >= _FEWEST else None
        counted_s = now_s - warm_s
        sure = found.steps >= _FEWEST and counted_s >= _SHORTEST * patience.most_s
        sure &= _STUDENT_95 * found.stderr < patience.precision * found.steps_s
        hangs = silent_s * found.steps_s > _HANGS
        return found if (sure or counted_s >= patience.most_s) and not hangs else None

    def _read(self, fd: int) -> bool:
        """Take what there is; False: there will be no more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        now_s = time.monotonic()
        if fd == self._steps:
            if not self._piped:
                self._piped = True
                self._at_s, self._done = [], []
            self._at_s.append(now_s)
            self._done.append((self._done[-1] if self._done else 0) + len(data))
            return True
        *lines, self._rest[fd] = re.split(rb"[\r\n]+", self._rest[fd] + data)
        for line in (text.decode("utf-8", "replace") for text in lines if text.strip()):
            self._said[fd].append(line)
            if not self._piped and self._counter.see(line):
                self._at_s.append(now_s)
                self._done.append(self._counter.steps)
        return bool(data)

    def _died(self, code: int) -> JobDied:
        told = f" after {self._done[-1]} steps" if self._done else " before its first step"
        if code == 0:
            return JobDied(
                f"the command ended{told}, too few to tell its speed",
                "have it train for longer, or give fewer --warmup steps",
            )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        for fd, rest in self._rest.items():
            self._said[fd] += [rest.decode("utf-8", "replace")] if rest.strip() else []
        said = next((tail for tail in reversed(self._said.values()) if tail), ())
        last = "".join(f"\n  | {line}" for line in said)
        return JobDied(f"the command {how}{told}{last}")

    def _silent(self, now_s: float) -> NoSteps:
        after = f"{now_s - self._began_s:.0f} s"
        if self._done:
            return NoSteps(
                f"the command did {self._done[-1]} steps in {after}, and then no more",
                "give it more time for each with --first-step, if its steps are that slow",
            )
        return NoSteps(
            f"the command did no step in {after}",
            "iterate over wattline.profiler.step_counter.steps(loader), say how its output tells a step with"
            " --step-pattern 'step (\\d+)', or give it more time with --first-step",
        )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, without collecting the process: while it is not, its group is nobody else's."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _stop(process: subprocess.Popen[bytes], grace_s: float, limit: Limits) -> None:
    """End all processes of the job: a request, some time, and then by force."""
    _signal(process.pid, signal.SIGTERM)
    until_s = time.monotonic() + grace_s
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        # What it still says is read, or it could not end.
        while _exit_code(process) is None and time.monotonic() < until_s:
            for key, _ in selector.select(0.02):
                with suppress(BlockingIOError):
                    if not os.read(key.fd, 1 << 16):
                        selector.unregister(key.fileobj)
        _signal(process.pid, signal.SIGKILL)
        if limit.cgroup is not None:
            with suppress(OSError):
                (limit.cgroup / "cgroup.kill").write_text("1")
        process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def shown(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(command)
