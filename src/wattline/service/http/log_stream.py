"""Server-sent event stream of a job's output: by lines, or as it was written."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wattline.service.controller import Controller
from wattline.service.job_logs import LogPosition, LogReader, find_logs
from wattline.service.log_lines import LineCollector
from wattline.service.states import LIVE_STATES

_POLL_S, _SLOW_POLL_S = 0.2, 0.5  # of a log that grows, and of one that was quiet for a while
_SLOW_AFTER_S = 2.0
_KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = ": keep-alive\n\n"
# Few threads of their own: many followers must not delay other requests.
_readers = ThreadPoolExecutor(4, "wattline-logs")


class LogStream:
    """The output of one rank of a job, from the latest attempt on; with *attempt*, of that attempt only."""

    def __init__(self, controller: Controller, job: str, attempt: int | None, rank: int, raw: bool) -> None:
        self._controller, self._job, self._attempt, self._rank = controller, job, attempt, rank
        self._raw = raw
        self._reader: LogReader | None = None
        self._lines = LineCollector()
        self._bar = b""  # state of the unfinished line that was sent last

    async def send(self, tail: int | None = None, since: str = "") -> AsyncIterator[str]:
        """Yield new output until the job ends; the last event is `end`, with its state.

        *since* is the Last-Event-ID, `attempt:offset:inode`: the stream continues after it. *tail* limits
        the lines of the first log; None: all.
        """
        quiet_since_s = time.monotonic()
        while not self._controller.streams_closed:
            poll = asyncio.get_running_loop().run_in_executor(_readers, self._poll, tail, since)
            state, block, next_attempt = await poll
            ended = not block and next_attempt is None and state not in LIVE_STATES
            if block:
                events = self._format_output(block)
            elif next_attempt or ended:
                events = self._format_lines(self._lines.finish())
            else:
                events = self._format_bar()
            for event in events:
                quiet_since_s = time.monotonic()
                yield event
            if next_attempt:
                self._reader = LogReader(next_attempt)
            if block or next_attempt:
                continue
            if ended:
                yield f"event: end\ndata: {state}\n\n"
                return
            if time.monotonic() - quiet_since_s > _KEEP_ALIVE_S:
                quiet_since_s = time.monotonic()
                yield _KEEP_ALIVE
            quiet = time.monotonic() - quiet_since_s > _SLOW_AFTER_S
            await asyncio.sleep(_SLOW_POLL_S if quiet else _POLL_S)

    def _poll(self, tail: int | None, since: str) -> tuple[str, bytes, Path | None]:
        """Return the job's state, the next bytes, and at their end the log of the next attempt."""
        state = self._controller.store.job_state(self._job) or "CANCELLED"  # None: it was pruned
        paths = find_logs(self._controller.folder, self._job, self._attempt, self._rank)
        if self._reader is None and paths:
            self._open(paths, tail, since)
        block = b"" if self._reader is None else self._reader.read_block()
        return state, block, None if block else self._find_next(paths)

    def _open(self, paths: list[Path], tail: int | None, since: str) -> None:
        number, *position = since.split(":")
        known = [path for path in paths if path.parent.name == number]
        self._reader = reader = LogReader((known or paths)[-1])
        if not known:
            if tail is not None:
                reader.seek_to_last(tail)
            return
        if len(position) == 2:
            reader.position = LogPosition(int(position[1]), int(position[0]))
        elif reader.path.exists():  # an id without the inode: the offset in the newest file
            reader.position = LogPosition(reader.path.stat().st_ino, int(position[0]))

    def _find_next(self, paths: list[Path]) -> Path | None:
        """Return the log of the attempt after the one that was read to its end; None: there is none yet."""
        if self._reader is None or self._reader.path not in paths[:-1]:
            return None
        return paths[paths.index(self._reader.path) + 1]

    def _format_output(self, block: bytes) -> Iterator[str]:
        if self._raw:
            text = json.dumps(block.decode("utf-8", "surrogateescape"))
            yield f"{self._format_id()}event: output\ndata: {text}\n\n"
            return
        yield from self._format_lines(self._lines.feed(block))

    def _format_lines(self, lines: list[bytes]) -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            self._bar = b""
            id = self._format_id() if number == len(lines) else ""
            text = line.removesuffix(b"\n").decode("utf-8", "replace")
            yield f"{id}data: {text}\n\n"

    def _format_bar(self) -> Iterator[str]:
        state = self._lines.state
        if state and state != self._bar:
            self._bar = state
            yield f"event: bar\ndata: {state.decode('utf-8', 'replace')}\n\n"

    def _format_id(self) -> str:
        assert self._reader is not None
        assert self._reader.position is not None
        inode, offset = self._reader.position
        offset = max(offset - self._lines.unfinished_bytes, 0)
        return f"id: {self._reader.path.parent.name}:{offset}:{inode}\n"
