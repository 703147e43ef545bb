"""Progress of the compilation of kernels, as one line on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from wattline.cli.output import notify

_EVERY = 10  # kernels between lines where stderr is no terminal


class CompileProgress:
    """Counts kernels as they are loaded or compiled, and shows that once one has to be compiled.

    *on_change* gets the text of each step.
    """

    def __init__(self, total: int, on_change: Callable[[str], None] | None = None) -> None:
        self.total, self.ready, self.compiled = total, 0, 0
        self._on_change = on_change
        self._start_s = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    @property
    def text(self) -> str:
        """The state, as in `compiling kernels 12/40`."""
        return f"compiling kernels {self.ready}/{max(self.total, self.ready)}"

    def __call__(self, name: str, is_compiled: bool) -> None:
        """Count a kernel; *is_compiled*: it is not in the cache and is compiled now."""
        self.ready += 1
        if is_compiled:
            self.compiled += 1
            self._show(name)
        if self.compiled and self._on_change is not None:
            self._on_change(self.text)

    def _show(self, name: str) -> None:
        if self.compiled == 1:
            notify("compiling kernels for this machine, once; this takes up to two minutes")
        if self._is_terminal:
            print(f"\r\x1b[K{self.text}: {name}", end="", file=sys.stderr, flush=True)
        elif self.compiled % _EVERY == 0:
            notify(self.text)

    def finish(self) -> None:
        """End the line; print how long it took if anything was compiled."""
        if self.compiled:
            start = "\r\x1b[K" if self._is_terminal else ""
            seconds = time.monotonic() - self._start_s
            notify(f"{start}compiled {self.compiled} kernels in {seconds:.0f} s; the next start is fast")
            self.compiled = 0


def announce_compilation(*modules: str, on_change: Callable[[str], None] | None = None) -> CompileProgress:
    """Show the compilation of kernels that is caused by the import of *modules*; none: of the loop."""
    from wattline.jit import count_kernels, on_kernel

    progress = CompileProgress(count_kernels(*(modules or ("wattline.loop.run",))), on_change)
    on_kernel(progress)
    return progress
