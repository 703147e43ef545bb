"""Signs of life of an attempt: files that the steps on its nodes write again and again.

Imported by the steps: standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

HEARTBEAT = "heartbeat"
"""File of the batch step; those of the steps on several nodes have the name of the node at the end."""

REQUEST = "request"
"""File with a request of the service to the batch step, "stop" or "kill": it needs no slurmctld."""

MISSED = 4
"""A step that has missed so many heartbeats is gone."""

_SIGNALS = {b"stop": signal.SIGTERM, b"kill": signal.SIGUSR1}


def node_heartbeat(node: str) -> str:
    """Return the name of the heartbeat file of one of several nodes."""
    return f"{HEARTBEAT}.{node}"


def keep_heartbeat(name: str, interval_s: float, takes_requests: bool = False) -> None:
    """Write a file every *interval_s* in a thread, and turn new requests into signals to this process."""

    def beat() -> None:
        handled = b""
        while True:
            try:
                with open(name, "wb") as file:
                    file.write(repr(time.time()).encode())
            except OSError:  # a full disk has no room for its content, and its time is what counts
                with suppress(OSError):
                    os.utime(name)
            if takes_requests:
                with suppress(OSError), open(REQUEST, "rb") as file:
                    request = file.read().strip()
                    if request in _SIGNALS and request != handled:
                        handled = request
                        os.kill(os.getpid(), _SIGNALS[request])
            time.sleep(interval_s)

    threading.Thread(target=beat, daemon=True).start()
