"""Files in the folder of an attempt: its claims, exit, heartbeat and joules.

Files are opened and never only tested for their existence: over NFS opening asks the server again.
"""

from __future__ import annotations

import math
import os
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
        return tuple(gpu for claim in claims if claim for gpu in parse_indices(claim.get("gpus", "")))

    def exit(self) -> Exit | None:
        """Return how it ended; None: it has not, or it vanished."""
        return Exit.read(self.path / EXIT)

    def heartbeat_age_s(self, node: str = "") -> float:
        """Return the seconds since the last heartbeat of the batch step, or of one of several nodes.

        Before the first one since the claim. By the clock of the file system: clocks of nodes may differ.
        inf: it was not claimed.
        """
        probe, beat = self.path / "probe", node_heartbeat(node) if node else HEARTBEAT
        try:
            probe.write_bytes(b"")
            for name in (beat, CLAIM):
                with suppress(FileNotFoundError), open(self.path / name, "rb") as file:
                    return max(probe.stat().st_mtime - os.fstat(file.fileno()).st_mtime, 0.0)
        except OSError:
            return 0.0  # the disk is full or hangs: nothing is known
        return math.inf

    def request(self, request: str) -> None:
        """Pass "stop" or "kill" to the batch step without Slurm."""
        with suppress(OSError):
            (self.path / "request.new").write_text(request)
            (self.path / "request.new").rename(self.path / REQUEST)

    def log_tail(self) -> str:
        """Return the last line that Slurm or the batch step have written; empty: none."""
        try:
            data = (self.path / "slurm.log").read_bytes()[-_LOG_BYTES:]
        except OSError:
            return ""
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
