"""Power caps that are restored however the process ends.

    with guard_caps(meter.gpus) as guard:
        guard.set_cap(150)

The previous cap of a GPU is on disk before the cap is first changed. It is restored when the block ends or
raises, on SIGTERM, SIGINT and SIGHUP, at interpreter exit, by the watchdog process if this one is killed,
and otherwise by the next call of `restore_orphaned_caps`. A cap that another program has set meanwhile, or a
scheduler has taken over, is left alone. Where caps may not be set, or another process holds a GPU, that is
reported once and the GPU is only observed.
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
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from wattline.errors import NotPermitted, WattlineError
from wattline.meter.caps.process_identity import identify_current_process
from wattline.meter.caps.record import CapRecord, lock_records, remove_record, state_folder, write_record
from wattline.meter.caps.restore import find_record, restore_cap, restore_orphaned_caps, restore_record
from wattline.meter.caps.watchdog import Watchdog
from wattline.meter.drivers.options import check_cap
from wattline.meter.protocol import Gpu

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_reported: set[str] = set()  # warnings that this process has already given
_active_guards: list[CapGuard] = []
_handlers: dict[signal.Signals, partial[None]] = {}  # those that are ours


class CapGuard:
    """Context in which this process may change the caps of *gpus*, and which restores them.

    *observing* maps the UUID of each GPU that is only observed to the reason. With *take_over* it sets the
    caps that other processes with the same *state* hold, too; these observe from then on.
    """

    def __init__(
        self,
        gpus: Iterable[Gpu],
        watts: float | None,
        state: Path | None,
        warn: Callable[[str], None],
        take_over: bool = False,
    ) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._folder = state or state_folder()
        self._watts = watts
        self._warn = warn
        self._take_over = take_over
        self._records: dict[str, CapRecord] = {}
        self._watchdog: Watchdog | None = None
        self._owner_pid = os.getpid()
        self._restored = False
        self.observing: dict[str, str] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The guarded GPUs."""
        return tuple(self._gpus.values())

    def __enter__(self) -> CapGuard:
        _active_guards.append(self)
        atexit.register(self.restore)
        _install_signal_handlers()
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
        if self in _active_guards:
            _active_guards.remove(self)
        _remove_signal_handlers()

    def set_cap(self, watts: float, gpu: Gpu | None = None) -> bool:
        """Set the cap of all GPUs or of one; return False if some are only observed.

        Raises `ConfigError` if the cap is out of range, and `MeterError` if a GPU is lost.
        """
        chosen = self.gpus if gpu is None else (self._gpus[gpu.uuid],)
        for one in chosen:
            self._check_range(one, watts)
        done = [self._set(one, watts) for one in chosen]
        return all(done)

    def _check_range(self, gpu: Gpu, watts: float) -> None:
        """Refuse a cap out of range before any GPU is changed."""
        if gpu.uuid in self.observing:
            return
        try:
            check_cap(watts, *gpu.cap_range_w(), gpu.name)
        except NotPermitted as error:
            self._observe_only(gpu, error.message, error.hint)

    def _set(self, gpu: Gpu, watts: float) -> bool:
        if self._restored or os.getpid() != self._owner_pid or gpu.uuid in self.observing:
            return False
        try:
            with lock_records(self._folder):
                record = self._claim(gpu, watts)
                if record is None:
                    return False
                gpu.set_cap(watts)
                if self._restored:  # a signal arrived meanwhile, and its handler did not end the process
                    gpu.set_cap(record.before_w)
                    remove_record(self._folder, gpu.uuid)
                return not self._restored
        except NotPermitted as error:
            self._observe_only(gpu, error.message, error.hint)
            self._drop_record(gpu)
        except OSError as error:
            path = error.filename or self._folder
            self._observe_only(
                gpu, f"its cap cannot be recorded in {path}: {error.strerror}", "set WATTLINE_STATE"
            )
        return False

    def _claim(self, gpu: Gpu, watts: float) -> CapRecord | None:
        """Record the previous and the new cap; None: another process holds the GPU."""
        own = self._records.get(gpu.uuid)
        if own is not None and not self._owns(own):
            del self._records[gpu.uuid]
            own = None
        if own is not None:
            record = self._records[gpu.uuid] = replace(own, set_w=(own.set_w[-1], watts))
            write_record(self._folder, record, durable=False)
            return record
        restore_orphaned_caps(self._folder, lambda orphan: orphan.uuid == gpu.uuid)
        other = find_record(self._folder, gpu.uuid)
        now_w = gpu.cap_w()
        before_w = now_w
        if self._take_over and other is not None:
            before_w, other = other.before_w, None
        if other is not None and other.has_set(watts) and other.has_set(now_w):
            return None  # the process that started this one has already set the same cap
        if other is not None:
            self._observe_only(gpu, f"{_describe_owner(other)} holds its cap")
            return None
        self._start_watchdog()
        # Keep the record in memory before it is on disk: a signal in between must find it.
        record = self._records[gpu.uuid] = CapRecord(
            gpu.uuid, gpu.spec, before_w, (now_w, watts), identify_current_process()
        )
        try:
            write_record(self._folder, record, durable=True)
        except OSError:
            del self._records[gpu.uuid]
            raise
        return record

    def _owns(self, record: CapRecord) -> bool:
        """Return whether no other process has taken the GPU over since *record* was written."""
        stored = find_record(self._folder, record.uuid)
        return stored is None or stored.owner == record.owner

    def _start_watchdog(self) -> None:
        if self._watchdog is None:
            with suppress(OSError):
                self._watchdog = Watchdog(self._folder)
            if self._watchdog is None or not self._watchdog.ready:
                self._warn_once(
                    "the cap watchdog cannot be started: after kill -9 caps stay set until `wattline doctor`"
                )

    def _observe_only(self, gpu: Gpu, why: str, hint: str = "") -> None:
        self.observing[gpu.uuid] = why
        self._warn_once(f"GPU {gpu.index} is observed only: {why}" + (f" ({hint})" if hint else ""))

    def _warn_once(self, text: str) -> None:
        if text not in _reported:
            _reported.add(text)
            self._warn(text)

    def _drop_record(self, gpu: Gpu) -> None:
        if self._records.pop(gpu.uuid, None) is not None:
            with suppress(OSError), lock_records(self._folder):
                remove_record(self._folder, gpu.uuid)

    def release(self, gpu: Gpu) -> None:
        """Restore the cap of one GPU; it may be set again."""
        record = self._records.pop(gpu.uuid, None)
        if record is not None and os.getpid() == self._owner_pid:
            with suppress(OSError), lock_records(self._folder):
                problem = self._restore(record)
                if problem:
                    self._warn_once(f"the cap of GPU {gpu.index} could not be restored: {problem}")

    def restore(self) -> None:
        """Restore all caps; no cap can be set after this."""
        if os.getpid() != self._owner_pid:
            return  # a forked child does not own the caps
        self._restored = True
        for uuid, record in list(self._records.items()):
            try:
                with lock_records(self._folder):
                    problem = self._restore(record)
            except OSError as error:
                problem = str(error)
            self._records.pop(uuid, None)  # last, so that a signal before this restores the cap once more
            if problem:
                self._warn_once(f"the cap of GPU {self._gpus[uuid].index} could not be restored: {problem}")
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()

    def _restore(self, record: CapRecord) -> str:
        """Restore one cap, through a new meter if ours is already closed; return the problem, or ""."""
        if not self._owns(record):
            return ""
        try:
            restore_cap(self._folder, record, self._gpus[record.uuid])
        except WattlineError:
            return restore_record(self._folder, record).problem
        return ""


def guard_caps(
    gpus: Sequence[Gpu],
    watts: float | None = None,
    state: Path | None = None,
    warn: Callable[[str], None] = lambda text: print(f"wattline: {text}", file=sys.stderr),
    take_over: bool = False,
) -> CapGuard:
    """Return a context manager in which caps of *gpus* may be set, and which sets *watts* on entry if given.

    *warn* receives each warning once; *state* is the folder of the cap records. *take_over* is for a
    scheduler, which sets the caps of GPUs although a job that it has started holds them.
    """
    restore_orphaned_caps(state)
    return CapGuard(gpus, watts, state, warn, take_over)


def _describe_owner(record: CapRecord) -> str:
    owner = record.owner
    unsure = "" if owner.is_alive() else ", which may be dead,"
    return f"process {owner.pid} on {owner.host}{unsure}"


def _install_signal_handlers() -> None:
    """Restore caps on signals, then do what a signal did before; again if a library replaced our handler."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python allows it in the main thread only; the watchdog covers the others
    for number in _SIGNALS:
        previous = signal.getsignal(number)
        if previous not in (signal.SIG_IGN, None, _handlers.get(number)):
            _handlers[number] = partial(_handle_signal, previous)
            signal.signal(number, _handlers[number])


def _remove_signal_handlers() -> None:
    if _active_guards or threading.current_thread() is not threading.main_thread():
        return
    for number, handler in _handlers.items():
        previous = handler.args[0]
        if signal.getsignal(number) is handler:
            signal.signal(number, previous)
    _handlers.clear()  # one that a library calls from its own handler still knows what was before it


def _handle_signal(previous: Any, number: int, frame: FrameType | None) -> None:
    for guard in _active_guards:
        guard.restore()
    if callable(previous):
        previous(number, frame)
    elif previous == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
