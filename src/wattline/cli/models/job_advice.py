"""Advice on cores and memory as `wattline advise` prints it."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from wattline.cli.models.find_workload import find_workload
from wattline.cli.models.workload_data import finite_or_none
from wattline.cli.output import notify, print_json, warn_skipped_rows
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.models.library import library, load_models
from wattline.models.workload_models import WorkloadModels
from wattline.reports.advice import Advice, advise, format_advice
from wattline.trace import read as read_trace
from wattline.units import pluralize


def print_advice(args: argparse.Namespace) -> int:
    """Print advice for the trace or the model in *args*."""
    models = library() if args.models in (None, "library") else load_models(args.models)
    cluster = parse_cluster(args.cluster)
    all_advice = advise(_read_jobs(args, models, cluster), cluster, models, args.keep)
    if args.json:
        print_json({"keep": args.keep, "advice": [_encode(advice) for advice in all_advice]})
        return 0
    for advice in all_advice:
        print(_format_head(advice))
        print(f"  {format_advice(advice)}")
    unknown = sum(advice.jobs for advice in all_advice if advice.cpus is None)
    if unknown and len(all_advice) > 1:
        total = sum(advice.jobs for advice in all_advice)
        notify(f"no advice for {unknown} of {pluralize(total, 'job')}: their models were not measured")
    return 0


def _read_jobs(args: argparse.Namespace, models: WorkloadModels, cluster: Nodes) -> Jobs:
    if _is_trace(args.what):
        trace = read_trace(args.what)
        warn_skipped_rows(trace, can_name_columns=False)
        return trace.jobs
    for kind in cluster.kind.names:
        find_workload(models, args.what, kind)  # raises for an unknown model, with similar names
    gpus = np.array([args.gpus])
    return Jobs.of(
        submit_s=[0.0],
        gpus=gpus,
        duration_s=[1.0],
        model=[args.what],
        cpus=[0.0 if args.cpus is None else float(args.cpus * args.gpus)],
        mem_gib=[0.0 if args.mem is None else args.mem * args.gpus],
    )


def _is_trace(text: str) -> bool:
    return text.startswith(("synth:", "combined:")) or Path(text).exists() or "." in Path(text).name


def _format_head(advice: Advice) -> str:
    jobs = pluralize(advice.jobs, "job")
    requests = f"requests {advice.requested_cpus:g} cores and {advice.requested_gib:g} GiB for each GPU"
    name = advice.model or "unknown model"
    return f"{name}, {pluralize(advice.gpus, 'GPU')}, {jobs}, {requests} ({advice.node})"


def _encode(advice: Advice) -> dict[str, object]:
    return {
        "model": advice.model,
        "gpu": advice.gpu,
        "gpus": advice.gpus,
        "jobs": advice.jobs,
        "node": advice.node,
        "asks": {"cpus_per_gpu": advice.requested_cpus, "mem_per_gpu_gib": advice.requested_gib},
        "cpus_per_gpu": advice.cpus,
        "mem_per_gpu_gib": advice.mem_gib,
        "flags": advice.flags,
        "keeps": finite_or_none(advice.speed_kept),
        "faster": finite_or_none(advice.speedup),
        "frees_cpus": advice.freed_cpus,
        "frees_gib": advice.freed_gib,
        "more_jobs": advice.extra_jobs,
        "says": format_advice(advice),
    }
