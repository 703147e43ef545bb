"""How long is a step: fits the few coefficients that the Gavel and Pollux readers predict with.

Reads measurements under $WATTLINE_DATA (default ../shared/data) and prints
src/wattline/trace/step_times.toml; only fitted coefficients leave this script, with how many points
each rests on and how far, on average, a point is from a fit that has not seen it.

    python benchmarks/fit_step_times.py > src/wattline/trace/step_times.toml
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))
NODE_GPUS = 4  # per node of the Pollux testbed
Floats = NDArray[np.float64]
Fit = Callable[[Floats, Floats], Callable[[Floats], Floats]]

HEADER = """\
# Seconds per step, and steps to finish, as fitted coefficients: made by benchmarks/fit_step_times.py.
# points: measurements behind an entry. error: mean relative error of points left out of the fit one by one.
"""


def left_out_error(fit: Fit, x: Floats, y: Floats) -> float:
    """Mean relative error at each point of a fit to all the others; nan with too few points."""
    if len(y) <= x.shape[1] + 1:
        return float("nan")
    errors = []
    for left_out in range(len(y)):
        others = np.arange(len(y)) != left_out
        predict = fit(x[others], y[others])
        errors.append(abs(predict(x[left_out : left_out + 1])[0] / y[left_out] - 1.0))
    return float(np.mean(errors))


# Gavel: step_s = (fixed_s + sample_s * batch + square_s * batch ** 2) * gpus ** -scaling


def gavel_points() -> dict[str, tuple[Floats, Floats]]:
    """Per family: batch and GPUs of each V100 measurement, and its seconds per step."""
    points: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with (DATA / "gavel/isolated_throughputs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["gpu"], row["consolidated"]) == ("physical_cluster", "v100", "1"):
                family, _, rest = row["job_type"].partition(" (batch size ")
                batch = float(rest.rstrip(")") or 0)
                points[family].append((batch, float(row["gpus"]), 1 / float(row["steps_per_s"])))
    return {family: _split(rows) for family, rows in sorted(points.items())}


def gavel_step_s(coefficients: Floats, x: Floats) -> Floats:
    """The formula above."""
    fixed_s, sample_s, square_s, scaling = coefficients
    return np.asarray((fixed_s + sample_s * x[:, 0] + square_s * x[:, 0] ** 2) * x[:, 1] ** -scaling)


def gavel_coefficients(x: Floats, y: Floats, bent: bool) -> Floats:
    """Those with the least squared error of log(step_s); not *bent*: without the square."""
    largest = max(x[:, 0].max(), 1.0)
    varied = np.ptp(x[:, 0]) > 0
    used = np.array([True, varied, varied and bent, np.ptp(x[:, 1]) > 0])
    scale = np.array([y.min(), y.max() / largest, y.max() / largest**2, 1.0])

    def full(unknown: Floats) -> Floats:
        coefficients = np.zeros(len(used))
        coefficients[used] = unknown
        return np.asarray(coefficients * scale)

    def residual(unknown: Floats) -> Floats:
        return np.asarray(np.log(gavel_step_s(full(unknown), x) + 1e-12) - np.log(y))

    return full(least_squares(residual, np.full(used.sum(), 0.5), bounds=(0.0, np.inf)).x)


def gavel_fits() -> tuple[Fit, Fit]:
    """A straight predictor and a bent one."""

    def fit(bent: bool) -> Fit:
        def fitted(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
            coefficients = gavel_coefficients(x, y, bent)
            return lambda new: gavel_step_s(coefficients, new)

        return fitted

    return fit(False), fit(True)


def gavel_entry(family: str, x: Floats, y: Floats) -> str:
    """The better of both, by the error of points left out."""
    errors = [left_out_error(fit, x, y) for fit in gavel_fits()]
    bent = errors[1] < errors[0]
    names = ("fixed_s", "sample_s", "square_s", "scaling")
    named = dict(zip(names, gavel_coefficients(x, y, bent), strict=True))
    return _entry("gavel", family, named, len(y), errors[bent])


# Pollux: step_s = fixed_s + sample_s * local batch + what more GPUs and more nodes add


def pollux_points(application: str) -> tuple[Floats, Floats]:
    """Local batch and replicas of measurements on as few nodes as possible, and their seconds per step."""
    rows = []
    for name in ("placements", "scalability"):
        for row in _rows(f"pollux/traces/{application}/{name}.csv"):
            digits = row.get("placement")
            nodes = len(digits) if digits else int(row["num_nodes"])
            replicas = sum(map(int, digits)) if digits else int(row["num_replicas"])
            if nodes == -(-replicas // NODE_GPUS):
                rows.append((float(row["local_bsz"]), float(replicas), float(row["step_time"])))
    return _split(rows)


def pollux_terms(x: Floats) -> Floats:
    """What the coefficients multiply: 1, local batch, a second GPU, a second node, doublings of nodes."""
    local, replicas = x[:, 0], x[:, 1]
    beyond = replicas > NODE_GPUS
    doublings = np.where(beyond, np.log2(np.maximum(replicas / NODE_GPUS, 1.0)), 0.0)
    return np.stack([np.ones_like(local), local, replicas > 1, beyond, doublings], axis=1).astype(np.float64)


def pollux_coefficients(x: Floats, y: Floats) -> Floats:
    """Coefficients, none negative, with the least squared relative error."""
    return np.asarray(nnls(pollux_terms(x) / y[:, None], np.ones_like(y))[0])


def pollux_fit(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """The predictor with those coefficients."""
    coefficients = pollux_coefficients(x, y)
    return lambda new: pollux_terms(new) @ coefficients


# Pollux: iterations = at_one * batch ** -power


def finish_points(application: str) -> tuple[Floats, Floats]:
    """Batch sizes, and iterations at the end of the validation run with each."""
    rows = []
    for path in sorted((DATA / "pollux/traces" / application).glob("validation-*.csv")):
        last = list(_rows(path.relative_to(DATA)))[-1]
        rows.append((float(path.stem.partition("-")[2]), float(last["iteration"])))
    return _split(rows)


def finish_coefficients(x: Floats, y: Floats) -> Floats:
    """at_one and power: a straight line through the logarithms."""
    slope, offset = np.polyfit(np.log(x[:, 0]), np.log(y), 1)
    return np.array([np.exp(offset), -slope])


def finish_fit(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """The predictor with those coefficients."""
    at_one, power = finish_coefficients(x, y)
    return lambda new: at_one * new[:, 0] ** -power


def _rows(path: str | Path) -> Iterator[dict[str, str]]:
    with (DATA / path).open(newline="") as file:
        yield from csv.DictReader(file)


def _split(rows: Sequence[tuple[float, ...]]) -> tuple[Floats, Floats]:
    table = np.array(rows)
    return table[:, :-1], table[:, -1]


def _entry(section: str, name: str, fitted: dict[str, float], points: int, error: float) -> str:
    numbers = [f"{key} = {0.0 if value < 1e-12 else value:.4g}" for key, value in fitted.items()]
    quality = [f"points = {points}"] + ([] if np.isnan(error) else [f"error = {error:.3f}"])
    return "\n".join([f'[{section}."{name}"]', *numbers, *quality, ""])


def main() -> None:
    """Print the file."""
    print(HEADER)
    print("# Gavel (OSDI'20, MIT), isolated throughputs of its physical cluster, V100, consolidated.")
    print("# step_s = (fixed_s + sample_s * batch + square_s * batch ** 2) * gpus ** -scaling")
    print("# where the steps of all workers count together.\n")
    for family, (x, y) in gavel_points().items():
        print(gavel_entry(family, x, y))
    applications = sorted(path.name for path in (DATA / "pollux/traces").iterdir() if path.is_dir())
    print("# Pollux (OSDI'21, Apache-2.0), step times on T4, four to a node, on as few nodes as possible.")
    print("# step_s = fixed_s + sample_s * batch / gpus, + second_gpu_s if gpus > 1, and if gpus > 4")
    print("# + second_node_s + doubling_s * log2(gpus / 4)\n")
    names = ("fixed_s", "sample_s", "second_gpu_s", "second_node_s", "doubling_s")
    for application in applications:
        x, y = pollux_points(application)
        named = dict(zip(names, pollux_coefficients(x, y), strict=True))
        print(_entry("pollux", application, named, len(y), left_out_error(pollux_fit, x, y)))
    print("# Pollux, last iteration of the validation runs: steps = at_one * batch ** -power\n")
    for application in applications:
        x, y = finish_points(application)
        named = dict(zip(("at_one", "power"), finish_coefficients(x, y), strict=True))
        print(_entry("pollux_steps", application, named, len(y), left_out_error(finish_fit, x, y)))


if __name__ == "__main__":
    main()
