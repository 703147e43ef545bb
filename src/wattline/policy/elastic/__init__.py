"""Policies that also choose the number of GPUs."""
