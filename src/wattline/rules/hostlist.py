"""Lists of nodes as Slurm writes them: `n[1-4,7],login2`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Bools
from wattline.errors import ConfigError
from wattline.trace.outages import match_node_names

_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_MOST = 100_000


def expand_hostlist(text: str) -> list[str]:
    """Return the names of `n[01-03,7],m2`: n01, n02, n03, n7 and m2."""
    names: list[str] = []
    for part in _split(text):
        names += _expand_part(part, text)
        if len(names) > _MOST:
            raise ConfigError(f"the list of nodes {text!r} has more than {_MOST:,} names")
    return names


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ConfigError(f"the list of nodes {text!r} has a bracket that is not closed, expected n[1-4]")
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _expand_part(part: str, text: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    numbers: list[str] = []
    for piece in match[1].split(","):
        low, dash, high = piece.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or int(high or low) - int(low) > _MOST:
            raise ConfigError(f"the list of nodes {text!r}: {piece!r} is no range, expected n[1-4,7]")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return [f"{before}{number}{rest}" for number in numbers for rest in _expand_part(after, text)]


def name_nodes(lists: Sequence[str]) -> list[str]:
    """Return all names in several lists, each once; `ALL`, `kind:a100` and empty name none."""
    words = [text for text in lists if not _is_general(text)]
    return list(dict.fromkeys(name for text in words for name in expand_hostlist(text)))


def find_nodes(text: str, nodes: Nodes, rows: dict[str, int]) -> Bools:
    """Return a mask of the *nodes* in the list *text*; *rows* is from `match_lists`."""
    mask = np.zeros(len(nodes), dtype=np.bool_)
    if text.casefold() in ("", "all", "(null)"):
        return ~mask if text.casefold() == "all" else mask
    if text.startswith("kind:"):
        kind = text.removeprefix("kind:")
        if kind not in nodes.kind.names:
            known = ", ".join(nodes.kind.names)
            raise ConfigError(f"nodes {text!r}: the cluster has no {kind}, expected one of {known}")
        return np.asarray(nodes.kind.codes == nodes.kind.names.index(kind))
    mask[[rows[name] for name in expand_hostlist(text)]] = True
    return mask


def match_lists(lists: Sequence[str], nodes: Nodes) -> tuple[dict[str, int], str]:
    """Return the row of every named node, and how names were matched; empty: by name."""
    return match_node_names(name_nodes(lists), nodes.name.tolist(), "rules")


def _is_general(text: str) -> bool:
    return text.casefold() in ("", "all", "(null)") or text.startswith("kind:")
