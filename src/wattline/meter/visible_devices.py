"""Selection of the GPUs that CUDA_VISIBLE_DEVICES leaves visible to a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def select_visible_devices(
    text: str | None, uuids: Sequence[str], find_parent: Callable[[str], str | None]
) -> tuple[int, ...]:
    """Return the indices in *uuids* of the GPUs that a job sees, each once, in the job's order.

    *text* is CUDA_VISIBLE_DEVICES (None: not set, all GPUs): indices, UUIDs or unique prefixes of them, and
    MIG instances (`MIG-…`), for which *find_parent* returns the UUID of the GPU. As in CUDA, entries after an
    invalid one are ignored. Two MIG instances of a GPU count as one GPU, which has one energy counter.
    """
    if text is None:
        return tuple(range(len(uuids)))
    indices: list[int] = []
    for entry in (part.strip() for part in text.split(",")):
        index = _find_index(entry, uuids, find_parent)
        if index is None:
            break
        if index not in indices:
            indices.append(index)
    return tuple(indices)


def _find_index(entry: str, uuids: Sequence[str], find_parent: Callable[[str], str | None]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    prefix = _find_gpu_uuid(entry, find_parent)
    if not prefix:
        return None
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(prefix)]
    return matches[0] if len(matches) == 1 else None


def _find_gpu_uuid(entry: str, find_parent: Callable[[str], str | None]) -> str | None:
    """Return the UUID, or its prefix, of the GPU that *entry* names or is a MIG instance of."""
    if entry.startswith("MIG-GPU-"):  # the format of drivers before R470: MIG-GPU-uuid/1/0
        return entry.removeprefix("MIG-").partition("/")[0]
    if entry.startswith("MIG-"):
        return find_parent(entry)
    return entry if entry.startswith("GPU-") else None
