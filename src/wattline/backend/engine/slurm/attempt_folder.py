"""What the folder of an attempt tells: its claims, exit, heartbeat and joules.

Files are opened and never only tested for their existence: over NFS opening asks the server again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.folder_layout import read_json
from wattline.backend.engine.local.attempt_files import CLAIM, EXIT, claim_attempt
from wattline.backend.engine.slurm.batch_step import HEARTBEAT
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
        """Prevent the attempt from ever running; False: a batch step has claimed it."""
        return claim_attempt(str(self.path), void=True) or self.is_void()

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

    def heartbeat(self) -> str:
        """Return a text that changes while the batch step lives."""
        try:
            return (self.path / HEARTBEAT).read_text()
        except OSError:
            return ""

    def log_tail(self) -> str:
        """Return the last line that Slurm or the batch step have written; empty: none."""
        try:
            data = (self.path / "slurm.log").read_bytes()[-_LOG_BYTES:]
        except OSError:
            return ""
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
