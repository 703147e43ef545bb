"""Placers that also divide cores, memory and storage bandwidth."""
