"""Measurements: what devices and jobs are known to do."""
