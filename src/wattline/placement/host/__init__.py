"""Placers that also split cores, memory and storage bandwidth of nodes."""
