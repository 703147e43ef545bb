"""Caps that are put back, whatever happens.

    with hold(meter.gpus) as held:
        held.set_cap(150)

Before the first change of a GPU its old cap is on disk. It is put back when the block ends or raises, on
SIGTERM, SIGINT and SIGHUP, when the interpreter ends, by a watching process when we are killed, and else by
whoever calls `reap` next. What somebody else has set since is left alone. Who may not set caps, or finds a
GPU held by another process, is told once and observes.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from wattline.errors import NotPermitted, WattlineError
from wattline.meter.caps.process_identity import myself
from wattline.meter.caps.record import Record, forget, locked, state_folder, write
from wattline.meter.caps.restore import Reaped, held_by, put_back, reap, restore
from wattline.meter.caps.watchdog import Watcher
from wattline.meter.drivers.options import within
from wattline.meter.protocol import Gpu

__all__ = ["Hold", "Reaped", "hold", "reap"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_told: set[str] = set()
_holds: list[Hold] = []
_before: dict[signal.Signals, Any] = {}


class Hold:
    """Some GPUs whose caps we may change until this ends; *observing* says why not, GPU by GPU."""

    def __init__(
        self, gpus: Iterable[Gpu], watts: float | None, state: Path | None, tell: Callable[[str], None]
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._folder = state or state_folder()
        self._watts = watts
        self._tell = tell
        self._records: dict[str, Record] = {}
        self._watcher: Watcher | None = None
        self._owner = os.getpid()
        self._over = False
        self.observing: dict[str, str] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that were given."""
        return tuple(self._gpus.values())

    def __enter__(self) -> Hold:
        _holds.append(self)
        atexit.register(self.restore)
        _listen()
        if self._watts is not None:
            try:
                self.set_cap(self._watts)
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
        atexit.unregister(self.restore)
        if self in _holds:
            _holds.remove(self)
        _unlisten()

    def set_cap(self, watts: float, gpu: Gpu | None = None) -> bool:
        """Set a cap, of all GPUs or of one; False: some are only observed.

        A cap out of range is a `ConfigError`, a GPU that is gone a `MeterError`.
        """
        chosen = self.gpus if gpu is None else (self._gpus[gpu.uuid],)
        for one in chosen:
            self._check(one, watts)
        done = [self._set(one, watts) for one in chosen]
        return all(done)

    def _check(self, gpu: Gpu, watts: float) -> None:
        """Refuse a cap out of range before any GPU is changed."""
        if gpu.uuid in self.observing:
            return
        try:
            within(watts, *gpu.cap_range_w(), gpu.name)
        except NotPermitted as error:
            self._observe(gpu, error.message, error.hint)

    def _set(self, gpu: Gpu, watts: float) -> bool:
        if self._over or os.getpid() != self._owner or gpu.uuid in self.observing:
            return False
        try:
            with locked(self._folder):
                record = self._claim(gpu, watts)
                if record is None:
                    return False
                gpu.set_cap(watts)
                if self._over:  # a signal came between, and its handler did not end us
                    gpu.set_cap(record.before_w)
                    forget(self._folder, gpu.uuid)
                return not self._over
        except NotPermitted as error:
            self._observe(gpu, error.message, error.hint)
            self._let_go(gpu)
        except OSError as error:
            where = error.filename or self._folder
            self._observe(
                gpu, f"its cap cannot be remembered in {where}: {error.strerror}", "set WATTLINE_STATE"
            )
        return False

    def _claim(self, gpu: Gpu, watts: float) -> Record | None:
        """Write down what a cap was and is going to be; None: another process holds the GPU."""
        mine = self._records.get(gpu.uuid)
        if mine is not None:
            record = self._records[gpu.uuid] = replace(mine, set_w=(mine.set_w[-1], watts))
            write(self._folder, record, safely=False)
            return record
        reap(self._folder, lambda left: left.uuid == gpu.uuid)
        other = held_by(self._folder, gpu.uuid)
        if other is not None and other.ours(watts) and other.ours(gpu.cap_w()):
            return None  # who started us has set just that
        if other is not None:
            self._observe(gpu, f"{_who(other)} holds its cap")
            return None
        before_w = gpu.cap_w()
        self._watch()
        # Known here before it is on disk: a signal that comes between must find it.
        record = self._records[gpu.uuid] = Record(gpu.uuid, gpu.spec, before_w, (before_w, watts), myself())
        try:
            write(self._folder, record, safely=True)
        except OSError:
            del self._records[gpu.uuid]
            raise
        return record

    def _watch(self) -> None:
        if self._watcher is None:
            with suppress(OSError):
                self._watcher = Watcher(self._folder)
            if self._watcher is None or not self._watcher.ready:
                self._say(
                    "no process watches over caps: after kill -9 they stay until the next wattline doctor"
                )

    def _observe(self, gpu: Gpu, why: str, hint: str = "") -> None:
        self.observing[gpu.uuid] = why
        self._say(f"GPU {gpu.index} is observed only: {why}" + (f" ({hint})" if hint else ""))

    def _say(self, text: str) -> None:
        if text not in _told:
            _told.add(text)
            self._tell(text)

    def _let_go(self, gpu: Gpu) -> None:
        if self._records.pop(gpu.uuid, None) is not None:
            with suppress(OSError), locked(self._folder):
                forget(self._folder, gpu.uuid)

    def release(self, gpu: Gpu) -> None:
        """Put back the cap of one GPU; it may be set again."""
        record = self._records.pop(gpu.uuid, None)
        if record is not None and os.getpid() == self._owner:
            with suppress(OSError), locked(self._folder):
                problem = self._put_back(record)
                if problem:
                    self._say(f"the cap of GPU {gpu.index} could not be put back: {problem}")

    def restore(self) -> None:
        """Put back all caps, once; after this nothing more is set."""
        if os.getpid() != self._owner:
            return  # what was forked from us is not us
        self._over = True
        for uuid, record in list(self._records.items()):
            try:
                with locked(self._folder):
                    problem = self._put_back(record)
            except OSError as error:
                problem = str(error)
            self._records.pop(uuid, None)  # only now: a signal before this does it all once more
            if problem:
                self._say(f"the cap of GPU {self._gpus[uuid].index} could not be put back: {problem}")
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()

    def _put_back(self, record: Record) -> str:
        """What went wrong, if anything; a meter that was closed before us is opened again."""
        try:
            restore(self._folder, record, self._gpus[record.uuid])
        except WattlineError:
            return put_back(self._folder, record).problem
        return ""


def hold(
    gpus: Sequence[Gpu],
    watts: float | None = None,
    state: Path | None = None,
    tell: Callable[[str], None] = lambda text: print(f"wattline: {text}", file=sys.stderr),
) -> Hold:
    """A context in which caps of *gpus* may be set, to *watts* at once if that is said."""
    reap(state)
    return Hold(gpus, watts, state, tell)


def _who(record: Record) -> str:
    owner = record.owner
    unsure = "" if owner.lives() else ", which may be dead,"
    return f"process {owner.pid} on {owner.host}{unsure}"


def _listen() -> None:
    """Restore on signals, and then do what would have been done."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; the watcher is there for the others
    for number in _SIGNALS:
        if number not in _before and signal.getsignal(number) not in (signal.SIG_IGN, None):
            _before[number] = signal.signal(number, _signalled)


def _unlisten() -> None:
    if _holds or threading.current_thread() is not threading.main_thread():
        return
    for number in list(_before):
        if signal.getsignal(number) == _signalled:
            signal.signal(number, _before.pop(number))


def _signalled(number: int, frame: FrameType | None) -> None:
    for held in _holds:
        held.restore()
    before = _before.get(signal.Signals(number), signal.SIG_DFL)
    if callable(before):
        before(number, frame)
    elif before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
