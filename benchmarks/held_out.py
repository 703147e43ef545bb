"""Held-out errors of predictions: every bar of the models, and the sources that they do not fit well.

    python benchmarks/held_out.py [speed caps clocks memory time loses]     (all of them by default)

Data are read under $WATTLINE_DATA, of any GPUs.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import published
from loader import simulate_samples_s

from wattline import Profile, Settings
from wattline.core.table import Floats, Ints
from wattline.models.demand import DemandModel, fit_demand
from wattline.models.fit import fit, fit_workload
from wattline.models.held_out import cross_validate
from wattline.models.workload import Workload


def main() -> int:
    parts = {
        "speed": check_speed,
        "caps": check_caps,
        "clocks": check_clocks,
        "memory": check_memory,
        "time": check_times,
        "loses": print_weak_sources,
    }
    chosen = sys.argv[1:] or list(parts)
    for name in chosen:
        if name not in parts:
            sys.exit(f"unknown part {name!r}, expected one of {', '.join(parts)}")
    missed = [name for name in chosen for met in [parts[name]()] if not met]
    print(f"\nbars missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def check_bar(text: str, value: float, most: float, unit: str = "%") -> bool:
    print(f"  {'met   ' if value <= most else 'MISSED'} {text}: {value:.2f} {unit}, bar {most:g} {unit}")
    return value <= most


def group_by_gpu(curves: Iterator[tuple[str, str, Floats]]) -> dict[str, list[Floats]]:
    found = defaultdict(list)
    for gpu, _, points in curves:
        found[gpu].append(points)
    return found


def report_no_data() -> bool:
    print(f"  no data under {published.DATA}: nothing was checked; set WATTLINE_DATA")
    return False


def format_errors(errors: Floats | list[float]) -> str:
    return f"{np.median(errors):.2f} / {np.percentile(errors, 90):.2f}"


def spread_indices(count: int, chosen: int) -> Ints:
    """Return *chosen* indices of *count*, evenly spread, both ends included."""
    return np.unique(np.round(np.linspace(0, count - 1, chosen)).astype(np.int64))


# Speed against the number of GPUs


def check_speed() -> bool:
    print(
        "Speed against batch size and GPUs (ElasticFlow), each point left out in turn: mean / worst error %"
    )
    means = []
    for profile in published.read_elasticflow():
        errors = cross_validate(profile).samples * 100
        means.append(float(np.mean(errors)))
        name = f"{profile.model.word(0)} {profile.gpu.word(0)}"
        print(f"  {name:24} {len(profile):3} points   {means[-1]:.2f} / {errors.max():.1f}")
    return bool(means) and check_bar("worst mean of a model", max(means), 4.0)


# Watts and time against the power cap


def check_caps() -> bool:
    print("\nWatts and time against the cap (Zeus), fitted to 4 caps: median / 90th percentile error in %")
    print("  GPU        curves  watts          interpolated   time           interpolated")
    curves = group_by_gpu(published.read_zeus_curves())
    if not curves:
        return report_no_data()
    ours, pooled, met = [], defaultdict(list), True
    for gpu, found in curves.items():
        errors = compute_cap_errors(gpu, found, lambda count: spread_indices(count, 4))
        print(
            f"  {gpu:10} {len(found):4}    " + "    ".join(f"{format_errors(e):11}" for e in errors.values())
        )
        for name, values in errors.items():
            pooled[name] += values
        ours.append((gpu, errors))
    for name in ("watts", "time"):
        lines = format_errors(pooled[f"{name} lines"])
        print(f"  all: {name} {format_errors(pooled[name])}, interpolated {lines}")
    met &= check_bar("watts, median", float(np.median(pooled["watts"])), 1.85)
    met &= check_bar("watts, 90th percentile", float(np.percentile(pooled["watts"], 90)), 6.0)
    met &= check_bar("time, median", float(np.median(pooled["time"])), 3.0)
    for gpu, errors in ours:
        lines = float(np.median(errors["watts lines"]))
        met &= check_bar(
            f"watts on {gpu}, median, against interpolation", float(np.median(errors["watts"])), lines
        )
    print("  every other choice of 4 caps with both ends: mean of the medians (least to most)")
    for gpu, found in curves.items():
        count = max(len(points) for points in found)
        full = [points for points in found if len(points) == count]
        choices = [
            np.array((0, *inner, count - 1))
            for inner in itertools.combinations(range(1, count - 1), 2)
            if inner[0] < count // 2 <= inner[1] and inner[1] - inner[0] > 1
        ]
        medians = defaultdict(list)
        for choice in choices:
            for name, values in compute_cap_errors(gpu, full, lambda _, c=choice: c).items():
                medians[name].append(float(np.median(values)))
        cells = (f"{n} {np.mean(m):.2f} ({min(m):.2f}-{max(m):.2f})" for n, m in medians.items())
        print(f"  {gpu:10} {len(choices)} choices: " + ", ".join(cells))
    return met


def compute_cap_errors(
    gpu: str, curves: list[Floats], choose: Callable[[int], Ints]
) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = {"watts": [], "watts lines": [], "time": [], "time lines": []}
    for cap_w, seconds, watts in (points.T for points in curves):
        seen = choose(len(cap_w))
        rest = np.setdiff1d(np.arange(len(cap_w)), seen)
        if not len(rest):
            continue
        known = Profile.of(
            model="m", gpu=gpu, cap_w=cap_w[seen], samples_s=1 / seconds[seen], watts=watts[seen]
        )
        predicted = fit_workload(known).predict(Settings.of(cap_w=cap_w[rest]))
        errors["watts"] += compute_errors(predicted.watts, watts[rest])
        errors["watts lines"] += compute_errors(np.interp(cap_w[rest], cap_w[seen], watts[seen]), watts[rest])
        errors["time"] += compute_errors(1 / predicted.samples_s, seconds[rest])
        errors["time lines"] += compute_errors(
            np.interp(cap_w[rest], cap_w[seen], seconds[seen]), seconds[rest]
        )
    return errors


def compute_errors(predicted: Floats, truth: Floats) -> list[float]:
    return list(np.abs(predicted / truth - 1.0) * 100)


# Time and energy against the clock


def check_clocks() -> bool:
    print("\nTime and energy against the SM clock (Perseus stages): median / 90th percentile error %")
    print("  GPU        clocks  time           energy         energy, lines  best clock off by, its energy")
    stages = group_by_gpu(published.read_perseus_stages())
    if not stages:
        return report_no_data()
    met = True
    for gpu, found in stages.items():
        for chosen in (5, 6, 7, 9):
            time_e, energy_e, lines_e, steps, cost = compute_clock_errors(gpu, found, chosen)
            cells = "    ".join(f"{format_errors(errors):11}" for errors in (time_e, energy_e, lines_e))
            within = np.mean(np.array(steps) <= 2)
            print(
                f"  {gpu:10} {chosen:3}     {cells}    {np.mean(steps):.1f} steps, at most {max(steps)},"
                f" within 2: {within:.0%}, +{np.mean(cost):.2f} % over the least"
            )
            if chosen == 5:
                met &= check_bar(f"time on {gpu} from 5 clocks, median", float(np.median(time_e)), 1.5)
                met &= check_bar(f"energy on {gpu} from 5 clocks, median", float(np.median(energy_e)), 1.5)
                met &= check_bar(f"best clock on {gpu} from 5 clocks, worst", max(steps), 2, "steps")
    return met


def compute_clock_errors(
    gpu: str, stages: list[Floats], chosen: int
) -> tuple[list[float], list[float], list[float], list[int], list[float]]:
    time_e, energy_e, lines_e, steps, cost = [], [], [], [], []
    known = {"model": [], "clock_mhz": [], "samples_s": [], "watts": []}
    for number, points in enumerate(stages):
        clock, seconds, joules = points[spread_indices(len(points), chosen)].T
        known["model"] += [str(number)] * len(clock)
        known["clock_mhz"] += clock.tolist()
        known["samples_s"] += (1 / seconds).tolist()
        known["watts"] += (joules / seconds).tolist()
    models = fit(Profile.of(gpu=gpu, **known))
    for found, points in zip(models.workloads, stages, strict=True):
        clock, seconds, joules = points.T
        seen = spread_indices(len(clock), chosen)
        rest = np.setdiff1d(np.arange(len(clock)), seen)
        predicted = found.predict(Settings.of(clock_mhz=clock))
        energy = predicted.watts / predicted.samples_s
        time_e += compute_errors(1 / predicted.samples_s[rest], seconds[rest])
        energy_e += compute_errors(energy[rest], joules[rest])
        lines_e += compute_errors(np.interp(clock[rest], clock[seen], joules[seen]), joules[rest])
        steps.append(abs(int(np.argmin(energy)) - int(np.argmin(joules))))
        cost.append(float(joules[np.argmin(energy)] / joules.min() - 1) * 100)
    return time_e, energy_e, lines_e, steps, cost


# The memory axis from the CPU axis


def check_memory() -> bool:
    print("\nMemory axis from the CPU axis, error % of cells that were not measured: mean / worst")
    worst = []
    for model, matrix, _ in published.read_synergy_matrices():
        cores, gib = (np.array(column) for column in zip(*sorted(matrix), strict=True))
        truth = np.array([matrix[cell] for cell in sorted(matrix)])
        # Measured: all cores with all memory, and all memory with all cores.
        seen = (gib == gib.max()) | (cores == cores.max())
        demand = fit_demand(cores[seen], gib[seen], truth[seen])
        plenty = dict(zip(cores[gib == gib.max()], truth[gib == gib.max()], strict=True))
        speeds = demand.speed_with_memory(np.array([plenty[c] for c in cores]), gib)
        errors = compute_errors(speeds[~seen], truth[~seen])
        worst.append(max(errors))
        print(
            f"  Synergy's matrix, {model:12} {len(errors)} cells   {np.mean(errors):.2f} / {max(errors):.2f}"
        )
    met = check_bar("worst cell of Synergy's matrices", max(worst), 3.0)
    print("  simulated loaders, item by item: only the CPU axis is measured, with all memory")
    cells, laws = [], []
    for seed in range(20):
        memory_e, law_e = simulate_loader_errors(seed)
        cells += memory_e
        laws += law_e
    ninth = np.percentile(cells, 90)
    print(
        f"  20 jobs, {len(cells)} cells: mean {np.mean(cells):.2f}, 90th {ninth:.2f}, worst {max(cells):.2f}"
    )
    print(f"  with the law for the cores too: mean {np.mean(laws):.2f}, worst {max(laws):.2f}")
    return met & check_bar("simulated loaders, mean", float(np.mean(cells)), 3.0)


def simulate_loader_errors(seed: int) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    batch, items = 64, 64 * 400
    gpu_s = batch / rng.uniform(300, 3000)
    prepare_s = rng.lognormal(0.0, 0.5, items) * rng.uniform(1.0, 12.0) * gpu_s / batch
    dataset_gib, sample_kib = rng.uniform(20, 300), rng.uniform(20, 500)
    storage_mib_s = sample_kib / 1024 * batch / gpu_s * rng.uniform(0.2, 0.9)
    hit = rng.random(items)

    def run(cores: float, share: float) -> float:
        fetch_s = sample_kib / 1024 / storage_mib_s
        return float(simulate_samples_s(int(cores), share, fetch_s, prepare_s, hit, gpu_s, batch, 4))

    cores = np.array([1.0, 2, 3, 4, 6, 9, 12, 24])
    plenty = np.array([run(c, 1.0) for c in cores])
    demand = DemandModel.from_core_sweep(
        cores, plenty, dataset_gib=dataset_gib, sample_kib=sample_kib, storage_mib_s=storage_mib_s
    )
    memory_e, law_e = [], []
    for share in np.linspace(0.0, 0.9, 10):
        truth = np.array([run(c, share) for c in cores])
        gib = np.full(len(cores), share * dataset_gib)
        memory_e += compute_errors(demand.speed_with_memory(plenty, gib), truth)
        law_e += compute_errors(np.minimum(1 / demand.sample_s(cores, gib), plenty.max()), truth)
    return memory_e, law_e


# Time


def check_times() -> bool:
    print("\nTime")
    largest = max(read_all_profiles(), key=lambda p: len(np.unique(p.batch)) * len(np.unique(p.cap_w)))
    fits = {
        f"{p.model.word(0)} {p.gpu.word(0)}": measure_ms(lambda p=p: fit_workload(p))
        for p in read_all_profiles()
    }
    slowest = max(fits, key=fits.__getitem__)
    met = check_bar(f"slowest fit, {slowest}", fits[slowest], 50, "ms")
    model = fit_workload(largest)
    rng = np.random.default_rng(0)
    count = 100_000
    settings = Settings.of(
        gpus=2.0 ** rng.integers(0, 2, count),
        batch=rng.choice(np.unique(largest.batch), count),
        cap_w=rng.uniform(*model.measured["cap_w"], count),
        cpus=rng.integers(8, 64, count),
        mem_gib=rng.uniform(50, 500, count),
    )
    took = measure_ms(lambda: model.extrapolate(settings))
    plain = measure_ms(lambda: np.sqrt(settings.batch * settings.cap_w) / settings.gpus)
    print(f"  ({took / plain:.0f} times as long as one line of numpy over as many rows)")
    met &= check_bar(
        f"100,000 predictions of {model.model} {model.gpu}, batch, cap, cores, memory", took, 20, "ms"
    )
    met &= check_bar("with the check of their range", measure_ms(lambda: model.predict(settings)), 20, "ms")
    print_observe_times(model)
    return met


def print_observe_times(model: Workload) -> None:
    count = 1000
    settings = Settings.of(batch=np.full(count, model.usual_batch))
    expected = model.extrapolate(settings)
    quiet = measure_ms(lambda: model.observe(settings, expected.samples_s))
    one = settings.take(slice(0, 1))
    single = measure_ms(lambda: model.observe(one, expected.samples_s[:1]))
    surprise = measure_ms(lambda: model.observe(one, expected.samples_s[:1] * 0.5))
    print(f"  observing: {quiet:.2f} us each of 1,000 as expected, {single * 1e3:.0f} us one alone,", end=" ")
    print(f"{surprise * 1e3:.0f} us one with a deviation that is learnt")


def measure_ms(action: Callable[[], object], rounds: int = 7) -> float:
    """Return the milliseconds of the fastest of some rounds."""
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        took.append((time.perf_counter() - start) * 1e3)
    return min(took)


def read_all_profiles() -> Iterator[Profile]:
    yield from published.read_zeus()
    yield from published.read_elasticflow()
    yield from published.read_perseus()
    yield from published.read_synergy()


# Sources that the models do not fit well


def print_weak_sources() -> bool:
    print("\nNo bar: sources that the models do not fit well, mean / worst error %")
    for source in (published.read_gavel, published.read_pollux, published.read_synergy):
        for profile in source():
            errors = cross_validate(profile).samples * 100
            errors = errors[~np.isnan(errors)]
            name = f"{source.__name__.removeprefix('read_')} {profile.model.word(0)} {profile.gpu.word(0)}"
            if len(errors):
                print(f"  {name:32} {len(profile):4} points   {np.mean(errors):6.2f} / {errors.max():.1f}")
    return True


if __name__ == "__main__":
    sys.exit(main())
