"""`wattline version`: print the versions of wattline and of the packages it uses."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from wattline import __version__
from wattline.cli.arguments import add_json_argument
from wattline.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline version`."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print versions; a package that is not installed has an empty one."""
    versions = {"wattline": __version__, "python": platform.python_version()}
    for name in ("numpy", "numba", "plotly"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    if args.json:
        print_json(versions)
    else:
        print(f"wattline {__version__}")
    return 0
