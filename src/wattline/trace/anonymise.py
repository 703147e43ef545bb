"""Make a trace that can be shared: pseudonyms for all names, times from the first submission.

A pseudonym is a keyed hash, so that equal words stay equal, also in other files with the same secret.
Numbers in a name or a command line become a running number: jobs of a sweep keep one stem.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.errors import ConfigError, did_you_mean
from wattline.trace.reader import Trace
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.recorded_nodes import count_nodes

NAMED = (
    *("id", "user", "team", "name", "key", "fuse", "array", "model", "status", "partition", "qos"),
    "reservation",
)
"""The columns of words that are replaced."""

STATES = frozenset(
    (
        *("completed", "failed", "cancelled", "timeout", "out_of_memory", "node_fail", "deadline", "pass"),
        *("preempted", "running", "pending", "suspended", "boot_fail", "completing", "requeued", "revoked"),
        *("succeeded", "killed", "terminated", "interrupted", "partial", "waiting"),
    )
)
"""Words of the column `status` that are kept."""

_STEMS = ("name", "key")  # their numbers distinguish the jobs of a sweep
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIGITS = 12


def anonymise(trace: Trace, secret: bytes, keep: Collection[str] = ()) -> Trace:
    """Return *trace* without names, except in the columns *keep*; it simulates like the original.

    GPU kinds, numbers and usual states stay; lists of nodes become their number; dates are lost.
    """
    for column in keep:
        if column not in NAMED:
            hint = did_you_mean(column, NAMED) or f"the columns are: {', '.join(NAMED)}"
            raise ConfigError(f"unknown column {column!r} to keep", hint)
    names = _Pseudonyms(secret, keep)
    first_s = float(trace.jobs.submit_s.min())
    return Trace(
        _rename_jobs(trace.jobs, names, first_s),
        trace.format,
        "anonymised",
        "",
        counts=trace.counts,
        recorded=None if trace.recorded is None else _rename_records(trace, trace.recorded, names, first_s),
    )


def _rename_jobs(jobs: Jobs, names: _Pseudonyms, first_s: float) -> Jobs:
    ids = np.empty(len(jobs), dtype=np.object_)
    ids[:] = names.replace("id", jobs.id.tolist())
    words: dict[str, Any] = {
        name: names.relabel(name, getattr(jobs, name)) for name in ("user", "team", "key", "fuse", "model")
    }
    return replace(
        jobs,
        id=ids,
        submit_s=jobs.submit_s - first_s,
        deadline_s=jobs.deadline_s - first_s,
        status=names.relabel("status", jobs.status, STATES),
        **words,
    )


def _rename_records(
    trace: Trace, recorded: RecordedSchedule, names: _Pseudonyms, first_s: float
) -> RecordedSchedule:
    words: dict[str, Any] = {
        name: names.relabel(name, getattr(recorded, name))
        for name in ("name", "array", "partition", "qos", "reservation")
    }
    words["dependency"] = _rename_dependencies(trace.jobs, recorded, names)
    counts = [count_nodes(text) for text in recorded.nodes.names]
    nodes = Labels.of(counts[code] for code in recorded.nodes.codes.tolist())
    return replace(recorded.shift(-first_s), nodes=nodes, **words)


def _rename_dependencies(jobs: Jobs, recorded: RecordedSchedule, names: _Pseudonyms) -> Labels:
    """Return the conditions of jobs with the pseudonyms of the ids and arrays that they name."""
    if not any(recorded.dependency.names):
        return recorded.dependency
    ids = jobs.id.tolist()
    arrays = [name for name in recorded.array.names if name]
    new = dict(zip(ids, names.replace("id", ids), strict=True))
    new |= dict(zip(arrays, names.replace("array", arrays), strict=True))

    def rename(match: re.Match[str]) -> str:
        word = match[1]
        return f":{new.get(word) or names.replace('id', [word])[0]}"

    texts = [re.sub(r":([\w./-]+)", rename, text) for text in recorded.dependency.names]
    return Labels(recorded.dependency.codes, tuple(texts))


class _Pseudonyms:
    """Replacement of words, column by column."""

    def __init__(self, secret: bytes, keep: Collection[str]) -> None:
        self._secret = secret
        self._keep = keep

    def relabel(self, column: str, labels: Labels, usual: Collection[str] = ()) -> Labels:
        """Return *labels* with their words replaced, except *usual* ones in any case."""
        if column in self._keep:
            return labels
        names = [name for name in labels.names if name and name.casefold() not in usual]
        new = dict(zip(names, self.replace(column, names), strict=True))
        return Labels(labels.codes, tuple(new.get(name, name) for name in labels.names))

    def replace(self, column: str, words: Sequence[str]) -> list[str]:
        """Return a pseudonym for each of *words*, which are distinct."""
        if column in self._keep:
            return list(words)
        stems = [_NUMBER.sub("#", word) for word in words] if column in _STEMS else list(words)
        digits = _DIGITS
        while True:
            hashes = {stem: self._hash(column, stem)[:digits] for stem in stems}
            if len(set(hashes.values())) == len(hashes):
                break
            digits += 4
        counts: dict[str, int] = {}
        pseudonyms = []
        for stem in stems:
            counts[stem] = counts.get(stem, 0) + 1
            number = f"-{counts[stem]}" if column in _STEMS else ""
            pseudonyms.append(f"{column}-{hashes[stem]}{number}")
        return pseudonyms

    def _hash(self, column: str, word: str) -> str:
        return hmac.new(self._secret, f"{column}\0{word}".encode(), hashlib.sha256).hexdigest()
