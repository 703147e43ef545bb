"""The in-job side: progress, energy, power caps and checkpoints of a training script."""
