"""Small profiles for tests of the command line."""

from pathlib import Path

import numpy as np

from wattline import Profile, write_profile

CAPS = np.array([100.0, 150.0, 200.0, 250.0, 300.0])


def build_cap_profile(model: str = "resnet50", gpu: str = "a40") -> Profile:
    """Return a profile over batch sizes and power caps with watts; speed and draw rise up to 250 W."""
    batch, cap_w = (column.reshape(-1) for column in np.meshgrid([32.0, 64.0, 128.0], CAPS, indexing="ij"))
    draws = np.minimum(cap_w, 250.0)
    samples_s = batch / (0.01 + 0.003 * batch) * (0.4 + 0.6 * draws / 250.0)
    return Profile.of(model=model, gpu=gpu, batch=batch, cap_w=cap_w, samples_s=samples_s, watts=draws)


def build_scaling_profile(model: str = "bert", gpu: str = "a100") -> Profile:
    """Return a profile over numbers of GPUs at a fixed batch per GPU, without watts."""
    gpus = np.array([1.0, 2.0, 4.0, 8.0])
    step_s = 0.1 + 0.01 * (gpus > 1) + 0.002 * np.maximum(gpus - 2, 0)
    return Profile.of(model=model, gpu=gpu, gpus=gpus, batch=16 * gpus, samples_s=16 * gpus / step_s)


def write_csv(profile: Profile, folder: Path, name: str = "mine.csv") -> str:
    """Write *profile* to a file and return its path."""
    write_profile(profile, folder / name)
    return str(folder / name)
