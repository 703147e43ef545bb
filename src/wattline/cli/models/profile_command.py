"""Measurement of a command for `wattline profile`."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from wattline.cli.models.profile_dataset import read_dataset
from wattline.cli.models.profile_result import ProfileResult, format_cores, format_speed
from wattline.cli.models.profile_state import ProfileHeader, ProfileState
from wattline.cli.output import check_writable, notify, print_error, print_json, progress_bar
from wattline.errors import ConfigError
from wattline.measurement.gpu_names import find_gpu_kind
from wattline.profiler.core_sweep import CoreSweep
from wattline.profiler.cpu_limits import CpuLimits, limit_cpus
from wattline.profiler.run import NoSteps, Patience, ProfiledJob, format_command, measure_speed
from wattline.profiler.step_rate import STEP_PATTERN
from wattline.units import pluralize

_TIMED_OUT = 124


def profile_command(args: argparse.Namespace) -> int:
    """Measure the points that are missing, save after each, print the result; return the exit code."""
    job = ProfiledJob(tuple(args.words), float(args.batch), args.step_pattern or STEP_PATTERN)
    patience = Patience(args.warmup, args.seconds, args.precision, args.first_step, args.grace)
    header: ProfileHeader = {
        "command": list(job.command),
        "model": args.model or _name_command(job.command),
        "gpu": (args.gpu or _detect_gpu_kind()).casefold(),
        "gpus": args.gpus,
        "batch": args.batch,
    }
    state = ProfileState(Path(args.out), header)
    check_writable(args.out, str(state.path))
    if not args.fresh:
        state.resume()
    try:
        with limit_cpus() as limit, _exit_on_signals():
            sweep = CoreSweep(_list_core_counts(args, limit), args.threshold, args.points)
            state.dataset = read_dataset(args)
            _measure_points(job, patience, limit, sweep, state)
    except NoSteps as error:
        print_error(error, args.json)
        return _TIMED_OUT
    result = ProfileResult(header, sweep, state.points, state.dataset, str(limit), args.out)
    if args.json:
        print_json(result.encode())
    else:
        result.print_text()
    return 0


def _measure_points(
    job: ProfiledJob, patience: Patience, limit: CpuLimits, sweep: CoreSweep, state: ProfileState
) -> None:
    """Measure until *sweep* is complete, and save the state after each point."""
    cores = f"{sweep.grid[0]:g} to {sweep.grid[-1]:g} cores"
    notify(
        f"profiling {format_command(job.command)} with {cores}, "
        f"at most {pluralize(sweep.points, 'point')}; limited by {limit}"
    )
    points = state.points
    if points:
        notify(f"resuming: {len(points)} points are known from {state.path}")
    with progress_bar("profiling", sweep.points) as update:
        while (cpus := sweep.next_cpus(state.speeds)) is not None:
            points.append(
                measure_speed(job, cpus, limit, patience, partial(_add_progress, update, len(points)))
            )
            state.save()
            update(len(points))
            notify(f"  {format_cores(cpus)}: {format_speed(points[-1])}, {points[-1].steps} steps")
    state.save()  # points of an earlier run may get another memory axis


def _add_progress(update: Callable[[float], None], points: int, of_point: float) -> None:
    update(points + of_point)


def _name_command(command: Sequence[str]) -> str:
    """Return a name for *command*: that of its script, else of its program."""
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem


def _detect_gpu_kind(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return the kind of the first GPU that the driver names; `cpu` without a GPU."""
    for file in sorted(drivers.glob("*/information")):
        for line in file.read_text("utf-8", "replace").splitlines():
            if line.startswith("Model:"):
                name = line.removeprefix("Model:").strip()
                return find_gpu_kind(name) or name.casefold()
    return "cpu"


def _list_core_counts(args: argparse.Namespace, limit: CpuLimits) -> tuple[float, ...]:
    most = args.cpus or len(limit.cores)
    if most > len(limit.cores):
        raise ConfigError(f"--cpus is {most}, but this process may use {len(limit.cores)} cores")
    if not args.grain > 0:
        raise ConfigError(f"--grain is {args.grain:g}, expected a number of cores above 0")
    if args.grain % 1 and limit.cgroup is None:
        raise ConfigError(
            f"--grain {args.grain:g}: fractions of a core need a cgroup, and none can be created here",
            "start under `systemd-run --user --scope -p Delegate=yes`, or leave out --grain",
        )
    return tuple(args.grain * (i + 1) for i in range(math.floor(most / args.grain + 1e-9))) or (most,)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the measured command is stopped first."""

    def exit_now(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, exit_now) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
