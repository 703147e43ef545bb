"""Trace formats, one file per source."""
