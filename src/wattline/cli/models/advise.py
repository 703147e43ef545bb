"""`wattline advise`: how many cores and how much memory should jobs ask for?"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from wattline.cli.models.workload_data import finite
from wattline.cli.output import show_json, tell, tell_skipped
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.models.library import library, load_models
from wattline.models.workload_models import Measured
from wattline.reports.advice import Advice, advise, sentence
from wattline.trace import read as read_trace


def run(args: argparse.Namespace) -> int:
    """Advice for every sort of job of a trace, or for one model."""
    models = library() if args.models in (None, "library") else load_models(args.models)
    cluster = parse_cluster(args.cluster)
    found = advise(_jobs(args, models, cluster), cluster, models, args.keep)
    if args.json:
        show_json({"keep": args.keep, "advice": [_data(advice) for advice in found]})
    else:
        for advice in found:
            print(_head(advice))
            print(f"  {sentence(advice)}")
        unknown = sum(advice.jobs for advice in found if advice.cpus is None)
        if unknown and len(found) > 1:
            tell(f"of {unknown} of {sum(advice.jobs for advice in found)} jobs nothing is known")
    return 0


def _jobs(args: argparse.Namespace, models: Measured, cluster: Nodes) -> Jobs:
    if _is_trace(args.what):
        trace = read_trace(args.what)
        tell_skipped(trace)
        return trace.jobs
    for kind in cluster.kind.names:
        models.find(args.what, kind)  # an unknown model is named, with those that are near
    gpus = np.array([args.gpus])
    return Jobs.of(
        submit_s=[0.0],
        gpus=gpus,
        duration_s=[1.0],
        model=[args.what],
        cpus=[0.0 if args.cpus is None else float(args.cpus * args.gpus)],
        mem_gib=[0.0 if args.mem is None else args.mem * args.gpus],
    )


def _is_trace(what: str) -> bool:
    return what.startswith("synth:") or Path(what).exists() or "." in Path(what).name


def _head(advice: Advice) -> str:
    jobs = f"{advice.jobs} job{'s' if advice.jobs > 1 else ''}"
    asks = f"asks for {advice.asks_cpus:g} cores and {advice.asks_gib:g} GiB for each GPU"
    name = advice.model or "unknown model"
    return f"{name}, {advice.gpus} GPU{'s' if advice.gpus > 1 else ''}, {jobs}, {asks} ({advice.node})"


def _data(advice: Advice) -> dict[str, object]:
    return {
        "model": advice.model,
        "gpu": advice.gpu,
        "gpus": advice.gpus,
        "jobs": advice.jobs,
        "node": advice.node,
        "asks": {"cpus_per_gpu": advice.asks_cpus, "mem_per_gpu_gib": advice.asks_gib},
        "cpus_per_gpu": advice.cpus,
        "mem_per_gpu_gib": advice.mem_gib,
        "flags": advice.flags,
        "keeps": finite(advice.keeps),
        "faster": finite(advice.faster),
        "frees_cpus": advice.frees_cpus,
        "frees_gib": advice.frees_gib,
        "more_jobs": advice.more_jobs,
        "says": sentence(advice),
    }
