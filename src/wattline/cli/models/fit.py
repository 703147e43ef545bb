"""`wattline fit`: what do these measurements say about speed and power, and how surely?"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattline.cli.models.workload_data import finite, workload_data
from wattline.cli.models.workload_text import workload_text
from wattline.cli.output import show_json, tell, tell_first_run
from wattline.cli.output_check import claim
from wattline.errors import ConfigError
from wattline.models.fit import fit_workload
from wattline.models.fit_quality import Fitted, fit_file
from wattline.models.held_out import held_out
from wattline.models.library import reread, write_models
from wattline.models.workload import Workload
from wattline.models.workload_models import Measured


def run(args: argparse.Namespace) -> int:
    """Fit, print every workload, and write what was asked for."""
    named = [args.profile, *filter(None, (args.html, args.out))]
    if len({Path(name).resolve() for name in named}) < len(named):
        raise ConfigError("the profile, --html and --out must be different files")
    claim(args.html, args.out)
    fitted = list(fit_file(args.profile))
    for f in fitted:
        if f.contradicted:
            name = f"{f.workload.model} on {f.workload.gpu}"
            tell(f"beware: {len(f.contradicted)} rows of {name} do not go with the rest: {f.contradicted[0]}")
    if args.out:
        write_models(Measured(tuple(map(_as_written, fitted))), args.out)
        tell(f"models: {args.out} (coefficients only: what measured watts add to them is left out)")
    if args.html:
        tell_first_run()
        from wattline.reports.html.fit_page import write_fit_page  # compiles loops, and only pages need it

        write_fit_page(args.html, args.profile, fitted)
        tell(f"page: {args.html}")
    if args.json:
        show_json({"workloads": [_data(f) for f in fitted]})
    else:
        print("\n\n".join(workload_text(f.workload, str(f)) for f in fitted))
    return 0


def _as_written(f: Fitted) -> Workload:
    """A workload with the errors of what a file holds of it."""
    held = held_out(f.rows, lambda rows: reread(fit_workload(rows)))
    source = replace(f.workload.source, samples_error=held.samples_error, watts_error=held.watts_error)
    return replace(f.workload, source=source)


def _data(f: Fitted) -> dict[str, Any]:
    held = {
        "samples_error": finite(f.held.samples_error),
        "samples_worst": finite(f.held.samples_worst),
        "watts_error": finite(f.held.watts_error),
        "watts_worst": finite(f.held.watts_worst),
    }
    return {**workload_data(f.workload), "held_out": held, "contradicted": f.contradicted}
