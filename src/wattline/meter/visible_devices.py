"""Which GPUs may a job use, as CUDA_VISIBLE_DEVICES says?"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def visible(text: str | None, uuids: Sequence[str], parent: Callable[[str], str | None]) -> tuple[int, ...]:
    """Places in *uuids* of the GPUs that a job sees, each once, in its order.

    *text* is CUDA_VISIBLE_DEVICES (None: not set, all of them): numbers, UUIDs or beginnings of them, and
    parts of a GPU (`MIG-…`), for which *parent* tells the UUID of the whole. As CUDA does, what comes after
    something that is not there is not seen. Two parts of one GPU are one GPU: it has one counter.
    """
    if text is None:
        return tuple(range(len(uuids)))
    found: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        place = _place(word, uuids, parent)
        if place is None:
            break
        if place not in found:
            found.append(place)
    return tuple(found)


def _place(word: str, uuids: Sequence[str], parent: Callable[[str], str | None]) -> int | None:
    if word.isdecimal():
        return int(word) if int(word) < len(uuids) else None
    whole = _whole(word, parent)
    if not whole:
        return None
    near = [place for place, uuid in enumerate(uuids) if uuid.startswith(whole)]
    return near[0] if len(near) == 1 else None


def _whole(word: str, parent: Callable[[str], str | None]) -> str | None:
    """The UUID of the GPU that *word* is, or is a part of."""
    if word.startswith("MIG-GPU-"):  # as drivers before R470 wrote it: MIG-GPU-uuid/1/0
        return word.removeprefix("MIG-").partition("/")[0]
    if word.startswith("MIG-"):
        return parent(word)
    return word if word.startswith("GPU-") else None
