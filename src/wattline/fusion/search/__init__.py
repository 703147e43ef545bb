"""Hyper-parameter tuning in which many trials are trained as one array."""
