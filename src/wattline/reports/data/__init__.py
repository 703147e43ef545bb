"""Columns derived from a run log that reports and figures share."""
