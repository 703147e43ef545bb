"""`wattline version`: of wattline and of what it stands on."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from wattline import __version__
from wattline.cli.output import show_json


def run(args: argparse.Namespace) -> int:
    """Print versions."""
    found = {"wattline": __version__, "python": platform.python_version()}
    for name in ("numpy", "numba", "plotly"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    if args.json:
        show_json(found)
    else:
        print(f"wattline {__version__}")
    return 0
