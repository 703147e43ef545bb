"""Open a trace file: plain, .gz, a tar, or one member of a tar.

The packing is recognised by the first bytes, not by the name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from wattline.errors import TraceError

_GZIP = b"\x1f\x8b"
_TAR, _TAR_AT = b"ustar", 257
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PAR1": "a Parquet file",
}
_SUFFIXES = (".gz", ".tgz", ".tar", ".csv", ".tsv", ".txt", ".trace", ".json", ".swf")


@dataclass(frozen=True, eq=False)
class ArchiveMember:
    """One text to read: its name in messages, its short name, its bytes."""

    label: str
    stem: str
    data: bytes


@dataclass(frozen=True, eq=False)
class TraceFile:
    """The contents of a path; *packed*: the members come from a tar."""

    name: str
    sha256: str
    packed: bool
    members: tuple[ArchiveMember, ...]


def open_trace_file(path: str) -> TraceFile:
    """Read and unpack *path*; `archive.tar.gz#member.csv` selects one member of a tar."""
    file, _, wanted = (path, "", "") if "#" not in path or Path(path).exists() else path.rpartition("#")
    raw = _read_bytes(file)
    data = _decompress(file, raw)
    name, sha256 = _stem(file), hashlib.sha256(raw).hexdigest()
    if data[_TAR_AT : _TAR_AT + len(_TAR)] != _TAR:
        if wanted:
            raise TraceError(file, None, f"is not a tar, so it has no member {wanted!r}")
        return TraceFile(name, sha256, False, (ArchiveMember(path, name, data),))
    members = _list_tar(file, data)
    if not wanted:
        return TraceFile(name, sha256, True, members)
    chosen = tuple(m for m in members if m.label == f"{file}#{wanted}")
    if not chosen:
        known = ", ".join(m.label.rpartition("#")[2] for m in members)
        raise TraceError(file, None, f"has no member {wanted!r}", f"its members are: {known}")
    return TraceFile(f"{name}#{chosen[0].stem}", sha256, False, chosen)


def _read_bytes(path: str) -> bytes:
    if Path(path).is_dir():
        raise TraceError(path, None, "is a directory, expected a file")
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise TraceError(path, None, f"cannot be read: {why}") from None
    if not raw:
        raise TraceError(path, None, "the file is empty")
    return raw


def _decompress(label: str, data: bytes) -> bytes:
    for magic, what in _FOREIGN.items():
        if data.startswith(magic):
            raise TraceError(label, None, f"is {what}", "unpack it, or pack it as .gz or .tar.gz")
    if not data.startswith(_GZIP):
        return data
    try:
        inflated = gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as problem:
        raise TraceError(label, None, f"the gzip data are cut short or damaged ({problem})") from None
    if not inflated:
        raise TraceError(label, None, "the file is empty")
    return inflated


def _list_tar(path: str, data: bytes) -> tuple[ArchiveMember, ...]:
    members = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for info in sorted(tar.getmembers(), key=lambda info: info.name):
                name = PurePosixPath(info.name)
                body = tar.extractfile(info) if info.isreg() and not name.name.startswith(".") else None
                if body is not None and info.size:
                    label = f"{path}#{info.name}"
                    members.append(ArchiveMember(label, _stem(info.name), _decompress(label, body.read())))
            # tarfile stops silently at a header it cannot read; after a true end there are only zeros.
            if data[tar.offset :].strip(b"\0"):
                raise tarfile.ReadError("a member's header cannot be read")
    except (tarfile.TarError, EOFError, OSError) as problem:
        raise TraceError(path, None, f"the tar is cut short or damaged ({problem})") from None
    return tuple(members)


def _stem(path: str) -> str:
    name = PurePosixPath(path).name
    while name.lower().endswith(_SUFFIXES) and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return name
