"""Energy and cost of caps and clocks chosen from few measurements, against the best setting that exists.

    python benchmarks/cap_choices.py

Every published sweep is reduced to 4 to 7 evenly spread settings, from which a setting is chosen out of all
measured ones of the sweep: the best of the few (measured), the one with the least predicted cost (model),
and as `choose_setting` does: another one only if its predicted gain exceeds the model's own error (chosen).
Loss: cost at the chosen setting over the least cost of the sweep, mean over the sweeps of a GPU, in %.
Data are read under $WATTLINE_DATA, of any GPUs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import published
from held_out import spread_indices

from wattline import Profile, Settings
from wattline.core.table import Floats
from wattline.measurement.devices import DEVICES
from wattline.models.fit import fit_workload
from wattline.models.setting_choice import check_law, choose_setting

AIMS = {"energy": 1.0, "cost:0.5": 0.5}


def read_sweeps() -> Iterator[tuple[str, str, Floats, Floats, Floats]]:
    """Yield (GPU, knob, its values, seconds, watts of a GPU) of every sweep of caps or clocks."""
    for gpu, _, points in published.read_zeus_curves():
        yield gpu, "cap_w", *points.T
    for gpu, _, points in published.read_perseus_stages():
        clock, seconds, joules = points.T
        yield gpu.removesuffix("_sxm"), "clock_mhz", clock, seconds, joules / seconds
    for profile in published.read_perseus():
        if not np.isnan(profile.cap_w).any():
            rows = profile.take(np.argsort(profile.cap_w))
            yield rows.gpu.word(0), "cap_w", rows.cap_w, 1 / rows.samples_s, rows.watts / rows.gpus


def main() -> int:
    sweeps = list(read_sweeps())
    if not sweeps:
        sys.exit(f"no data under {published.DATA}: set WATTLINE_DATA")
    cases = worse_model = worse_chosen = 0
    print("GPU, knob, aim               few  sweeps  measured    model   chosen   not measured")
    for few in (4, 5, 6, 7):
        losses = defaultdict(list)
        for gpu, knob, values, seconds, watts in sweeps:
            if len(values) > few:
                seen = spread_indices(len(values), few)
                for aim, eta in AIMS.items():
                    losses[gpu, knob, aim].append(
                        compute_losses(gpu, knob, values, seconds, watts, seen, eta)
                    )
        for (gpu, knob, aim), found in losses.items():
            measured, model, chosen, other = np.mean(found, axis=0)
            cases += 1
            worse_model += model > measured + 1e-9
            worse_chosen += chosen > measured + 1e-9
            name = f"{gpu} {knob} {aim}"
            numbers = " ".join(f"{100 * loss:8.2f}" for loss in (measured, model, chosen))
            print(f"{name:28} {few:3}  {len(found):6}  {numbers}   {100 * other:4.0f} % of choices")
    print(f"of {cases} cases: model worse than measured in {worse_model}, chosen in {worse_chosen}")
    print_law_checks(sweeps)
    return 1 if worse_chosen else 0


def compute_losses(
    gpu: str, knob: str, values: Floats, seconds: Floats, watts: Floats, seen: Floats, eta: float
) -> tuple[float, float, float, float]:
    max_w = DEVICES[gpu].max_cap_w if gpu in DEVICES else float(watts.max())

    def cost(_: Floats, samples_s: Floats, watts: Floats) -> Floats:
        return (eta * watts + (1.0 - eta) * max_w) / samples_s

    truth = cost(values, 1 / seconds, watts)
    rows = build_rows(gpu, knob, values[seen], seconds[seen], watts[seen])
    predicted = fit_workload(rows).predict(Settings.of(**{knob: values}))
    by_model = int(np.argmin(cost(values, predicted.samples_s, predicted.watts)))
    choice = choose_setting(rows, knob, cost, values)
    chosen = int(np.flatnonzero(values == choice.value)[0])
    loss = truth / truth.min() - 1.0
    return loss[seen][np.argmin(truth[seen])], loss[by_model], loss[chosen], float(not choice.is_measured)


def build_rows(gpu: str, knob: str, values: Floats, seconds: Floats, watts: Floats) -> Profile:
    return Profile.of(model="m", gpu=gpu, samples_s=1 / seconds, watts=watts, **{knob: values})


def print_law_checks(sweeps: list[tuple[str, str, Floats, Floats, Floats]]) -> None:
    checks = defaultdict(list)
    for gpu, knob, values, seconds, watts in sweeps:
        checks[gpu, knob].append(check_law(build_rows(gpu, knob, values, seconds, watts), knob))
    print(
        "laws, fitted to 5 settings: mean error of energy % (lines), steps off the cheapest, its loss %, fit"
    )
    for (gpu, knob), found in checks.items():
        numbers = np.array([(c.law_error, c.lines_error, c.steps_off, c.loss) for c in found])
        known = numbers[~np.isnan(numbers).any(axis=1)]
        law, lines = 100 * np.nanmean(numbers[:, :2], axis=0)
        steps, loss = known[:, 2:].mean(axis=0) if len(known) else (np.nan, np.nan)
        fits = sum(check.fits for check in found)
        name = f"{gpu} {knob}"
        print(f"{name:28} {law:.2f} ({lines:.2f})  {steps:.1f}  {100 * loss:.2f}  {fits} of {len(found)}")


if __name__ == "__main__":
    sys.exit(main())
