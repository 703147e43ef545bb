"""Lines of a job's output, of which progress bars redraw one with carriage returns. Standard library only."""

from __future__ import annotations

PIECE_LIMIT_BYTES = 1 << 20
"""A line that is longer is passed on in pieces."""


class LineCollector:
    """Splits output into lines; of a line that is drawn again and again it keeps the last state."""

    def __init__(self) -> None:
        self.unfinished_bytes = 0  # received since the last newline, with the states that were drawn over
        self._state = b""  # of the unfinished line

    @property
    def state(self) -> bytes:
        """Text of the unfinished line as a terminal shows it; empty: there is none."""
        return last_state(self._state)

    def feed(self, block: bytes) -> list[bytes]:
        """Return the lines that *block* completes, each with its newline, and pieces of a very long line."""
        first, newline, rest = block.partition(b"\n")
        if not newline:
            return self._keep(block)
        lines = [last_state(self._state + first) + b"\n"]
        self._state, self.unfinished_bytes = b"", 0
        *complete, unfinished = rest.split(b"\n")
        lines += [last_state(line) + b"\n" for line in complete]
        return lines + self._keep(unfinished)

    def finish(self) -> list[bytes]:
        """Return the unfinished line as if it was complete; nothing if there is none."""
        lines = [self.state + b"\n"] if self._state else []
        self._state, self.unfinished_bytes = b"", 0
        return lines

    def _keep(self, block: bytes) -> list[bytes]:
        self.unfinished_bytes += len(block)
        text = self._state + block
        self._state = text[_start_of_last_state(text) :]  # a bar may be drawn for days without a newline
        if len(self._state) <= PIECE_LIMIT_BYTES:
            return []
        piece, self._state = self._state, b""
        return [piece]


def last_state(line: bytes) -> bytes:
    """Return what is left of a line after its carriage returns: the text after the last one.

    Carriage returns at the end, as in the line ends of Windows, draw over nothing.
    """
    return line[_start_of_last_state(line) :].rstrip(b"\r")


def _start_of_last_state(line: bytes) -> int:
    return line.rstrip(b"\r").rfind(b"\r") + 1
