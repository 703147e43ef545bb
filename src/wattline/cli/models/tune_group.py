"""Recorded runs of one recurring job, for `wattline tune show` and `reset`."""

from __future__ import annotations

import argparse
from typing import Any

from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.group_summary import summarize_runs
from wattline.batch_size.history import RunHistory
from wattline.cli.models.tune_sweeps import encode_sweep, print_sweep
from wattline.cli.output import confirm, notify, print_json, print_table
from wattline.errors import NotFound
from wattline.units import pluralize

_COLUMNS = ("batch", "runs", "stopped", "epochs", "cost")


def show_group(args: argparse.Namespace) -> int:
    """Print the batch sizes that were tried on each kind of GPU, the next one, and the measured caps."""
    with RunHistory.open(args.state) as memory:
        sweeps = memory.sweeps(args.group)
        ran_on = memory.kinds(args.group)
        kinds = list(dict.fromkeys([*ran_on, *(sweep.kind for sweep in sweeps)]))
        task = (
            None
            if sweeps and not ran_on and not memory.has_task(args.group)
            else memory.load_task(args.group)
        )
        if args.gpu is not None and args.gpu not in kinds:
            raise NotFound(f"{args.group} never ran on {args.gpu!r}, only on {', '.join(kinds) or 'nothing'}")
        shown = [args.gpu] if args.gpu else kinds
        summaries = []
        for kind in shown if task is not None else ():
            if kind in ran_on:
                state = memory.load_state(args.group, kind, BayesianTuner(), eta=args.eta)
                methods = memory.energy_methods(args.group, kind)
                summaries.append({**summarize_runs(kind, state), "method": methods})
    measured = [encode_sweep(sweep) for sweep in sweeps if sweep.kind in shown]
    if args.json:
        print_json(
            {
                "group": args.group,
                "default": None if task is None else task.default,
                "max_epochs": None if task is None else task.max_epochs,
                "gpus": summaries,
                "sweeps": measured,
            }
        )
        return 0
    if not summaries and task is not None:
        print(f"{args.group} has not run yet: it starts with its default batch size, {task.default}")
    for summary in summaries:
        print(f"{args.group} on {summary['gpu']}")
        print_table(_COLUMNS, [_build_row(each) for each in summary["batches"]], right=_COLUMNS)
        print(f"cost: joules ({summary['method']}) and time, weighted by eta {args.eta:g}")
        print(f"next: {summary['next']}, {summary['why']}")
    for each in measured:
        print_sweep(each)
    return 0


def _build_row(each: dict[str, Any]) -> tuple[str, ...]:
    epochs = "-" if each["epochs"] is None else f"{each['epochs']:.1f}"
    cost = "-" if each["cost_j"] is None else f"{each['cost_j']:.4g} J"
    return str(each["batch"]), str(each["runs"]), str(each["stopped"]), epochs, cost


def reset_group(args: argparse.Namespace) -> int:
    """Delete all runs of a job after asking."""
    with RunHistory.open(args.state) as memory:
        if args.group not in memory.groups():
            memory.load_task(args.group)  # raises, with similar names
        if not args.yes and not confirm(f"delete all runs of {args.group}?", "-y deletes without asking"):
            notify("nothing was deleted")
            return 1
        sweeps = len(memory.sweeps(args.group))
        count = memory.reset(args.group)
    if args.json:
        print_json({"group": args.group, "forgotten": count, "sweeps": sweeps})
    else:
        also = f" and {pluralize(sweeps, 'sweep')} of caps" if sweeps else ""
        print(f"{args.group}: deleted {pluralize(count, 'run')}{also}")
    return 0
