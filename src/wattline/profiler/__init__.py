"""Measurement of commands at different core counts, and of running jobs under different power caps."""
