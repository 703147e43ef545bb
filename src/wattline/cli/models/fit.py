"""`wattline fit`: fit models of speed and power to a table of measurements."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import add_output_arguments
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import check_writable, notify, print_json
from wattline.errors import ConfigError
from wattline.units import pluralize

if TYPE_CHECKING:
    from wattline.models.fit_quality import FittedWorkload
    from wattline.models.workload import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline fit`."""
    parser.add_argument("profile", metavar="PROFILE.csv", help="measurements, one per row (.csv or .csv.gz)")
    parser.add_argument("--out", metavar="FILE", help="write the fitted models, for predict --models")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, print every workload, and write the files asked for."""
    files = [args.profile, *filter(None, (args.html, args.out))]
    if len({Path(name).resolve() for name in files}) < len(files):
        raise ConfigError("the profile, --html and --out must be different files")
    check_writable(args.html, args.out)
    from wattline.cli.models.workload_text import format_workload
    from wattline.models.fit_quality import fit_file
    from wattline.models.library import write_models
    from wattline.models.workload_models import WorkloadModels

    fits = list(fit_file(args.profile))
    for fit in fits:
        _warn_contradictions(fit)
    if args.out:
        write_models(WorkloadModels(tuple(map(_with_written_errors, fits))), args.out)
        notify(f"models: {args.out} (coefficients only, without corrections by the measurements)")
    if args.html:
        announce_compilation()
        from wattline.reports.html.fit_page import write_fit_page  # compiles loops, needed only for pages

        write_fit_page(args.html, args.profile, fits)
        notify(f"page: {args.html}")
    if args.json:
        print_json({"workloads": [_encode(fit) for fit in fits]})
    else:
        print("\n\n".join(format_workload(fit.workload, str(fit), fit.laws) for fit in fits))
    return 0


def _warn_contradictions(fit: FittedWorkload) -> None:
    if fit.contradictions:
        name = f"{fit.workload.model} on {fit.workload.gpu}"
        notify(
            f"warning: {pluralize(len(fit.contradictions), 'row')} of {name} contradict the others: "
            f"{fit.contradictions[0]}"
        )


def _with_written_errors(fit: FittedWorkload) -> Workload:
    """Return the workload with the errors of the model as a file holds it."""
    from wattline.models.fit import fit_workload
    from wattline.models.held_out import cross_validate
    from wattline.models.library import reload_coefficients

    held = cross_validate(fit.rows, lambda rows: reload_coefficients(fit_workload(rows)))
    source = replace(fit.workload.source, samples_error=held.samples_error, watts_error=held.watts_error)
    return replace(fit.workload, source=source)


def _encode(fit: FittedWorkload) -> dict[str, Any]:
    from wattline.cli.models.workload_data import encode_workload, finite_or_none

    held = {
        "samples_error": finite_or_none(fit.held_out.samples_error),
        "samples_worst": finite_or_none(fit.held_out.samples_worst),
        "watts_error": finite_or_none(fit.held_out.watts_error),
        "watts_worst": finite_or_none(fit.held_out.watts_worst),
    }
    laws = {law.knob: {**asdict(law), "fits": law.fits, "says": str(law)} for law in fit.laws}
    laws = {knob: {k: _strict(v) for k, v in law.items()} for knob, law in laws.items()}
    return {
        **encode_workload(fit.workload),
        "held_out": held,
        "laws": laws,
        "contradicted": fit.contradictions,
    }


def _strict(value: Any) -> Any:
    """Return *value* for strict JSON: None instead of nan."""
    return None if isinstance(value, float) and value != value else value
