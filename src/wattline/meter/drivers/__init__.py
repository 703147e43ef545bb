"""Meters, one file per source of readings."""
