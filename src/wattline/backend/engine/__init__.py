"""Backends for real clusters: the `Engine` protocol, and the job handling that all engines share."""
