"""Measure commands and running jobs."""
