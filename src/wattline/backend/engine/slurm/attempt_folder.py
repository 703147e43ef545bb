"""Files in the folder of an attempt: its claims, exit, heartbeat and joules.

Files are opened and never only tested for their existence: over NFS opening asks the server again.
The user of the job can write all of them: see `user_files`.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.folder_layout import read_json
from wattline.backend.engine.local.attempt_files import CLAIM, EXIT, claim_attempt
from wattline.backend.engine.slurm.heartbeat import HEARTBEAT, REQUEST, node_heartbeat
from wattline.backend.engine.slurm.node_exits import node_claim_file
from wattline.backend.engine.slurm.node_list import parse_indices
from wattline.backend.engine.user_files import create_file, open_file, replace_file

_LOG_BYTES = 2000


@dataclass(frozen=True)
class AttemptFolder:
    """The folder of one attempt."""

    path: Path

    def claim(self) -> dict[str, Any] | None:
        """Return the claim of a batch step or of the service; None: there is none."""
        claim = read_json(self.path / CLAIM)
        return claim if isinstance(claim, dict) else None

    def is_void(self) -> bool:
        """Return whether the service has declared it void."""
        return bool((self.claim() or {}).get("void"))

    def void(self) -> bool:
        """Prevent the attempt from ever running; False: a batch step has claimed it, or the disk is full."""
        try:
            return claim_attempt(str(self.path), void=True) or self.is_void()
        except OSError:
            return self.is_void()

    def gpus(self, nodes: Sequence[str]) -> tuple[int, ...] | None:
        """Return the GPU indices on all *nodes*; None: not all of them have been claimed."""
        if len(nodes) == 1:
            claims = [self.claim()]
        else:
            claims = [read_json(self.path / node_claim_file(node)) for node in nodes]
        if not all(isinstance(claim, dict) for claim in claims):
            return None
        texts = [claim.get("gpus") for claim in claims if claim]
        return tuple(gpu for text in texts if isinstance(text, str) for gpu in parse_indices(text))

    def exit(self) -> Exit | None:
        """Return how it ended; None: it has not, or it vanished."""
        return Exit.read(self.path / EXIT)

    def heartbeat_age_s(self, node: str = "") -> float:
        """Return the seconds since the last heartbeat of the batch step, or of one of several nodes.

        Before the first one since the claim. By the clock of the file system: clocks of nodes may differ.
        inf: it was not claimed.
        """
        beat = node_heartbeat(node) if node else HEARTBEAT
        try:
            now_s = self._read_clock()
            for name in (beat, CLAIM):
                with suppress(FileNotFoundError), open_file(self.path / name) as file:
                    return max(now_s - os.fstat(file.fileno()).st_mtime, 0.0)
        except OSError:
            return 0.0  # the disk is full or hangs: nothing is known
        return math.inf

    def _read_clock(self) -> float:
        """Return the time of the file system, as a new file gets it."""
        probe = self.path / f".probe-{secrets.token_hex(8)}"
        file = create_file(probe)
        try:
            return os.fstat(file).st_mtime
        finally:
            os.close(file)
            probe.unlink()

    def request(self, request: str) -> None:
        """Pass "stop" or "kill" to the batch step without Slurm."""
        with suppress(OSError):
            replace_file(self.path / REQUEST, request.encode(), sync=False)

    def log_tail(self) -> str:
        """Return the last line that Slurm or the batch step have written; empty: none."""
        try:
            with open_file(self.path / "slurm.log") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
                data = file.read(_LOG_BYTES)
        except OSError:
            return ""
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
