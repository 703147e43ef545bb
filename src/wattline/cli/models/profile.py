"""`wattline profile -- COMMAND`: how does a job's speed depend on cores and memory?"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from wattline.cli.models.workload_data import finite
from wattline.cli.output import bar, show_error, show_json, tell
from wattline.cli.output_check import claim
from wattline.errors import ConfigError, ProfileError
from wattline.grid import grid
from wattline.measurement.devices import DEVICES
from wattline.measurement.points import write_profile
from wattline.measurement.storage import storage
from wattline.models.demand import Demand
from wattline.profiler.core_sweep import MEMORY_SHARES, Point, Sweep, between, profile
from wattline.profiler.run import STEP_PATTERN, Job, Limits, NoSteps, Patience, limits, measure, shown

KEPT = 0.98
"""Of the best speed: as many cores and as much memory are enough."""

_FORMAT = 1
_STUDENT_95 = 2.26
_FILES = 100  # a data set of so many files has a sample in each


@dataclass(frozen=True)
class _Data:
    """What a job reads: GiB in all, KiB of a sample, MiB per second of the storage it is on."""

    dataset_gib: float
    sample_kib: float
    storage_mib_s: float


def run(args: argparse.Namespace) -> int:
    """Measure what is not yet known, save after every point, and say what it means."""
    job = Job(tuple(args.words), float(args.batch), args.step_pattern or STEP_PATTERN)
    patience = Patience(args.warmup, args.seconds, args.precision, args.first_step, args.grace)
    header = {
        "command": list(job.command),
        "model": args.model or _name(job.command),
        "gpu": (args.gpu or _gpu_kind()).casefold(),
        "gpus": args.gpus,
        "batch": args.batch,
    }
    state = Path(f"{args.out}.state")
    claim(args.out, str(state))
    points = [] if args.fresh else _resumed(Path(args.out), state, header)
    try:
        with limits() as limit, _stopped_with_us():
            sweep = Sweep(_grid(args, limit), args.threshold, args.points)
            data = _data(args)
            _measure(args, job, patience, limit, sweep, points, header, data)
    except NoSteps as error:
        show_error(error, args.json)
        return 124
    found = _Found(header, sweep, points, data, str(limit), args.out)
    if args.json:
        show_json(found.data())
    else:
        print(found.text())
    return 0


def _measure(
    args: argparse.Namespace,
    job: Job,
    patience: Patience,
    limit: Limits,
    sweep: Sweep,
    points: list[Point],
    header: dict[str, Any],
    data: _Data | None,
) -> None:
    """Fill *points*, and save them after each."""
    cores = f"{sweep.grid[0]:g} to {sweep.grid[-1]:g} cores"
    tell(f"profiling {shown(job.command)} with {cores}, at most {sweep.points} points; limited by {limit}")
    if points:
        tell(f"going on: {len(points)} points are known from {args.out}.state")
    with bar("profiling", sweep.points) as show:
        while (cpus := sweep.next_cpus(_speeds(points))) is not None:
            point = measure(job, cpus, limit, patience, partial(_add, show, len(points)))
            points.append(point)
            _save(Path(args.out), header, points, data)
            show(len(points))
            tell(f"  {_cores(cpus)}: {_speed(point)}, {point.steps} steps")
    _save(Path(args.out), header, points, data)  # what was measured before may get another memory axis


def _add(show: Callable[[float], None], done: int, share: float) -> None:
    show(done + share)


def _speeds(points: Sequence[Point]) -> dict[float, float]:
    return {p.cpus: p.samples_s for p in points}


# What is asked


def _name(command: Sequence[str]) -> str:
    """What to call a command: its script, or its program."""
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem


def _gpu_kind(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """The kind of GPU in this machine, as the driver tells it; cpu: there is none."""
    for file in sorted(drivers.glob("*/information")):
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.startswith("Model:"):
                name = line.removeprefix("Model:").strip().casefold()
                words = name.replace("-", " ").split()
                return next((kind for kind in DEVICES if kind in words), name)
    return "cpu"


def _grid(args: argparse.Namespace, limit: Limits) -> tuple[float, ...]:
    most = args.cpus or len(limit.cores)
    if most > len(limit.cores):
        raise ConfigError(f"--cpus is {most}, but this process may use {len(limit.cores)} cores")
    if not args.grain > 0:
        raise ConfigError(f"--grain is {args.grain:g}, expected a number of cores above 0")
    if args.grain % 1 and limit.cgroup is None:
        raise ConfigError(
            "parts of a core can only be given by a cgroup, and none can be made here",
            "start under `systemd-run --user --scope -p Delegate=yes`, or leave out --grain",
        )
    return tuple(args.grain * (i + 1) for i in range(math.floor(most / args.grain + 1e-9))) or (most,)


def _data(args: argparse.Namespace) -> _Data | None:
    """What the memory axis follows from; None: nobody said."""
    dataset_gib, sample_kib = args.dataset, args.sample and args.sample * 2**20
    if args.data is not None:
        sizes = _sizes(Path(args.data))
        dataset_gib = dataset_gib or sum(sizes) / 2**30
        if sample_kib is None and len(sizes) < _FILES:
            raise ConfigError(f"{args.data} has {len(sizes)} files, too few to be samples: say --sample 110K")
        sample_kib = sample_kib or sum(sizes) / 1024 / len(sizes)
    if dataset_gib is None and sample_kib is None:
        tell("only cores: the memory axis is derived if you say --data DIR, or --dataset and --sample")
        return None
    if dataset_gib is None or sample_kib is None:
        missing = "--sample" if sample_kib is None else "--dataset"
        raise ConfigError(f"{missing} is missing: memory needs both the size of the data set and of a sample")
    if min(dataset_gib, sample_kib) <= 0:
        raise ConfigError("the data set and a sample must be larger than nothing")
    _beware(dataset_gib)
    if args.storage is not None and not args.storage > 0:
        raise ConfigError("--storage is 0, expected a bandwidth such as 500MB/s")
    if args.storage is not None:
        return _Data(dataset_gib, sample_kib, args.storage)
    folder = Path(args.data or ".")
    found = storage(
        folder if folder.is_dir() else folder.parent, time.perf_counter, again=args.measure_storage
    )
    how = "remembered (--measure-storage measures it again)" if found.remembered else "measured"
    tell(f"storage: {found.mib_s:.4g} MiB/s of {found.device}, {how}")
    return _Data(dataset_gib, sample_kib, found.mib_s)


def _sizes(data: Path) -> list[int]:
    """Bytes of all files under *data*."""
    if not data.exists():
        raise ConfigError(f"{data}: no such file or folder")
    files = [data] if data.is_file() else (Path(at, name) for at, _, names in os.walk(data) for name in names)
    sizes = [file.stat().st_size for file in files if file.is_file()]
    if not sum(sizes):
        raise ConfigError(f"{data}: has no data in it")
    return sizes


def _beware(dataset_gib: float) -> None:
    try:
        memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, OSError, ValueError):
        return
    if dataset_gib > memory_gib:
        tell(
            f"beware: {dataset_gib:.4g} GiB of data are more than the {memory_gib:.4g} GiB of this machine,"
            " so that nothing can be measured with enough memory"
        )


@contextmanager
def _stopped_with_us() -> Iterator[None]:
    """Who is told to end, ends its job first."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# What is kept


def _resumed(out: Path, state: Path, header: dict[str, Any]) -> list[Point]:
    """The points of an earlier start with the same command; another command's are an error."""
    again = "give another --out, or --fresh to throw them away"
    if not state.exists():
        if out.exists():
            raise ProfileError(str(out), None, "exists, and no profiling that stopped is known of it", again)
        return []
    try:
        found = json.loads(state.read_text("utf-8"))
        points = [
            Point(float(cpus), float(samples_s), math.inf if stderr is None else float(stderr), int(steps))
            for cpus, samples_s, stderr, steps in found.pop("points")
        ]
        version = found.pop("format")
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
        raise ProfileError(str(state), None, f"is no state of wattline profile: {problem!r}", again) from None
    if version != _FORMAT:
        raise ProfileError(str(state), None, f"is of format {version}, expected {_FORMAT}", again)
    if found != header:
        name = next(name for name in header if found.get(name) != header[name])
        was, now = (shown(h[name]) if name == "command" else h.get(name) for h in (found, header))
        raise ProfileError(str(out), None, f"holds measurements of another {name}: {was}, not {now}", again)
    return points


def _save(out: Path, header: dict[str, Any], points: Sequence[Point], data: _Data | None) -> None:
    """The state first: a table without one could not be gone on with."""
    state = {"format": _FORMAT, **header, "points": [[*p[:2], finite(p.stderr), p.steps] for p in points]}
    _write(Path(f"{out}.state"), json.dumps(state, indent=1))
    table = profile(
        points,
        model=header["model"],
        gpu=header["gpu"],
        gpus=header["gpus"],
        batch=header["batch"],
        demand=_demand(header["gpus"], points, data),
        read_mib_s=data.storage_mib_s if data else math.nan,
    )
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    write_profile(table, beside)
    columns, *rows = beside.read_text("utf-8").splitlines()
    command = " ".join(shown(header["command"]).replace('"', "'").split())
    lines = [f"# measured by wattline profile: {command}", columns, *rows[: len(points)]]
    if data is not None:
        lines += [f"# derived from the rows above; of {data.dataset_gib:.4g} GiB a cache keeps its share"]
        lines += rows[len(points) :]
    beside.unlink()
    _write(out, "\n".join((*lines, "")))


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _demand(gpus: int, points: Sequence[Point], data: _Data | None) -> Demand | None:
    if data is None:
        return None
    return Demand.derived(
        np.array([p.cpus for p in points]) / gpus,
        np.array([p.samples_s for p in points]) / gpus,
        dataset_gib=data.dataset_gib,
        sample_kib=data.sample_kib,
        storage_mib_s=data.storage_mib_s / gpus,
    )


# What it means


@dataclass(frozen=True)
class _Found:
    """A finished sweep, for people and for programs."""

    header: dict[str, Any]
    sweep: Sweep
    points: list[Point]
    of: _Data | None
    limited_by: str
    out: str

    @property
    def known(self) -> dict[float, float]:
        return _speeds(self.points)

    @property
    def demand(self) -> Demand | None:
        return _demand(self.header["gpus"], self.points, self.of)

    def with_memory(self, samples_s: float, mem_gib: float) -> float:
        """Samples per second of the whole job; the cache of its node is one."""
        gpus, demand = self.header["gpus"], self.demand
        assert demand is not None
        return float(demand.with_memory(np.array([samples_s / gpus]), np.array([mem_gib]))[0] * gpus)

    @property
    def enough(self) -> tuple[float, float | None]:
        """The fewest cores, then the least memory, that keep the best speed."""
        cores = np.array(self.sweep.grid)
        speeds = between(self.known, cores)
        best = float(speeds.max())
        cpus = float(cores[0] if self.sweep.is_flat(self.known) else cores[speeds >= KEPT * best][0])
        if self.of is None:
            return cpus, None
        here = float(between(self.known, np.array([cpus]))[0])
        shares = (share / 100 for share in range(101))
        dataset_gib = self.of.dataset_gib
        return cpus, next(
            s * dataset_gib for s in shares if self.with_memory(here, s * dataset_gib) >= KEPT * here
        )

    @property
    def cells(self) -> int:
        """Measurements of the whole matrix."""
        return len(self.sweep.grid) * len(MEMORY_SHARES)

    def data(self) -> dict[str, Any]:
        """For programs."""
        cpus, mem_gib = self.enough
        return {
            **self.header,
            "out": self.out,
            "limited_by": self.limited_by,
            "measured": [
                {"cpus": p.cpus, "samples_s": p.samples_s, "stderr": finite(p.stderr), "steps": p.steps}
                for p in sorted(self.points)
            ],
            "derived": [
                {"cpus": p.cpus, "mem_gib": gib, "samples_s": self.with_memory(p.samples_s, gib)}
                for p in sorted(self.points)
                for gib in self._levels()
            ],
            "data": asdict(self.of) if self.of else None,
            "flat": self.sweep.is_flat(self.known),
            "enough": {"cpus": cpus, "mem_gib": mem_gib},
            "cost": {"points": len(self.points), "cells": self.cells},
        }

    def _levels(self) -> list[float]:
        return [share * self.of.dataset_gib for share in MEMORY_SHARES] if self.of else []

    def text(self) -> str:
        """For people."""
        h = self.header
        gpus = f"{h['gpus']} GPU{'' if h['gpus'] == 1 else 's'}"
        counts = f"{len(self.points)} of {len(self.sweep.grid)} core counts measured"
        head = f"{h['model']} on {h['gpu']}, {gpus}: {counts}"
        rows = [["cores", "samples/s", "±", *(f"{gib:.3g} GiB" for gib in self._levels())]]
        for p in sorted(self.points):
            derived = [f"{self.with_memory(p.samples_s, gib):.4g}" for gib in self._levels()]
            rows.append([f"{p.cpus:g}", f"{p.samples_s:.4g}", _error(p), *derived])
        lines = [f"{head}, limited by {self.limited_by}", *grid(rows, lambda column: ">")]
        if self.of is not None:
            lines.append(
                f"samples/s is measured, with all memory; at {rows[0][3]} to {rows[0][-1]} it is derived: of"
                f" {self.of.dataset_gib:.4g} GiB"
            )
            lines.append(
                f"a cache keeps its share, and the rest is read at {self.of.storage_mib_s:.4g} MiB/s,"
                f" {self.of.sample_kib:.4g} KiB a sample"
            )
        if h["batch"] == 1:
            lines.append("a sample is a step: say --batch if steps have more")
        lines += [
            self._enough_text(),
            f"{len(self.points)} measurements instead of {self.cells}: "
            f"{self.cells / len(self.points):.3g} times less work",
            f"table: {self.out} (for wattline fit)",
        ]
        return "\n".join(lines)

    def _enough_text(self) -> str:
        cpus, mem_gib = self.enough
        memory = "" if mem_gib is None else f" and {mem_gib:.3g} GiB for the cache"
        if len(self.sweep.grid) == 1:
            return f"only {_cores(cpus)} could be tried: what more would do is unknown"
        if self.sweep.is_flat(self.known):
            is_ = "is" if cpus == 1 and not memory else "are"
            return f"its speed does not depend on cores: {_cores(cpus)}{memory} {is_} enough"
        if cpus == self.sweep.grid[-1]:
            return f"it uses all {_cores(cpus)}{memory}, and might use more"
        return f"{_cores(cpus)}{memory} are enough: {100 * KEPT:.0f} % of its best speed"


def _cores(cpus: float) -> str:
    return f"{cpus:g} core{'' if cpus == 1 else 's'}"


def _speed(p: Point) -> str:
    return f"{p.samples_s:.4g} samples/s ± {_error(p)}"


def _error(p: Point) -> str:
    """Half of the 95 % interval."""
    return f"{100 * _STUDENT_95 * p.stderr / p.samples_s:.1f} %" if math.isfinite(p.stderr) else "?"
