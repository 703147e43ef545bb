"""Download of data sets: over HTTP or from a folder, checked by SHA-256, never half written.

A file arrives as `NAME.part` and gets its name only after its checksum is right. A download that breaks off
leaves its part, and the next one continues there, if the checksum of the file is known: without one, two
versions could be joined. A wrong checksum leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from wattline.errors import ConfigError, NotFound, Unreachable, WrongChecksum
from wattline.public_data.cache import hash_file, read_sums, write_sums
from wattline.public_data.registry import DataFile, DataSet

_BLOCK = 1 << 16
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class FetchedFile:
    """A file in the cache. *state* is `fetched`, `present`, or `refused`: its checksum was not accepted.

    *verified*: the registry knew the checksum; otherwise the user accepted it.
    """

    name: str
    path: Path
    bytes: int
    sha256: str
    state: str
    verified: bool


def fetch_set(
    data: DataSet,
    folder: Path,
    mirror: str | None = None,
    accept: bool = False,
    progress: Callable[[str, int], None] = lambda name, size: None,
) -> list[FetchedFile]:
    """Bring all files of *data* into *folder*/NAME and return them.

    *mirror* is an address or a folder that has NAME/FILE. A file with no known checksum is kept only with
    *accept*; its checksum is recorded, and later downloads must have it.
    """
    home = folder / data.name
    home.mkdir(parents=True, exist_ok=True)
    try:
        found = [_fetch_file(data, file, home, mirror, accept, progress) for file in data.files]
        if any(one.state != "refused" for one in found):
            (home / "SOURCE.txt").write_text(
                f"{data.about}\nsource: {data.source}\nlicence: {data.licence}\n", encoding="utf-8"
            )
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            home.rmdir()
    return found


def _fetch_file(
    data: DataSet,
    file: DataFile,
    home: Path,
    mirror: str | None,
    accept: bool,
    progress: Callable[[str, int], None],
) -> FetchedFile:
    sums, path = read_sums(home), home / file.name
    expected = file.sha256 or sums.get(file.name, "")
    if path.is_file() and expected and hash_file(path) == expected:
        return FetchedFile(
            file.name, path, path.stat().st_size, expected, "present", verified=bool(file.sha256)
        )
    part = home / f"{file.name}.part"
    address = _choose_address(data, file, mirror)
    if urlsplit(address).scheme in ("http", "https"):
        _download(address, part, resume=bool(expected), report=lambda size: progress(file.name, size))
    else:
        _copy(Path(address), part)
    size, sha256 = part.stat().st_size, hash_file(part)
    if expected and sha256 != expected:
        part.unlink()
        known = "the registry" if file.sha256 else f"{home / 'SHA256SUMS'}, where it was accepted before"
        raise WrongChecksum(
            f"{address}: SHA-256 is {sha256}, expected {expected} of {known}; the download was deleted",
            "try again, or take another source with --from URL|FOLDER",
        )
    if not expected and not accept:
        part.unlink()
        return FetchedFile(file.name, path, size, sha256, "refused", verified=False)
    part.replace(path)
    write_sums(home, {**sums, file.name: sha256})
    return FetchedFile(file.name, path, size, sha256, "fetched", verified=bool(file.sha256))


def _choose_address(data: DataSet, file: DataFile, mirror: str | None) -> str:
    if mirror is None:
        return file.url
    if urlsplit(mirror).scheme in ("http", "https"):
        return f"{mirror.rstrip('/')}/{data.name}/{quote(file.name)}"
    if "://" in mirror:
        raise ConfigError(f"--from is {mirror!r}, expected http://, https:// or a folder")
    return str(Path(mirror) / data.name / file.name)


def _copy(source: Path, part: Path) -> None:
    if not source.is_file():
        raise NotFound(f"{source} does not exist, expected a folder with SET/FILE", "wattline data list")
    try:
        shutil.copyfile(source, part)
    except OSError:
        part.unlink(missing_ok=True)
        raise


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but from https to nothing weaker."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """See the base class."""
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in ("http", "https") or (before == "https" and after != "https"):
            fp.close()
            raise Unreachable(f"{req.full_url} redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str, part: Path, *, resume: bool, report: Callable[[int], None]) -> None:
    """Write *url* to *part*, after what is there already if *resume*; raise if it is not complete."""
    have = part.stat().st_size if resume and part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "wattline", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.build_opener(_SafeRedirects).open(request, timeout=_TIMEOUT_S) as answer:
            if answer.status != 206 or not _continues(answer.headers.get("Content-Range", ""), have):
                have = 0  # the server sends the whole file
            length = answer.headers.get("Content-Length")
            with part.open("ab" if have else "wb") as file:
                while block := answer.read(_BLOCK):
                    file.write(block)
                    report(file.tell())
        size = part.stat().st_size
        if length is not None and size != have + int(length):
            raise http.client.IncompleteRead(b"", have + int(length) - size)
    except urllib.error.HTTPError as error:
        error.close()
        _drop_part(part, keep=resume and error.code != 416)
        if error.code == 416:  # the part is longer than the file
            raise Unreachable(f"{url}: its part did not fit and was deleted", "try again") from None
        hint = "its public home may have moved; --from URL|FOLDER takes a mirror"
        if error.code in (404, 410):
            raise NotFound(f"{url}: HTTP {error.code} {error.reason}", hint) from None
        raise Unreachable(f"{url}: HTTP {error.code} {error.reason}", hint) from None
    except (OSError, http.client.HTTPException) as error:
        _drop_part(part, keep=resume)
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        hint = (
            "the next fetch continues it" if resume and part.exists() else "try again, or --from URL|FOLDER"
        )
        raise Unreachable(f"{url}: the download broke off: {reason}", hint) from None
    except BaseException:
        _drop_part(part, keep=resume)
        raise


def _continues(content_range: str, have: int) -> bool:
    """Return whether `bytes 100-199/200` begins at *have*."""
    return content_range.startswith(f"bytes {have}-")


def _drop_part(part: Path, *, keep: bool) -> None:
    if not keep or (part.is_file() and part.stat().st_size == 0):
        part.unlink(missing_ok=True)
