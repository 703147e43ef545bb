"""GPUs and their kinds in Slurm's lists of resources: TRES (`gres/gpu:a100=2`) and GRES (`gpu:a100:2`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wattline.core.table import Bools, Ints, Labels
from wattline.measurement.gpu_names import find_mig_slice, resolve_gpu_kind
from wattline.trace.field_parser import SHARED_GPU, WITHOUT_GPUS, Chunk

COLUMNS = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")
"""The columns that name GPUs; the first one that does counts."""

_GPU = ("gpu", "7696487")  # old versions print the number that stands for gpu
_NUMBERED = re.compile(r"\d+=\d+(?:,\d+=\d+)*")
_SHARE = re.compile(r"(?:^|,)(?:gres[/:])?(?:shard|mps)\b")
_MIG = "on MIG slices, each counted as a GPU of its own kind"
_PER_NODE = "with GPUs from ReqGRES, times the number of nodes"
_MOST = 9  # digits of a count


def read_gpus(chunk: Chunk) -> tuple[Ints, Labels, Bools]:
    """Return GPUs, their kinds, and which jobs have none; ignore those that have other resources.

    Reject lists that are cut off or unreadable. A job without any resources may not have started. One that
    has only shards of a GPU (gres/shard, gres/mps) counts with a whole one, like shares in other formats.
    """
    gpus = np.zeros(len(chunk), dtype=np.int64)
    kinds = np.full(len(chunk), "", dtype=np.object_)
    unreadable, listed = np.zeros((2, len(chunk)), dtype=np.bool_)
    for name in COLUMNS:
        if not chunk.has(name):
            continue
        lists = Labels.of(chunk.words(name))
        listed |= np.array([text != "" for text in lists.names], dtype=np.bool_)[lists.codes]
        parsed = [_parse(text) for text in lists.names]
        bad = np.array([isinstance(result, str) for result in parsed], dtype=np.bool_)[lists.codes]
        bad &= (gpus == 0) & ~chunk.ignored
        unreadable |= bad
        _reject(chunk, name, bad, lists, parsed)
        found = [(1, "") if isinstance(result, str) else result for result in parsed]
        counts = np.array([count for count, _ in found], dtype=np.int64)[lists.codes]
        new = (gpus == 0) & (counts > 0)
        if name == "ReqGRES":
            counts = counts * _count_nodes(chunk, new)
        gpus = np.where(new, counts, gpus)
        shared = np.array([_SHARE.search(text) is not None for text in lists.names], dtype=np.bool_)
        shared = shared[lists.codes] & (gpus == 0) & ~bad
        chunk.repair(shared & ~chunk.ignored, SHARED_GPU)
        gpus = np.where(shared, 1, gpus)
        kinds[new] = np.array([kind for _, kind in found], dtype=np.object_)[lists.codes][new]
    none = (gpus == 0) & ~unreadable
    chunk.ignore(none & listed, WITHOUT_GPUS)
    kind = Labels.of(kinds.tolist())
    sliced = [any(find_mig_slice(word) for word in name.split("|")) for name in kind.names]
    chunk.repair(np.array(sliced, dtype=np.bool_)[kind.codes], _MIG)
    return np.maximum(gpus, 1), kind, none


def _reject(
    chunk: Chunk, name: str, bad: Bools, lists: Labels, parsed: Sequence[tuple[int, str] | str]
) -> None:
    chunk.reject(bad, lambda row: f"{name} is {lists.word(row)!r}, {parsed[int(lists.codes[row])]}")


def _count_nodes(chunk: Chunk, rows: Bools) -> Ints:
    """Return the nodes of each job, as requests are per node; 1 where they are not recorded."""
    name = next((n for n in ("NNodes", "AllocNodes", "ReqNodes") if chunk.has(n)), "")
    if not name:
        return np.ones(len(chunk), dtype=np.int64)
    nodes = np.maximum(chunk.whole(name, "a whole number of nodes", 0, {"": 1.0}), 1)
    chunk.repair(rows & (nodes > 1), _PER_NODE)
    return nodes


def _parse(text: str) -> tuple[int, str] | str:
    """Return number and kinds of GPUs, or what was expected.

    Only typed entries count (`gres/gpu=4,gres/gpu:a100=4` are 4), if there are any.
    """
    if text.endswith("+"):  # in columns of fixed width
        return "cut off, expected the whole list: use sacct -P, or a wider column as in AllocTRES%80"
    if _NUMBERED.fullmatch(text):
        return "expected names of resources as in gres/gpu=2, not their numbers"
    bare = 0
    typed: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, equals, count = item.strip().partition("=")
        words = re.sub(r"^gres[/:]", "", name).split(":")
        if words[0] not in _GPU or (equals and words[0] == name):
            continue
        if not equals:
            count = words.pop() if len(words) > 1 and words[-1].isdecimal() else "1"
        if not count.isdecimal() or len(count) > _MOST:
            return "expected a number of GPUs as in gres/gpu:a100=2"
        kind = resolve_gpu_kind(":".join(words[1:]))
        if kind:
            typed[kind] = typed.get(kind, 0) + int(count)
        else:
            bare += int(count)
    typed = {kind: count for kind, count in typed.items() if count}
    return (sum(typed.values()), "|".join(sorted(typed))) if typed else (bare, "")
