"""Batch sizes of recurring jobs: Zeus' bandit, the Bayesian tuner, and their history."""
