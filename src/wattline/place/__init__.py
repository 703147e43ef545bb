"""Leases: which GPUs."""

from wattline.place.pack import Pack

__all__ = ["Pack"]
