"""Measurements: points of a profile, device data, and the storage under a folder."""
