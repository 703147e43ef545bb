"""`wattline reproduce`: run the experiments of papers, beside what they claim."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from wattline.cli.arguments import add_output_arguments, positive_int
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import check_writable, notify, print_json, progress_bar

NAMES = ("zeus", "powerflow", "synergy", "hfta", "andreas", "together", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline reproduce`."""
    add = parser.add_argument
    add(
        "paper",
        nargs="?",
        default="all",
        metavar="PAPER",
        choices=NAMES,
        help=f"{', '.join(NAMES[:-1])} or all (default)",
    )
    add(
        "--data",
        metavar="FOLDER",
        help="folder with the public data (default: that of wattline data fetch, then WATTLINE_DATA);"
        " what is missing is replaced by synthetic data, labelled in every row",
    )
    add("--seeds", type=positive_int, default=3, metavar="N", help="seeds of every case (default 3)")
    cores = min(os.cpu_count() or 1, 4)
    add("--jobs", type=positive_int, default=cores, metavar="N", help="processes (default: cores, at most 4)")
    add(
        "--quick",
        action="store_true",
        help="few short runs; their figures mean nothing",
    )
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run one experiment or all, print the tables and write the page."""
    check_writable(args.html)
    progress = announce_compilation()
    from wattline.cli.simulation.reproduction_text import describe_result, print_result, print_summary
    from wattline.papers.reproductions import EXPERIMENTS, check_folder
    from wattline.papers.results import SYNTHETIC, Experiments
    from wattline.public_data.cache import list_data_folders

    progress.finish()
    if args.data:
        check_folder(Path(args.data))
    names = tuple(EXPERIMENTS) if args.paper == "all" else (args.paper,)
    found, seconds = [], {}
    for name in names:
        start_s = time.monotonic()
        with progress_bar(name, 1.0) as update:
            setting = Experiments(
                list_data_folders(args.data),
                args.seeds,
                args.quick,
                args.jobs,
                lambda done, total, update=update: update(done / max(total, 1)),  # type: ignore[misc]
            )
            found.append(EXPERIMENTS[name](setting))
        seconds[name] = time.monotonic() - start_s
        notify(f"{name}: {seconds[name]:.0f} s")
        if not args.json:
            print_result(found[-1])
        if found[-1].left_out:
            notify(f"{name} is left out: {found[-1].left_out}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    machine = f"{sum(seconds.values()):.0f} s on {os.cpu_count()} cores, load {load:.1f} at the end"
    if args.quick:
        notify("--quick: too few and too short runs, the figures mean nothing")
    if any(case.data == SYNTHETIC for one in found for case in one.cases if one.name != "together"):
        notify("rows marked SYNTHETIC ran on stand-ins: wattline data fetch all gets the public data")
    if args.html:
        from wattline.papers.reproduction_page import write_reproduction_page

        write_reproduction_page(args.html, found, args.seeds, args.quick, machine)
        notify(f"page: {args.html}")
    if args.json:
        encoded = {one.name: {**describe_result(one), "seconds": seconds[one.name]} for one in found}
        print_json({"seeds": args.seeds, "quick": args.quick, "papers": encoded})
    elif len(found) > 1:
        print_summary(found)
    notify(machine)
    return 0
