"""Gavel's policies: target shares of every kind of GPU, followed in rounds."""
