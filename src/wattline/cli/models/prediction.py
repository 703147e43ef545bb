"""Prediction of one job for `wattline predict`."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wattline.cli.models.find_workload import find_workload
from wattline.cli.models.prediction_text import PredictedOutcome, format_prediction, list_used_assumptions
from wattline.cli.models.workload_data import encode_errors, finite_or_none
from wattline.cli.output import notify, print_json
from wattline.core.table import Floats
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings, fewest_nodes
from wattline.models.cost import sample_cost
from wattline.models.library import library, load_models
from wattline.models.workload import Workload
from wattline.models.workload_models import WorkloadModels

if TYPE_CHECKING:
    from wattline.models.fit_quality import FittedWorkload
    from wattline.models.setting_choice import SettingChoice


def print_prediction(args: argparse.Namespace) -> int:
    """Print the prediction at the settings of *args*, and at the same ones without cap and clock."""
    if args.aim is not None and args.profile is None:
        raise ConfigError(
            "--aim needs the measured caps or clocks, which a file of fitted models does not have",
            "add --profile CSV",
        )
    fits = _fit_profile(args)
    models = WorkloadModels(tuple(fit.workload for fit in fits)) if fits else _load_models(args)
    workload = find_workload(models, args.model, args.gpu)
    choices = _choose_settings(args, next(f for f in fits if f.workload is workload)) if args.aim else []
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
        print_json({**_encode(workload, settings, limited, unlimited), **_encode_choices(args.aim, choices)})
    else:
        print(format_prediction(workload, settings, limited, unlimited))
        for choice in choices:
            print(f"  best by {args.aim}: {choice}")
    return 0


def _choose_settings(args: argparse.Namespace, fitted: FittedWorkload) -> list[SettingChoice]:
    """Return the best cap and the best clock by the aim, of those that were measured with watts."""
    from wattline.models.setting_choice import choose_setting
    from wattline.profiler.cap_aim import Aim

    aim = Aim.parse(args.aim)
    if aim.by not in ("energy", "time", "cost"):
        raise ConfigError(f"--aim is {args.aim}, expected energy, time or cost:ETA")
    w, rows = fitted.workload, fitted.rows
    if args.batch is not None:
        rows = rows.take(rows.batch == args.batch)
    rows = rows.take(rows.gpus == args.gpus)
    max_w = DEVICES[w.gpu].max_cap_w if w.gpu in DEVICES else float(np.nanmax(rows.watts / rows.gpus))
    eta = {"energy": 1.0, "time": 0.0}.get(aim.by, aim.amount)

    def cost(_: Floats, samples_s: Floats, watts: Floats) -> Floats:
        return sample_cost(samples_s, watts, eta=eta, max_w=max_w * args.gpus)

    metered = ~np.isnan(rows.watts) & ~np.isnan(rows.samples_s)
    choices = [
        choose_setting(rows, knob, cost)
        for knob in ("cap_w", "clock_mhz")
        if np.count_nonzero(metered & ~np.isnan(getattr(rows, knob))) > 1
    ]
    if not choices:
        raise ConfigError(
            f"{args.profile}: has no caps or clocks of {w.model} on {w.gpu} with watts at these settings",
            "measure samples_s and watts at several values of cap_w or clock_mhz",
        )
    return choices


def _encode_choices(aim: str | None, choices: list[SettingChoice]) -> dict[str, Any]:
    if aim is None:
        return {}
    return {
        "aim": aim,
        "best": {
            choice.knob: {
                "value": choice.value,
                "measured": choice.is_measured,
                "best_measured": choice.best_measured,
                "candidate": choice.candidate,
                "gain": choice.gain,
                "error": finite_or_none(choice.error),
                "says": str(choice),
            }
            for choice in choices
        },
    }


def _fit_profile(args: argparse.Namespace) -> list[FittedWorkload]:
    if args.profile is None:
        return []
    from wattline.models.fit_quality import fit_file  # fitting needs scipy, which takes half a second

    return list(fit_file(args.profile))


def _load_models(args: argparse.Namespace) -> WorkloadModels:
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
        "misfits": list(w.source.misfits),
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
