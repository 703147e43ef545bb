"""`wattline schema`: print the JSON Schema of a job file, for editors.

# yaml-language-server: $schema=./job.schema.json        (first line of a job file)
"""

from __future__ import annotations

import argparse
from importlib.resources import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline schema`."""
    parser.add_argument("document", metavar="DOCUMENT", choices=("job",), help="job: a job file")


def run(args: argparse.Namespace) -> int:
    """Print the schema as it is shipped, which needs no package besides wattline."""
    print(files("wattline").joinpath("jobfile", "job.schema.json").read_text(encoding="utf-8"), end="")
    return 0
