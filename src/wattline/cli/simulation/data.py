"""`wattline data`: list and download the public data that papers published."""

from __future__ import annotations

import argparse
from textwrap import fill
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import add_actions, add_json_argument
from wattline.cli.output import describe_error, notify, print_json, print_table
from wattline.errors import WattlineError

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser
    from wattline.public_data.fetch import FetchedFile
    from wattline.public_data.registry import DataSet


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline data`."""
    actions = add_actions(parser)
    add_json_argument(actions.add_parser("list", help="list the data sets, their licences and their state"))
    fetch = actions.add_parser("fetch", help="download a data set and check it")
    add = fetch.add_argument
    add("name", metavar="NAME", help="a data set of wattline data list, or all")
    add("--from", dest="mirror", metavar="URL|FOLDER", help="take SET/FILE from this mirror or folder")
    add("--accept", action="store_true", help="keep files with no known checksum, and record theirs")
    add_json_argument(fetch)


def run(args: argparse.Namespace) -> int:
    """List the data sets, or fetch some."""
    return _list_sets(args) if args.action == "list" else _fetch(args)


def _list_sets(args: argparse.Namespace) -> int:
    from wattline.public_data.cache import default_data_folder
    from wattline.public_data.registry import SETS

    folder = default_data_folder()
    rows = [_describe_set(data, folder) for data in SETS.values()]
    if args.json:
        print_json({"folder": str(folder), "sets": rows})
        return 0
    for row in rows:
        state = f"{row['present']} of {len(row['files'])} files here; checksums known of {row['known']}"
        for number, text in enumerate((row["about"], f"{state}; {row['licence']}", row["source"])):
            first = "" if number else row["name"]
            print(fill(text, 80, initial_indent=f"{first:10}", subsequent_indent=" " * 10))
    notify(f"cache: {folder}")
    notify("wattline data fetch NAME downloads one, wattline data fetch all downloads all")
    return 0


def _describe_set(data: DataSet, folder: Any) -> dict[str, Any]:
    files = [
        {
            "name": file.name,
            "url": file.url,
            "sha256": file.sha256 or None,
            "present": (folder / data.name / file.name).is_file(),
        }
        for file in data.files
    ]
    return {
        "name": data.name,
        "about": data.about,
        "source": data.source,
        "licence": data.licence,
        "used_by": list(data.used_by),
        "present": sum(bool(file["present"]) for file in files),
        "known": sum(file["sha256"] is not None for file in files),
        "files": files,
    }


def _fetch(args: argparse.Namespace) -> int:
    from wattline.public_data.cache import default_data_folder
    from wattline.public_data.fetch import fetch_set
    from wattline.public_data.registry import find_sets

    found: dict[str, list[FetchedFile]] = {}
    failed: dict[str, WattlineError] = {}
    for data in find_sets(args.name):
        notify(f"{data.name}: {data.about}; source {data.source}; licence {data.licence}")
        try:
            found[data.name] = fetch_set(data, default_data_folder(), args.mirror, args.accept)
        except WattlineError as error:
            if args.name != "all":
                raise
            failed[data.name] = error  # the others may arrive
            notify(f"{data.name} failed: {error.message}")
    refused = [(name, file) for name, files in found.items() for file in files if file.state == "refused"]
    if args.json:
        rows = {name: [_encode_file(file) for file in files] for name, files in found.items()}
        print_json({"folder": str(default_data_folder()), "sets": rows, "refused": len(refused),
                    "failed": {name: describe_error(error) for name, error in failed.items()}})  # fmt: skip
    else:
        _print_files(found)
    for name, file in refused:
        notify(f"{name}/{file.name} was not kept: its SHA-256 is {file.sha256}, and none is known to compare")
    if refused:
        notify(f"  hint: wattline data fetch {args.name} --accept keeps such files and records theirs")
    return 1 if refused or failed else 0


def _print_files(found: dict[str, list[FetchedFile]]) -> None:
    rows = [
        (f"{name}/{file.name}", f"{file.bytes:,}", file.state, _describe_check(file), file.sha256[:12])
        for name, files in found.items()
        for file in files
    ]
    if rows:
        print_table(("file", "bytes", "state", "checksum", "SHA-256"), rows, right=("bytes",))


def _describe_check(file: FetchedFile) -> str:
    if file.verified:
        return "as known"
    return "not known" if file.state == "refused" else "accepted"


def _encode_file(file: FetchedFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "path": None if file.state == "refused" else str(file.path),
        "bytes": file.bytes,
        "sha256": file.sha256,
        "state": file.state,
        "checksum": _describe_check(file),
    }
