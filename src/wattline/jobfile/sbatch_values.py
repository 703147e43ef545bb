"""Values of sbatch options: times, sizes, GPUs, arrays and dependencies."""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?|(\d+)(?::(\d+))?(?::(\d+))?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTkmgt]?)[Bb]?")
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_WHEN = {"afterok": "success", "afterany": "end"}


def parse_time_s(text: str) -> float | None:
    """Return the seconds of a time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None: no limit."""
    if text.casefold() in ("0", "infinite", "unlimited"):
        return None
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError("expected minutes, or a time such as 4:00:00 or 1-12:00:00")
    if found[1] is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
        return float(86_400 * days + 3600 * hours + 60 * minutes + seconds)
    first, second, third = (None if part is None else int(part) for part in found.groups()[4:])
    assert first is not None
    if third is not None:
        return float(3600 * first + 60 * (second or 0) + third)
    return float(60 * first + (second or 0))


def parse_mib(text: str) -> float:
    """Return the MiB of a size, by default in MiB, such as 4000, 32G or 1.5T."""
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError("expected a size such as 4000 (MiB) or 32G")
    return float(found[1]) * _MIB[found[2].casefold()]


def parse_gpus(text: str) -> tuple[str, int]:
    """Return kind and number of GPUs of `2`, `a100:2`, `gpu:2` or `gpu:a100:2`; an empty kind is any."""
    words = text.split(":")
    if words[0] == "gpu":
        words = words[1:] or ["1"]
    count = words.pop() if words and words[-1].isdecimal() else "1"
    if len(words) > 1 or "," in text or not count.isdecimal():
        raise ValueError("expected a number of GPUs such as 2, a100:2 or gpu:a100:2")
    return (words[0].casefold() if words else ""), int(count)


def parse_count(text: str) -> int:
    """Return a number of at least 1; of a range such as 1-4 both ends must be equal."""
    first, _, last = text.partition("-")
    if not first.isdecimal() or int(first) < 1 or (last and last != first):
        raise ValueError("expected one whole number of at least 1")
    return int(first)


def parse_array(text: str) -> tuple[list[int], int | None]:
    """Return the indices of `0-15`, `1,3,5` or `0-15:4`, and the limit after `%`; None: no limit."""
    indices, percent, limit = text.partition("%")
    if percent and (not limit.isdecimal() or int(limit) < 1):
        raise ValueError("expected a whole number of at least 1 after %")
    numbers: list[int] = []
    for part in indices.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part)
        if not found or (found[3] is not None and int(found[3]) == 0):
            raise ValueError("expected indices such as 0-15, 1,3,5 or 0-15:4, and a limit such as %4")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1, int(found[3] or 1))
    if not numbers:
        raise ValueError("has no indices")
    return list(dict.fromkeys(numbers)), int(limit) if percent else None


def parse_dependencies(text: str) -> list[str]:
    """Return the dependencies of `afterok:12:13,afterany:14` as a job file has them."""
    if "?" in text:
        raise ValueError("any of several jobs is enough, which has no counterpart")
    result = []
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if kind not in _WHEN or not jobs or not all(job.isdecimal() for job in jobs):
            raise ValueError("expected afterok:JOB or afterany:JOB, with numbers of Wattline's jobs")
        result += [f"{job}:{_WHEN[kind]}" for job in jobs]
    return result


def parse_signal(text: str) -> tuple[str, int | None]:
    """Return the name of the signal in `USR1@120` or `B:10@60`, and the seconds; None: not given."""
    import signal

    name, at, seconds = text.rpartition(":")[2].partition("@")
    if name.isdecimal():
        try:
            name = signal.Signals(int(name)).name
        except ValueError:
            raise ValueError(f"there is no signal {name}") from None
    if at and not seconds.isdecimal():
        raise ValueError("expected seconds after @")
    return f"SIG{name.upper().removeprefix('SIG')}", int(seconds) if at else None
