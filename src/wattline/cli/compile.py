"""`wattline compile`: compile all kernels once, at installation."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument
from wattline.cli.output import notify, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline compile`."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Compile what is not in the cache."""
    from wattline.cli.compile_progress import CompileProgress
    from wattline.jit import compile_kernels, count_all_kernels, on_kernel

    progress = CompileProgress(count_all_kernels())
    on_kernel(progress)
    compile_kernels()
    result = {"kernels": progress.ready, "compiled": progress.compiled}
    progress.finish()
    if args.json:
        print_json(result)
    elif not result["compiled"]:
        notify(f"all {result['kernels']} kernels are compiled already")
    return 0
