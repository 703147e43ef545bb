"""Hyper-parameter search that trains many trials as one array."""
