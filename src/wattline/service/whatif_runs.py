"""Studies of recorded jobs under other policies: a queue of runs, each in a process with limits.

A trace comes from outside, so it is parsed by `wattline whatif` in a process of its own, which has little
memory, time and disk. One runs at a time, at low priority. Results are kept until the service stops.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.errors import Conflict, NotFound

_KEPT = 20
_MOST_WAITING = 5
_LIMITS = {"RLIMIT_AS": 8 << 30, "RLIMIT_CPU": 900, "RLIMIT_FSIZE": 1 << 30, "RLIMIT_NOFILE": 256}
_START = (
    "import os, resource, sys\n"
    "os.nice(10)\n"
    f"for name, value in {_LIMITS!r}.items():\n"
    "    soft, hard = resource.getrlimit(getattr(resource, name))\n"
    "    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)\n"
    "    resource.setrlimit(getattr(resource, name), (limit, limit))\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'wattline', *sys.argv[1:]])\n"
)
_PASSED = ("PATH", "HOME", "LANG", "PYTHONPATH", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "OMP_NUM_THREADS")


@dataclass
class WhatIfRun:
    """One study. *result* is the answer of `wattline whatif --json`; None: there is none."""

    id: str
    owner: str  # name of the token
    trace: str  # name of the source, as users read it
    arguments: tuple[str, ...]
    submit_s: float
    state: str = "waiting"  # waiting, running, ended or failed
    completed: float = 0.0  # fraction of its simulations
    start_s: float | None = None
    end_s: float | None = None
    message: str = ""  # last line that the process wrote, or the reason of the failure
    result: dict[str, Any] | None = field(default=None, repr=False)


class WhatIfRuns:
    """The studies of a service, in the folder *whatif* of its own."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder / "whatif", clock
        self._lock = threading.Lock()  # guards the runs
        self._runs: dict[str, WhatIfRun] = {}
        self._waiting: queue.Queue[WhatIfRun | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def prepare(self) -> tuple[str, Path]:
        """Return the id of a new study, and the file for its trace; raise `Conflict` if too many wait."""
        with self._lock:
            waiting = sum(run.state in ("waiting", "running") for run in self._runs.values())
        if waiting >= _MOST_WAITING:
            raise Conflict(f"{waiting} what-if studies wait or run already", "try again when one has ended")
        id = secrets.token_hex(8)
        folder = self._folder / id
        folder.mkdir(parents=True, mode=0o700)
        return id, folder / "trace"

    def discard(self, id: str) -> None:
        """Delete the files of a study that was prepared and not started."""
        shutil.rmtree(self._folder / id, ignore_errors=True)

    def start(self, id: str, owner: str, trace: str, arguments: Sequence[str]) -> WhatIfRun:
        """Queue a study of the prepared trace."""
        run = WhatIfRun(id, owner, trace, tuple(arguments), self._clock())
        with self._lock:
            self._runs[id] = run
            old = [one for one in self._runs.values() if one.state in ("ended", "failed")]
            for one in old[: max(len(self._runs) - _KEPT, 0)]:
                del self._runs[one.id]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="wattline-whatif", daemon=True)
                self._thread.start()
        self._waiting.put(run)
        return run

    def find(self, id: str, owner: str | None) -> WhatIfRun:
        """Return a study of *owner* (None: of anyone); raise `NotFound` if there is none."""
        with self._lock:
            run = self._runs.get(id)
        if run is None or (owner is not None and run.owner != owner):
            raise NotFound(f"there is no what-if study {id!r}", "studies are kept until the service stops")
        return run

    def list_runs(self, owner: str | None) -> list[WhatIfRun]:
        """Return the studies of *owner* (None: all), the newest first."""
        with self._lock:
            return [run for run in self._runs.values() if owner is None or run.owner == owner][::-1]

    def close(self) -> None:
        """Stop the study that runs, and start no more."""
        self._closed = True
        self._waiting.put(None)
        with self._lock:
            process = self._process
        if process is not None:
            process.kill()
        if self._thread is not None:
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the thread

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None and not self._closed:
            run.start_s, run.state = self._clock(), "running"
            try:
                self._simulate(run)
            except Exception as error:  # of one study; others go on
                run.state, run.message = "failed", f"{type(error).__name__}: {error}"
            run.end_s = self._clock()
            self.discard(run.id)

    def _simulate(self, run: WhatIfRun) -> None:
        folder = self._folder / run.id
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        environment |= {"WATTLINE_PROGRESS": "lines", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        command = ["whatif", "--trace", str(folder / "trace"), *run.arguments, "--jobs", "1", "--json"]
        with (
            (folder / "answer").open("w") as answer,
            subprocess.Popen(
                [sys.executable, "-c", _START, *command],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                cwd=folder,
                env=environment,
            ) as process,
        ):
            with self._lock:
                self._process = process
            if self._closed:
                process.kill()
            assert process.stderr is not None
            for line in process.stderr:
                self._note(run, line.strip().replace(str(folder / "trace"), run.trace))
        with self._lock:
            self._process = None
        code = process.returncode
        content = _read_answer(folder / "answer")
        if code in (0, 4) and content is not None and "worlds" in content:
            run.result, run.completed, run.state = content, 1.0, "ended"
            return
        problem = (content or {}).get("error", {})
        text = problem.get("message") or run.message or f"wattline whatif ended with the code {code}"
        hint = problem.get("hint", "")
        run.message = f"{text.replace(str(folder / 'trace'), run.trace)}{f' ({hint})' if hint else ''}"
        if code < 0:
            run.message = f"it was killed by signal {-code}: it may have needed too much memory or time"
        run.state = "failed"

    def _note(self, run: WhatIfRun, line: str) -> None:
        words = line.split()
        if len(words) == 3 and words[0] == "progress":
            run.completed = min(float(words[1]) / max(float(words[2]), 1e-9), 1.0)
        elif line:
            run.message = line[:500]


def _read_answer(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
