"""Attempts of jobs as their controller sees them: folders, in which a shim does the work and tells of it.

    Launch(("python", "train.py"), "/home/ann", env).write(folder)
    attempt = Attempt(folder)
    attempt.start()
    attempt.wait(60.0)

All that is known of an attempt is in its folder, so a controller that is killed finds everything again:
`state` says how far it got. What was written and never claimed can be declared `void`, and then no shim
that is still on its way runs it. The shim is forked twice and belongs to the system's first process, not to
us: nobody here has to collect it, and it is the same to who started it and to who came later. (In a
container, run an init. Under systemd say KillMode=process, or a restart of the service kills the jobs with
it.)
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from wattline.backend.engine.local import supervisor as shim
from wattline.errors import BackendError, ConfigError
from wattline.meter.caps.process_identity import started

ATTEMPT = "WATTLINE_ATTEMPT"
"""In the environment of a job: the folder of its attempt."""

REQUEUE = 75
"""Exit code of a job that has saved its work and wants to be started again."""

State = Literal["new", "void", "running", "ended", "vanished"]

_LOOK_S = 0.02  # between two looks where the kernel cannot wake us


@dataclass(frozen=True)
class User:
    """Who a job runs as; HOME, USER and LOGNAME are filled in where its environment has none."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


@dataclass(frozen=True)
class Launch:
    """What to run: *words* in *workdir* with *env* and nothing else, for each of *ranks*, which add to it.

    *cores* are for CPU affinity, *cgroups* folders that the ranks join; both are what `Limits.prepare` says.
    *memory_bytes* counts for each process where no cgroup bounds memory (see `shim`). Each rank leaves
    *log_keep* files of at most *log_limit_bytes*. Who is to stop gets *signal*, and after *grace_s* SIGKILL.
    """

    words: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    cgroups: tuple[str, ...] = ()
    user: User | None = None
    umask: int = 0o022
    log_limit_bytes: int = 64 << 20
    log_keep: int = 2
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    time_limit_s: float | None = None
    kill_ranks_together: bool = True

    def __post_init__(self) -> None:
        limit_s = self.time_limit_s
        for wrong, expected in (
            (not self.words or not self.words[0], "words to run"),
            (any("\0" in word for word in self.words), "words without NUL"),
            (not os.path.isabs(self.workdir), f"a working folder from the root, not {self.workdir!r}"),
            (not self.ranks, "at least one rank"),
            (self.cores is not None and not self.cores, "at least one core"),
            (self.memory_bytes is not None and self.memory_bytes <= 0, "memory above 0"),
            (self.log_limit_bytes < 1 or self.log_keep < 1, "room for at least one log"),
            (self.signal not in signal.Signals.__members__, f"the name of a signal, not {self.signal!r}"),
            (self.signal in ("SIGKILL", "SIGSTOP"), f"an early signal that can be caught, not {self.signal}"),
            (not 0 <= self.grace_s < math.inf, f"a grace of 0 s or more, not {self.grace_s}"),
            (limit_s is not None and not 0 < limit_s < math.inf, f"a time limit above 0, not {limit_s}"),
        ):
            if wrong:
                raise ConfigError(f"launch: expected {expected}")

    def write(self, folder: Path) -> None:
        """Put this in an attempt's folder, on the disk; the job is told the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        words = asdict(self)
        words["env"] = {**self.env, ATTEMPT: os.path.realpath(folder)}
        shim.put(str(folder / shim.LAUNCH), words)


@dataclass(frozen=True)
class Exit:
    """How an attempt ended; *code* is that of the rank that failed first, 128 and more if a signal killed it.

    *fired* is the last signal that we sent, *asked* why; None if nobody wanted the end, or one rank had
    failed. *max_rss_bytes* is of the largest process.
    """

    code: int
    signal: str | None
    fired: str | None
    asked: Literal["stop", "kill", "timeout"] | None
    oom: bool
    message: str
    began_at: float
    ended_at: float
    seconds: float
    max_rss_bytes: int
    cpu_seconds: float
    log_lost_bytes: int
    ranks: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Exit | None:
        """What a file says; None: there is none that can be understood."""
        try:
            said = json.loads(path.read_bytes())
            return cls(
                **{**{field.name: said[field.name] for field in fields(cls)}, "ranks": tuple(said["ranks"])}
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @property
    def state(self) -> str:
        """In Slurm's words, and REQUEUE; whether it was CANCELLED is known to who asked."""
        if self.asked == "timeout":
            return "TIMEOUT"
        if self.code == 0:
            return "SUCCEEDED"
        if self.code == REQUEUE:
            return "REQUEUE"
        return "OUT_OF_MEMORY" if self.oom else "FAILED"


@dataclass(frozen=True)
class Attempt:
    """One attempt of one job, in a folder that has its `Launch`."""

    folder: Path

    def start(self) -> None:
        """Start the shim; when this returns it is decided who runs the attempt, and we are not needed."""
        here = Path(shim.__file__)
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(here), os.path.realpath(self.folder)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            raise BackendError(f"{self.folder}: {sys.executable} cannot be started: {error}") from error
        if done.returncode != 0 or self._claim() is None:
            said = done.stderr.decode("utf-8", "replace").strip() or f"its shim ended with {done.returncode}"
            raise BackendError(f"{self.folder}: the attempt was not started: {said}")

    def state(self) -> State:
        """How far it got; *vanished*: somebody ran it, is no more, and did not say how it ended."""
        claim = self._claim()
        if claim is None:
            return "new"
        if claim.get("void"):
            return "void"
        if self.exit() is None and _lives(claim):
            return "running"
        return "vanished" if self.exit() is None else "ended"  # it may have ended between the two looks

    def rebooted(self) -> bool:
        """Whether the machine was started anew since somebody claimed it: no fault of the job."""
        claim = self._claim() or {}
        return "boot_id" in claim and claim["boot_id"] != shim.boot_id()

    def void(self) -> bool:
        """Declare that this attempt never runs; False: somebody runs it already, or did."""
        return shim.claim(str(self.folder), void=True)

    def exit(self) -> Exit | None:
        """How it ended; None: it has not, or vanished."""
        return Exit.read(self.folder / shim.EXIT)

    def stop(self) -> bool:
        """Ask the job to end, with its grace; False: it is over. What nobody runs yet becomes void."""
        return self._tell(signal.SIGTERM)

    def kill(self) -> bool:
        """End the job now; False: it is over. What nobody runs yet becomes void."""
        return self._tell(signal.SIGUSR1)

    def pidfd(self) -> int | None:
        """Can be read when the shim is gone, and is the caller's to close; None: gone, or no such file."""
        claim = self._claim()
        if claim is None or claim.get("void"):
            return None
        file = _opened(claim.get("pid", 0))
        if file is None:
            return None
        if _lives(claim):  # only now: the file is of whoever had the number when it was opened
            return file
        os.close(file)
        return None

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end of an attempt that runs; None: it still does after *timeout_s*, or vanished."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with ExitStack() as stack:
            file = _closed(self.pidfd(), stack)
            if file is not None:
                _poll(file, until)
                return self.exit()
        while self.state() == "running" and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self.exit()

    def kill_leftovers(self, patience_s: float = 5.0) -> bool:
        """After the shim vanished, kill all that it had started; False: something is still there.

        That is who has this folder in its environment, of the processes that we may read, and who is in one
        of the attempt's cgroups: no other attempt may be in these before this one is gone.
        """
        until = time.monotonic() + patience_s
        mark = f"{ATTEMPT}={os.path.realpath(self.folder)}".encode("utf-8", "surrogateescape")
        while left := self._leftovers(mark):
            with ExitStack() as stack:
                files = {pid: _closed(_opened(pid), stack) for pid in left}
                for pid in left & self._leftovers(mark):  # only now: the files are of whoever had the numbers
                    with suppress(ProcessLookupError, PermissionError):
                        _send(pid, files[pid], signal.SIGKILL)
                for file in files.values():
                    if file is None:
                        time.sleep(_LOOK_S)
                    else:
                        _poll(file, until)
            if time.monotonic() >= until:
                return not self._leftovers(mark)
        return True

    def _leftovers(self, mark: bytes) -> set[int]:
        named = {pid for pid in _processes() if _has(pid, mark)}
        return {pid for pid in named | self._in_cgroups() if started(pid) is not None} - {os.getpid()}

    def _in_cgroups(self) -> set[int]:
        found = set()
        with suppress(OSError, ValueError, KeyError):
            for folder in json.loads((self.folder / shim.LAUNCH).read_bytes())["cgroups"]:
                with suppress(OSError):
                    found |= {int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()}
        return found

    def _claim(self) -> dict[str, Any] | None:
        """Who decided about it; empty: what is written there cannot be understood."""
        try:
            said = json.loads((self.folder / shim.CLAIM).read_bytes())
            return said if isinstance(said, dict) else {}
        except FileNotFoundError:
            return None
        except ValueError:
            return {}

    def _tell(self, number: signal.Signals) -> bool:
        """Signal the shim, and nobody who has got its number since."""
        if self._claim() is None and self.void():
            return True
        claim = self._claim() or {}
        try:
            with ExitStack() as stack:
                file = _closed(self.pidfd(), stack)
                if file is None and (claim.get("void") or not _lives(claim)):
                    return False
                _send(claim["pid"], file, number)
                return True
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise BackendError(f"{self.folder}: its shim is of another user") from error


def _lives(claim: Mapping[str, Any]) -> bool:
    """Whether the process that made a claim is there; numbers of before the last boot are nobody's."""
    if not {"pid", "start_ticks", "boot_id"} <= claim.keys() or claim["boot_id"] != shim.boot_id():
        return False
    return bool(started(claim["pid"]) == claim["start_ticks"])


def _opened(pid: int) -> int | None:
    """A file for a process; None: no such process, or a kernel before 5.3."""
    if not hasattr(os, "pidfd_open") or pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _closed(file: int | None, stack: ExitStack) -> int | None:
    """A file that is closed at the end of *stack*."""
    if file is not None:
        stack.callback(os.close, file)
    return file


def _send(pid: int, file: int | None, number: signal.Signals) -> None:
    """Signal a process by its file; without one by its number, which the caller has just looked at."""
    if file is None:
        os.kill(pid, number)
    else:
        signal.pidfd_send_signal(file, number)


def _poll(file: int, until: float) -> None:
    """Until a process file can be read, or the time has come."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    poll.poll(None if until == math.inf else max(0, math.ceil(1000 * (until - time.monotonic()))))


def _processes() -> list[int]:
    return [int(word) for word in os.listdir("/proc") if word.isdigit()]


def _has(pid: int, mark: bytes) -> bool:
    """Whether a process was given *mark* in its environment."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
