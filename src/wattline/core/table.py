"""Tables of equally long, read-only columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wattline.errors import InputError, WattlineError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64] | NDArray[np.bool_] | slice


@dataclass(frozen=True, eq=False, slots=True)
class Labels:
    """Column of strings, each distinct string stored once: row i is `names[codes[i]]`."""

    codes: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, words: Iterable[str]) -> Labels:
        """Build a column from *words*; names are in order of first use."""
        seen: dict[str, int] = {}
        codes = [seen.setdefault(word, len(seen)) for word in words]
        return cls(np.array(codes, dtype=np.int64), tuple(seen))

    @classmethod
    def repeat(cls, word: str, count: int) -> Labels:
        """Build *count* rows of the same *word*."""
        return cls(np.zeros(count, dtype=np.int64), (word,))

    def __post_init__(self) -> None:
        self.codes.setflags(write=False)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Rows) -> Labels:
        return Labels(self.codes[rows], self.names)

    def concatenate(self, more: Labels) -> Labels:
        """Return these rows followed by *more*; existing names keep their codes, new ones come after them."""
        seen = {name: code for code, name in enumerate(self.names)}
        codes = np.array([seen.setdefault(name, len(seen)) for name in more.names], dtype=np.int64)
        return Labels(np.concatenate((self.codes, codes[more.codes])), tuple(seen))

    def word(self, row: int) -> str:
        """Return the string of one row."""
        return self.names[int(self.codes[row])]

    def words(self) -> list[str]:
        """Return the strings of all rows."""
        names = self.names
        return [names[code] for code in self.codes.tolist()]


_DTYPES: dict[Any, np.dtype[Any]] = {
    "Ints": np.dtype(np.int64),
    "Floats": np.dtype(np.float64),
    "Bools": np.dtype(np.bool_),
}
INT64, FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


def check_array(name: str, array: Any, dtype: np.dtype[Any], ndim: int, error: type[WattlineError]) -> None:
    """Raise *error* unless *array* is contiguous with this type and rank, as compiled code requires."""
    same = type(array) is np.ndarray and (array.dtype is dtype or array.dtype == dtype)  # `is` is quicker
    if same and array.ndim == ndim and array.flags.c_contiguous:
        return
    found = (
        f"{array.dtype} with {array.ndim} dimensions"
        if isinstance(array, np.ndarray)
        else type(array).__name__
    )
    raise error(f"{name} is {found}, expected a contiguous array of {dtype} with {ndim}")


class Table:
    """Abstract base of dataclasses with equally long, read-only columns as fields."""

    __slots__ = ()

    def __post_init__(self) -> None:
        length = -1
        for field in fields(self):  # type: ignore[arg-type]
            column = getattr(self, field.name)
            if field.type in _DTYPES:
                check_array(f"{type(self).__name__}.{field.name}", column, _DTYPES[field.type], 1, InputError)
            if length not in (-1, len(column)):
                raise InputError(
                    f"{type(self).__name__}.{field.name} has {len(column)} rows, expected {length}"
                )
            length = len(column)
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def concatenate(self, more: Self) -> Self:
        """Return these rows followed by *more*."""
        columns = {}
        for f in fields(self):  # type: ignore[arg-type]
            ours, theirs = getattr(self, f.name), getattr(more, f.name)
            labels = isinstance(ours, Labels)
            columns[f.name] = ours.concatenate(theirs) if labels else np.concatenate((ours, theirs))
        return type(self)(**columns)

    def take(self, rows: Rows) -> Self:
        """Return the table of *rows* (indices, a mask or a slice), in this order."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self)}  # type: ignore[arg-type]
        return type(self)(**columns)
