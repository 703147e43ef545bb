"""Folders of data sets: the cache of `wattline data fetch`, and other folders of the same layout.

A folder of data has a folder for each set, as in `zeus/summary_train.csv`. In the cache each of these also
has `SHA256SUMS`, in the format of sha256sum, and `SOURCE.txt`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SUMS = "SHA256SUMS"


def default_data_folder() -> Path:
    """Return the cache of data sets: below $XDG_CACHE_HOME, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wattline" / "data"


def list_data_folders(given: str | None) -> tuple[Path, ...]:
    """Return the folders to look for data in: *given* alone, or the cache and then $WATTLINE_DATA."""
    if given:
        return (Path(given),)
    other = os.environ.get("WATTLINE_DATA")
    return (default_data_folder(), *((Path(other),) if other else ()))


def find_folder(folders: tuple[Path, ...], name: str, *needed: str) -> Path | None:
    """Return the first of *folders*' folder *name* that has all *needed* files; None: there is none."""
    for folder in folders:
        if all((folder / name / file).is_file() for file in needed):
            return folder / name
    return None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums that are recorded in *folder*, by file."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition("  ") for line in lines)
    return {name: sha256 for sha256, _, name in pairs if name}


def write_sums(folder: Path, sums: dict[str, str]) -> None:
    """Record checksums in *folder*; the file is replaced at once."""
    text = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
    part = folder / f"{SUMS}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / SUMS)
