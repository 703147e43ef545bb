"""Command line: `wattline COMMAND`."""

from wattline.cli.main import main

__all__ = ["main"]
