"""Supervisor process of one attempt: starts its ranks, logs their output, records their exit. Linux only.

Run as `python -I -S supervisor.py FOLDER` by `AttemptProcesses.start`. It uses the standard library and
three modules of this folder, and starts in about 30 ms. The first process exits as soon as the attempt is
claimed; the second, in a session of its own, stays until the job is over. So the service has no child to
collect and may be killed at any time. The files in FOLDER are listed in `attempt_files`; rank0.log has both
streams of rank 0, and rank0.log.1 is older.

SIGTERM and SIGINT ask the job to stop: its own signal to the process group, and SIGKILL when the grace
period is over. SIGUSR1 kills it at once. After a time limit, or when one rank fails, the others are stopped
likewise.

All processes of a job are killed before its end is recorded, also those in sessions of their own: orphans
become children of the supervisor (a "subreaper"), which kills its children until it has none. Only children
are killed, and only this process collects them, so no process id can have been reused. While a job that was
asked to stop has processes in its group, they keep their grace even if the ranks are gone: a shell dies of
the signal at once, and the training below it is saving. If the supervisor itself is killed, the kernel
kills the ranks (PDEATHSIG); what these had started is for `AttemptProcesses.kill_leftovers`. A process that
the kernel cannot kill (a hanging driver or NFS) has not ended, and neither has the attempt.

A full disk loses output (`log_lost_bytes`), never the job. Writing exit.json is repeated until it succeeds,
after 0.1 s at first and every 30 s in the end, or at once after a signal; it is given up only if FOLDER was
deleted. One thread does everything, the logs included, so FOLDER should be on a local disk.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from contextlib import suppress

if __name__ == "__main__":  # isolated: the package is found last, so that it hides no standard module
    sys.path.append(os.path.abspath(__file__).rpartition(os.sep + "wattline" + os.sep)[0])

from wattline.backend.engine.local.attempt_files import EXIT, LAUNCH, claim_attempt, write_json
from wattline.backend.engine.local.log_writer import LogWriter
from wattline.backend.engine.local.rank_process import (
    NOT_STARTED,
    become_rank,
    become_subreaper,
    count_oom_kills,
    list_children,
    name_signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from types import FrameType
    from typing import Any

_CHUNK = 1 << 18
_LAST_READS = 64  # more than a pipe holds; a process that could not be killed may write for ever
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 30.0
_REQUESTS = {signal.SIGTERM: "stop", signal.SIGINT: "stop", signal.SIGUSR1: "kill"}
_TERMINATED = 128 + signal.SIGTERM  # exit code of a rank that SIGTERM has ended


class Supervisor:
    """The ranks of one attempt, from their start to the end of all processes that they started.

    With *signal_lag_s* a SIGTERM to this process counts as the cause of one that has ended a rank up to so
    many seconds before: Slurm signals all processes of a job, in any order.
    """

    def __init__(
        self, launch: dict[str, Any], first_rank: int = 0, exit_file: str = EXIT, signal_lag_s: float = 0.0
    ) -> None:
        self._launch, self._first_rank, self._exit_file = launch, first_rank, exit_file
        self._signal_lag_s = signal_lag_s
        self._selector = selectors.DefaultSelector()
        self._requests: list[str] = []
        self._wake = -1
        self._ranks: dict[int, int] = {}  # running ranks by process id
        self._group = 0
        self._exits: list[dict[str, Any]] = [{"code": None, "signal": None} for _ in launch["ranks"]]
        self._first_failed: int | None = None  # rank
        self._logs: list[LogWriter] = []
        self._message = ""
        self._end_request: str | None = None
        self._sent_signal: str | None = None
        self._kill_at = self._limit_at = float("inf")
        self._killed = self._has_no_children = False
        self._not_killable: set[int] = set()  # children that this process may not signal
        self._spared: set[int] = set()  # children that are not of the job
        self._cpu_s, self._max_rss = 0.0, 0
        self._oom_kills = count_oom_kills(launch["cgroups"])

    def install_signal_handlers(self) -> None:
        """Turn signals into requests from now on."""
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _REQUESTS:
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def spare(self, pid: int) -> None:
        """Let a child of this process live that is no part of the job."""
        self._spared.add(pid)

    def has_request(self) -> bool:
        """Return whether a signal has come that was not handled yet."""
        return bool(self._requests)

    def read_requests(self, file: int) -> None:
        """Take requests, stop or kill, also from lines of a file; its end counts as a request to stop."""
        os.set_blocking(file, False)
        self._selector.register(file, selectors.EVENT_READ, ("requests", 0))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requests.append(_REQUESTS[signal.Signals(number)])

    def run(self) -> None:
        """Start the ranks, wait for their end, and write exit.json."""
        self._began = time.time(), time.monotonic()
        try:
            become_subreaper()
            for index in range(len(self._exits)):
                self._start_rank(index)
            if self._launch["time_limit_s"] is not None:
                self._limit_at = time.monotonic() + self._launch["time_limit_s"]
            while not self._is_over():
                self._wait(min(self._kill_at, self._limit_at))
                self._collect_children()
                self._decide()
            self._await_request()
        except Exception:  # an error of this module: the job must not run on unsupervised
            import traceback

            self._message = f"the supervisor failed: {traceback.format_exc()}"
            self._kill_all()
        self._write_exit()

    def _kill_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        while True:
            self._kill()
            self._collect_children()
            if self._is_over():
                return
            self._selector.select()
            self._drain_wake()

    def _start_rank(self, index: int) -> None:
        """Fork one rank. Signals are blocked until it executes the job's command, and are then the job's."""
        read, write = os.pipe2(os.O_CLOEXEC)
        failed, fail = os.pipe2(os.O_CLOEXEC)
        supervisor = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            become_rank(self._launch, index, self._group, write, fail, supervisor)
        with suppress(OSError):  # the child does the same, and may have executed the command already
            os.setpgid(pid, self._group or pid)
        self._group = self._group or pid
        self._ranks[pid] = index
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        os.close(fail)
        limit, keep = self._launch["log_limit_bytes"], self._launch["log_keep"]
        self._logs.append(LogWriter(f"rank{self._first_rank + index}.log", limit, keep))
        os.set_blocking(read, False)
        os.set_blocking(failed, False)
        self._selector.register(read, selectors.EVENT_READ, ("log", index))
        self._selector.register(failed, selectors.EVENT_READ, ("failed", index))

    # -- events

    def _wait(self, deadline: float) -> None:
        """Wait for signals and output, at most until *deadline*."""
        timeout = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake:
                self._drain_wake()
            else:
                self._read(key)

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Read output of a rank, or why it could not be started; False: nothing is there now."""
        kind, index = key.data
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        if kind == "requests":
            self._requests += data.decode().split() if data else ["stop"]
        if not data:
            self._selector.unregister(key.fd)
            os.close(key.fd)
        elif kind == "log":
            self._logs[index].write(data)
        elif kind == "failed":
            self._message = self._message or data.decode("utf-8", "replace")
        return bool(data)

    def _collect_children(self) -> None:
        """Collect every child that has ended: ranks, and orphans of theirs."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_no_children = True
                return
            if pid == 0:
                return
            self._cpu_s += usage.ru_utime + usage.ru_stime
            self._max_rss = max(self._max_rss, usage.ru_maxrss * 1024)
            if pid in self._ranks:
                index = self._ranks.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self._exits[index] = {"code": code, "signal": None}
                if code < 0:
                    self._exits[index] = {"code": 128 - code, "signal": name_signal(-code)}
                if code and self._first_failed is None:
                    self._first_failed = index

    # -- stopping

    def _decide(self) -> None:
        """Send the job's signal or SIGKILL if it is time, and kill what is left when the ranks are over."""
        requests, self._requests = self._requests, []
        now = time.monotonic()
        if requests and self._is_unexplained():
            self._end_request = "stop"
        if "kill" in requests and (self._ranks or self._sent_signal is not None):
            self._end_request = "timeout" if self._end_request == "timeout" else "kill"
            self._kill_at = now
        elif self._ranks and self._sent_signal is None:
            if requests:
                self._end_request = "stop"
                self._stop(now)
            elif now >= self._limit_at:
                self._end_request = "timeout"
                self._message = f"it exceeded its time limit of {self._launch['time_limit_s']:g} s"
                self._stop(now)
            elif self._first_failed is not None and self._launch["kill_ranks_together"]:
                self._stop(now)
        if not self._ranks and (self._killed or self._sent_signal is None or not self._group_members()):
            self._kill()
        elif now >= self._kill_at:
            self._sent_signal = "SIGKILL"
            self._kill()

    def _is_unexplained(self) -> bool:
        """Return whether SIGTERM has ended a rank, and no request has come to this process."""
        if self._end_request is not None or self._first_failed is None or not self._signal_lag_s:
            return False
        return bool(self._exits[self._first_failed]["code"] == _TERMINATED)

    def _await_request(self) -> None:
        until = time.monotonic() + self._signal_lag_s
        while self._is_unexplained() and not self._requests and time.monotonic() < until:
            self._wait(until)
        if self._requests and self._is_unexplained():
            self._end_request = "stop"

    def _stop(self, now: float) -> None:
        """Send the job's signal; a suspended process must continue to receive it."""
        self._sent_signal = self._launch["signal"]
        self._kill_at = now + self._launch["grace_s"]
        self._limit_at = float("inf")
        self._send(signal.Signals[self._launch["signal"]])
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        """Signal the process group, and ranks that have left it."""
        members = self._group_members()
        with suppress(PermissionError):  # programs that became another user
            if members:
                os.killpg(self._group, number)
        for pid in self._ranks.keys() - members:
            with suppress(PermissionError):
                os.kill(pid, number)

    def _kill(self) -> None:
        """Send SIGKILL to the group and to all children; repeated while there are new ones."""
        self._killed = True
        self._kill_at = self._limit_at = float("inf")
        for folder in self._launch["cgroups"]:
            with suppress(OSError):  # cgroups v1 cannot be killed as one
                file = os.open(f"{folder}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(file, b"1")
                finally:
                    os.close(file)
        self._send(signal.SIGKILL)
        for pid in list_children() - self._spared:
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError:
                self._not_killable.add(pid)

    def _group_members(self) -> set[int]:
        """Return the children in the job's group. While there is one, the group's id is not reused."""
        return {pid for pid in list_children() if os.getpgid(pid) == self._group}

    def _is_over(self) -> bool:
        """Return whether nothing of the job is left that can be killed."""
        if self._has_no_children:
            return True
        left = list_children() - self._not_killable - self._spared
        return not self._ranks and self._killed and not left

    # -- the end

    def _write_exit(self) -> None:
        """Write exit.json, and repeat that until it succeeds."""
        for key in list(self._selector.get_map().values()):
            for _ in range(_LAST_READS):
                if key.fd == self._wake or not self._read(key):
                    break
        for log in self._logs:
            log.close()
        values, pause_s = self._exit_values(), _FIRST_RETRY_S
        while True:
            try:
                return write_json(self._exit_file, values)
            except OSError:
                if os.stat(".").st_nlink == 0:
                    return None
            self._selector.select(pause_s)
            self._drain_wake()
            pause_s = min(2 * pause_s, _LAST_RETRY_S)

    def _exit_values(self) -> dict[str, Any]:
        oom = count_oom_kills(self._launch["cgroups"]) > self._oom_kills
        for rank in self._exits:
            rank["code"] = NOT_STARTED if rank["code"] is None else rank["code"]
        end = self._exits[self._first_failed or 0]
        if oom and end["code"]:
            self._message = self._message or "it exceeded its memory limit"
        elif end["signal"] == "SIGKILL" and self._sent_signal != "SIGKILL":
            self._message = self._message or "another process killed it: the machine may be out of memory"
        if alive := sorted(self._not_killable & list_children()):
            self._message = f"{self._message}; processes {alive} could not be killed".lstrip("; ")
        return {
            **end,
            "fired": self._sent_signal,
            "asked": self._end_request,
            "oom": oom,
            "message": self._message,
            "began_at": self._began[0],
            "ended_at": time.time(),
            "seconds": time.monotonic() - self._began[1],
            "max_rss_bytes": self._max_rss,  # of the largest process
            "cpu_seconds": self._cpu_s,
            "log_lost_bytes": sum(log.lost for log in self._logs),
            "ranks": self._exits,
        }


def main(folder: str) -> int:
    """Claim the attempt in *folder*, and run it in a process that is not a child of the caller."""
    try:
        os.chdir(folder)
        with open(LAUNCH, encoding="utf-8") as file:
            launch = json.load(file)
        read, write = os.pipe2(os.O_CLOEXEC)
        if os.fork():
            os.close(write)
            with open(read, "rb") as answer:
                problem = answer.read().decode()
            print(problem, end="", file=sys.stderr)
            return 0 if problem == "" else 1
    except (OSError, ValueError) as error:
        print(error, end="", file=sys.stderr)
        return 1
    os.close(read)
    os.setsid()
    with open(os.devnull, "r+b", buffering=0) as null:
        for standard in range(3):
            os.dup2(null.fileno(), standard)
    try:
        supervisor = Supervisor(launch)
        supervisor.install_signal_handlers()
        claimed = claim_attempt(".")
    except Exception as error:
        os.write(write, f"{error or error!r}".encode())
        os._exit(1)
    os.close(write)
    if claimed:
        supervisor.run()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
