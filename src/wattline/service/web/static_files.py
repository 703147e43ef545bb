"""Stylesheet and scripts: read and compressed once, and kept by browsers for a year."""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from wattline.errors import NotFound

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file, as it is and compressed."""

    kind: str
    data: bytes
    compressed: bytes


class StaticFiles:
    """The files of a folder. Their addresses have a version, as they never change under one address.

    Scripts import each other by relative addresses, so the version is a folder and that of all files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> dict[str, StaticFile]:
        """The files by name."""
        found = {}
        for path in sorted(self._folder.iterdir()):
            if path.suffix in _TYPES:
                data = path.read_bytes()
                found[path.name] = StaticFile(_TYPES[path.suffix], data, gzip.compress(data, 9, mtime=0))
        return found

    @cached_property
    def version(self) -> str:
        """A hash of all files."""
        total = hashlib.sha256()
        for name, file in self.files.items():
            total.update(name.encode() + file.data)
        return total.hexdigest()[:12]

    def address(self, name: str) -> str:
        """Return the address of a file, without the base path."""
        if name not in self.files:
            raise KeyError(name)
        return f"/static/{self.version}/{name}"

    def respond(self, request: Request, version: str, name: str) -> Response:
        """Return a file; of another version it is not kept."""
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"there is no file {name!r}")
        kept = "public, max-age=31536000, immutable" if version == self.version else "no-store"
        headers = {"Cache-Control": kept, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(file.compressed, media_type=file.kind, headers=headers)
        return Response(file.data, media_type=file.kind, headers=headers)


STATIC = StaticFiles(Path(__file__).parent / "static")
