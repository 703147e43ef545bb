"""Simulated GPUs, batches and short windows for tests of training sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wattline.profiler.cap_window import WindowLength

SHORT = WindowLength(wait=1, warmup=2, steps=5)
BATCH = np.zeros((64, 3))


def describe_gpus(tmp_path: Path, count: int = 1, **more: str) -> str:
    words = "".join(f",{name}={value}" for name, value in more.items())
    return f"simulated:{count}xv100,model=resnet50,batch=64,time=virtual,state={tmp_path / 'gpus'}{words}"
