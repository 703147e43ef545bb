"""An attempt as the service sees it: a folder, in which a supervisor process runs the job.

    Launch(("python", "train.py"), "/home/ann", env).write(folder)
    attempt = AttemptProcesses(folder)
    attempt.start()
    attempt.wait(60.0)

All that is known of an attempt is in its folder, so a service that was killed finds everything again. An
attempt that was written and never claimed can be declared void, and then no supervisor that starts late runs
it. The supervisor is forked twice and becomes a child of the system's init process, so it need not be
collected here. (In a container, run an init. Under systemd use KillMode=process, or a restart of the service
kills the jobs with it.)
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.local import supervisor
from wattline.backend.engine.local.attempt_files import CLAIM, EXIT, LAUNCH, boot_id, claim_attempt
from wattline.backend.engine.local.launch_file import ATTEMPT
from wattline.backend.engine.local.process_files import (
    close_with,
    open_pidfd,
    processes_with,
    send_signal,
    wait_for_end,
)
from wattline.errors import BackendError
from wattline.meter.caps.process_identity import read_start_ticks

ProcessState = Literal["new", "void", "running", "ended", "vanished"]

_POLL_S = 0.02  # where the kernel has no file descriptors for processes


@dataclass(frozen=True)
class AttemptProcesses:
    """The processes of one attempt, in a folder with its launch.json."""

    folder: Path

    def start(self) -> None:
        """Start the supervisor, and return when the attempt is claimed."""
        script = os.path.realpath(supervisor.__file__)
        command = [sys.executable, "-I", "-S", "-X", "utf8", script, os.path.realpath(self.folder)]
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            raise BackendError(f"{self.folder}: {sys.executable} cannot be started: {error}") from error
        if result.returncode != 0 or self._read_claim() is None:
            problem = result.stderr.decode("utf-8", "replace").strip()
            problem = problem or f"its supervisor exited with code {result.returncode}"
            raise BackendError(f"{self.folder}: the attempt was not started: {problem}")

    def state(self) -> ProcessState:
        """Return how far it got; *vanished*: its supervisor is gone and wrote no exit.json."""
        claim = self._read_claim()
        if claim is None:
            return "new"
        if claim.get("void"):
            return "void"
        if self.exit() is None and _is_alive(claim):
            return "running"
        return "vanished" if self.exit() is None else "ended"  # it may have ended between the two checks

    def rebooted(self) -> bool:
        """Return whether the machine was rebooted since the attempt was claimed."""
        claim = self._read_claim() or {}
        return "boot_id" in claim and claim["boot_id"] != boot_id()

    def void(self) -> bool:
        """Prevent the attempt from ever running; False: it was claimed before."""
        return claim_attempt(str(self.folder), void=True)

    def exit(self) -> Exit | None:
        """Return how it ended; None: it has not, or it vanished."""
        return Exit.read(self.folder / EXIT)

    def stop(self) -> bool:
        """Ask the job to end in its grace period; an unclaimed attempt becomes void. False: it is over."""
        return self._signal(signal.SIGTERM)

    def kill(self) -> bool:
        """Kill the job; an unclaimed attempt becomes void. False: it is over."""
        return self._signal(signal.SIGUSR1)

    def pidfd(self) -> int | None:
        """Return a file descriptor that becomes readable when the supervisor exits; the caller closes it.

        None: the supervisor is gone, or the kernel has no such files.
        """
        claim = self._read_claim()
        if claim is None or claim.get("void"):
            return None
        file = open_pidfd(claim.get("pid", 0))
        if file is None:
            return None
        if _is_alive(claim):  # checked after opening: the process id may have been reused before
            return file
        os.close(file)
        return None

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end of a running attempt; None: it still runs after *timeout_s*, or vanished."""
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with ExitStack() as stack:
            file = close_with(stack, self.pidfd())
            if file is not None:
                wait_for_end(file, until_s)
                return self.exit()
        while self.state() == "running" and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return self.exit()

    def kill_leftovers(self, timeout_s: float = 5.0) -> bool:
        """Kill what a vanished supervisor had started; False: some process is still there.

        These are the processes with this folder in their environment, as far as this user may read it, and
        those in the attempt's cgroups, which no other attempt may use before.
        """
        until_s = time.monotonic() + timeout_s
        variable = f"{ATTEMPT}={os.path.realpath(self.folder)}".encode("utf-8", "surrogateescape")
        while left := self._leftovers(variable):
            with ExitStack() as stack:
                files = {pid: close_with(stack, open_pidfd(pid)) for pid in left}
                for pid in left & self._leftovers(variable):  # again: ids may have been reused before opening
                    with suppress(ProcessLookupError, PermissionError):
                        send_signal(pid, files[pid], signal.SIGKILL)
                for file in files.values():
                    if file is None:
                        time.sleep(_POLL_S)
                    else:
                        wait_for_end(file, until_s)
            if time.monotonic() >= until_s:
                return not self._leftovers(variable)
        return True

    def _leftovers(self, variable: bytes) -> set[int]:
        ids = processes_with(variable) | self._in_cgroups()
        return {pid for pid in ids if read_start_ticks(pid) is not None} - {os.getpid()}

    def _in_cgroups(self) -> set[int]:
        ids = set()
        with suppress(OSError, ValueError, KeyError):
            for folder in json.loads((self.folder / LAUNCH).read_bytes())["cgroups"]:
                with suppress(OSError):
                    ids |= {int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()}
        return ids

    def _read_claim(self) -> dict[str, Any] | None:
        """Return claim.json; None: there is none; empty: it is invalid."""
        try:
            claim = json.loads((self.folder / CLAIM).read_bytes())
            return claim if isinstance(claim, dict) else {}
        except FileNotFoundError:
            return None
        except ValueError:
            return {}

    def _signal(self, number: signal.Signals) -> bool:
        """Signal the supervisor, and never another process that has its process id now."""
        if self._read_claim() is None and self.void():
            return True
        claim = self._read_claim() or {}
        try:
            with ExitStack() as stack:
                file = close_with(stack, self.pidfd())
                if file is None and (claim.get("void") or not _is_alive(claim)):
                    return False
                send_signal(claim["pid"], file, number)
                return True
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise BackendError(f"{self.folder}: its supervisor belongs to another user") from error


def _is_alive(claim: Mapping[str, Any]) -> bool:
    """Return whether the process that made a claim still runs."""
    if not {"pid", "start_ticks", "boot_id"} <= claim.keys() or claim["boot_id"] != boot_id():
        return False
    return bool(read_start_ticks(claim["pid"]) == claim["start_ticks"])
