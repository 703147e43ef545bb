"""`wattline predict`: how fast would a job be, what would it draw, and what would a cap or a clock save?"""

from __future__ import annotations

import argparse
import math
from typing import Any

from wattline.cli.models.prediction_text import Outcome, outcome_text, relied_on
from wattline.cli.models.workload_data import finite, held_out_data
from wattline.cli.output import show_json, tell
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings, fewest_nodes
from wattline.models.library import library, load_models
from wattline.models.workload import Workload
from wattline.models.workload_models import Measured


def run(args: argparse.Namespace) -> int:
    """Predict as asked, and the same with neither cap nor clock."""
    found = _models(args).find(args.model, args.gpu)
    knobs = {
        "gpus": args.gpus,
        "nodes": args.nodes if args.nodes is not None else int(fewest_nodes(args.gpus)),
        "batch": args.batch,
        "cap_w": args.cap,
        "clock_mhz": args.clock,
        "cpus": args.cpus,
        "mem_gib": args.mem,
        "read_mib_s": args.storage,
        "fuse": args.fuse,
    }
    asked = _outcome(found, knobs)
    free = _outcome(found, {**knobs, "cap_w": None, "clock_mhz": None})
    if args.batch is None and math.isfinite(found.usual_batch):
        knobs["batch"] = found.usual_batch * args.gpus
    _warn(found.gpu, args.cap, args.clock)
    if args.json:
        show_json(_data(found, knobs, asked, free))
    else:
        print(outcome_text(found, knobs, asked, free))
    return 0


def _models(args: argparse.Namespace) -> Measured:
    if args.profile is not None:
        from wattline.models.fit_quality import fit_file  # fitting needs scipy, which takes half a second

        return Measured(tuple(f.workload for f in fit_file(args.profile)))
    return load_models(args.models) if args.models is not None else library()


def _outcome(w: Workload, knobs: dict[str, Any]) -> Outcome:
    samples_s, watts = w.predict(Settings.of(**knobs))
    return Outcome(float(samples_s[0]), float(watts[0]))


def _warn(gpu: str, cap_w: float | None, clock_mhz: float | None) -> None:
    """Say it where the device cannot be set so."""
    if gpu not in DEVICES:
        return
    d = DEVICES[gpu]
    for what, value, least, most, unit in (
        ("caps", cap_w, d.min_cap_w, d.max_cap_w, "W"),
        ("clocks", clock_mhz, d.min_clock_mhz, d.max_clock_mhz, "MHz"),
    ):
        if value is not None and not least <= value <= most:
            tell(f"beware: {gpu} takes {what} from {least:g} to {most:g} {unit} only")


def _data(w: Workload, knobs: dict[str, Any], asked: Outcome, free: Outcome) -> dict[str, Any]:
    return {
        "model": w.model,
        "gpu": w.gpu,
        "source": w.source.name,
        "settings": knobs,
        **_numbers(asked),
        "watts_measured": w.metered,
        "assumed": relied_on(w, knobs),
        "held_out": held_out_data(w),
        "uncapped": _numbers(free),
    }


def _numbers(outcome: Outcome) -> dict[str, float | None]:
    return {
        "samples_s": finite(outcome.samples_s),
        "watts": finite(outcome.watts),
        "joules_per_sample": finite(outcome.joules_per_sample),
    }
