"""Prediction of one job for `wattline predict`."""

from __future__ import annotations

import argparse
import math
from typing import Any

from wattline.cli.models.find_workload import find_workload
from wattline.cli.models.prediction_text import PredictedOutcome, format_prediction, list_used_assumptions
from wattline.cli.models.workload_data import encode_errors, finite_or_none
from wattline.cli.output import notify, print_json
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings, fewest_nodes
from wattline.models.library import library, load_models
from wattline.models.workload import Workload
from wattline.models.workload_models import WorkloadModels


def print_prediction(args: argparse.Namespace) -> int:
    """Print the prediction at the settings of *args*, and at the same ones without cap and clock."""
    workload = find_workload(_load_models(args), args.model, args.gpu)
    settings = {
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
    limited = _predict(workload, settings)
    unlimited = _predict(workload, {**settings, "cap_w": None, "clock_mhz": None})
    if args.batch is None and math.isfinite(workload.usual_batch):
        settings["batch"] = workload.usual_batch * args.gpus
    _warn_unsupported(workload.gpu, args.cap, args.clock)
    if args.json:
        print_json(_encode(workload, settings, limited, unlimited))
    else:
        print(format_prediction(workload, settings, limited, unlimited))
    return 0


def _load_models(args: argparse.Namespace) -> WorkloadModels:
    if args.profile is not None:
        from wattline.models.fit_quality import fit_file  # fitting needs scipy, which takes half a second

        return WorkloadModels(tuple(fit.workload for fit in fit_file(args.profile)))
    return load_models(args.models) if args.models is not None else library()


def _predict(w: Workload, settings: dict[str, Any]) -> PredictedOutcome:
    samples_s, watts = w.predict(Settings.of(**settings))
    return PredictedOutcome(float(samples_s[0]), float(watts[0]))


def _warn_unsupported(gpu: str, cap_w: float | None, clock_mhz: float | None) -> None:
    """Print a warning if the device does not support the cap or the clock."""
    if gpu not in DEVICES:
        return
    d = DEVICES[gpu]
    for name, value, least, most, unit in (
        ("caps", cap_w, d.min_cap_w, d.max_cap_w, "W"),
        ("clocks", clock_mhz, d.min_clock_mhz, d.max_clock_mhz, "MHz"),
    ):
        if value is not None and not least <= value <= most:
            notify(f"warning: {gpu} supports {name} from {least:g} to {most:g} {unit} only, not {value:g}")


def _encode(
    w: Workload, settings: dict[str, Any], limited: PredictedOutcome, unlimited: PredictedOutcome
) -> dict[str, Any]:
    return {
        "model": w.model,
        "gpu": w.gpu,
        "source": w.source.name,
        "settings": settings,
        **_encode_outcome(limited),
        "watts_measured": w.metered,
        "assumed": list_used_assumptions(w, settings),
        "held_out": encode_errors(w),
        "uncapped": _encode_outcome(unlimited),
    }


def _encode_outcome(outcome: PredictedOutcome) -> dict[str, float | None]:
    return {
        "samples_s": finite_or_none(outcome.samples_s),
        "watts": finite_or_none(outcome.watts),
        "joules_per_sample": finite_or_none(outcome.joules_per_sample),
    }
