"""Durations of jobs as policies may know them: time limits, or estimates from jobs that have ended."""
