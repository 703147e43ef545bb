"""Wattline in the tools that people use: submitit, Hydra, Optuna, Ray Tune, Trainer, Lightning, trackers."""
