"""A heatmap as a small PNG with a palette, in a data URI."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int, int]  # red, green, blue, opacity; each from 0 to 255
_SCALE = (  # Cividis in five steps, safe for colour-blind readers
    *((0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102), (254, 232, 56)),
)


def encode_percent(percent: NDArray[np.uint8], palette: Sequence[Colour]) -> str:
    """Return a data URI of an image with one pixel for each value from 0 to 100."""
    rows, columns = percent.shape
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each line begins with its filter, 0
    lines[:, 1:] = percent
    parts = (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", bytes(value for colour in palette for value in colour[:3])),
        _chunk(b"tRNS", bytes(colour[3] for colour in palette)),
        _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
        _chunk(b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def build_colour_scale() -> list[Colour]:
    """Return the colours of 0 to 100 percent."""
    at = np.linspace(0, 1, len(_SCALE))
    columns = [np.interp(np.linspace(0, 1, 101), at, [colour[n] for colour in _SCALE]) for n in range(3)]
    return [(int(r), int(g), int(b), 255) for r, g, b in zip(*columns, strict=True)]


def build_pale_scale() -> list[Colour]:
    """Return light grey from transparent to opaque, to be drawn over another scale."""
    return [(217, 217, 217, round(255 * percent / 100)) for percent in range(101)]
