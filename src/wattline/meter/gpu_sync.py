"""Waiting for the work queued on GPUs, so that the next energy reading includes it."""

from __future__ import annotations

import sys
from typing import Any


def synchronize_gpus() -> None:
    """Wait for the GPUs that this process computes on with PyTorch; without PyTorch do nothing.

    A GPU on which the process has allocated nothing is left alone: to wait for it would create a context.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    current = torch.cuda.current_device()
    for index in range(torch.cuda.device_count()):
        if index == current or torch.cuda.memory_reserved(index):
            torch.cuda.synchronize(index)
