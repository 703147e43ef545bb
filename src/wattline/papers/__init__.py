"""Mechanisms of other systems as published, to compare with."""
