"""Environment variables of the ranks of a job on this machine."""

from __future__ import annotations

import socket

from wattline.backend.engine.job_spec import JobSpec


def build_rank_environments(spec: JobSpec, gpus: int) -> list[dict[str, str]]:
    """Return torchrun's variables for each process of a job with *gpus* GPUs.

    A command that starts its own ranks, and an array, is one process.
    """
    count = 1 if spec.starts_ranks or spec.config is not None else gpus
    port = str(_free_port()) if count > 1 else "29500"
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(count)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
