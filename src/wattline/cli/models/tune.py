"""`wattline tune`: which batch size should a recurring job use next?"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from wattline.batch_size.bandit import Optimizer, Zeus
from wattline.batch_size.bayesian import Known, Recurring, believe
from wattline.batch_size.history import Memory
from wattline.batch_size.recorded_runs import Published, read_published
from wattline.batch_size.replay import GOALS, Case, Score, cases, default_regret, replay, score
from wattline.cli.output import agreed, bar, show_json, tell
from wattline.errors import ConfigError, NotFound
from wattline.grid import grid

OPTIMIZERS: dict[str, Optimizer[Any]] = {"zeus": Zeus(), "wattline": Recurring()}
_SHOWN = ("last_energy", "regret", "settles10")


def run(args: argparse.Namespace) -> int:
    """Show or forget a job, or replay recorded trainings."""
    return {"show": _show, "reset": _reset, "replay": _replay}[args.action](args)


def _show(args: argparse.Namespace) -> int:
    with Memory.open(args.state) as memory:
        kinds = memory.kinds(args.group)
        task = memory.task(args.group)
        if args.gpu is not None and args.gpu not in kinds:
            raise NotFound(f"{args.group} never ran on {args.gpu!r}, only on {', '.join(kinds) or 'nothing'}")
        found = []
        for kind in [args.gpu] if args.gpu else kinds:
            state = memory.state(args.group, kind, Recurring(), eta=args.eta)
            found.append(_said(kind, state))
    if args.json:
        show_json(
            {"group": args.group, "default": task.default, "max_epochs": task.max_epochs, "gpus": found}
        )
        return 0
    if not found:
        print(f"{args.group} has not run yet: it starts with its default batch size, {task.default}")
    for said in found:
        print(f"{args.group} on {said['gpu']}")
        head = ("batch", "runs", "stopped", "epochs", "cost")
        rows = [_row(each) for each in said["batches"]]
        print("\n".join(grid([head, *rows], lambda column: ">")))
        print(f"next: {said['next']}, {said['why']}")
    return 0


def _said(kind: str, state: Known) -> dict[str, Any]:
    """What is known of a job on one kind of GPU."""
    optimizer = Recurring()
    rows = []
    for at, batch in enumerate(state.task.batches):
        runs = int(state.here[at])
        epochs = math.exp(state.total[at] / state.runs[at]) if state.runs[at] else None
        known = epochs is not None and not math.isnan(state.epoch_j[at])
        cost = epochs * float(state.epoch_j[at]) if known and epochs is not None else None
        failed = int(state.failed[at])
        rows.append({"batch": batch, "runs": runs, "stopped": failed, "epochs": epochs, "cost_j": cost})
    best = None
    try:
        following = optimizer.next(state, np.random.default_rng(0)).batch
        if state.runs.any() and not np.isnan(state.epoch_j).all():
            best = state.task.batches[believe(state).best]
        why = optimizer.why(state)
    except ConfigError as error:  # nothing has reached the target
        following, why = state.task.default, error.message
    pending = list(state.pending)
    return {"gpu": kind, "batches": rows, "best": best, "next": following, "why": why, "pending": pending}


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    epochs = "-" if each["epochs"] is None else f"{each['epochs']:.1f}"
    cost = "-" if each["cost_j"] is None else f"{each['cost_j']:.4g} J"
    return str(each["batch"]), str(each["runs"]), str(each["stopped"]), epochs, cost


def _reset(args: argparse.Namespace) -> int:
    with Memory.open(args.state) as memory:
        if args.group not in memory.groups():
            memory.task(args.group)  # raises, and says what is near
        question = f"forget all runs of {args.group}?"
        if not args.yes and not agreed(question, "-y forgets without asking"):
            tell("nothing was forgotten")
            return 1
        count = memory.reset(args.group)
    if args.json:
        show_json({"group": args.group, "forgotten": count})
    else:
        print(f"{args.group}: {count} runs forgotten")
    return 0


def _replay(args: argparse.Namespace) -> int:
    published = read_published(args.data)
    names = tuple(OPTIMIZERS) if args.optimizer == "both" else (args.optimizer,)
    todo = _cases(published, args)
    found: list[dict[str, Any]] = []
    with bar("replaying", len(todo)) as done:
        for case in todo:
            found.append(_replayed(case, names, args.seeds, args.recurrences))
            done(len(found))
    if args.json:
        show_json({"eta": args.eta, "seeds": args.seeds, "cells": found})
        return 0
    print("\n".join(grid(_table(found, names), lambda column: "<" if column in (0, 1, 3) else ">")))
    for name in names:
        mean = np.mean([cell["optimizers"][name]["regret"]["mean"] for cell in found])
        tell(f"{name}: mean regret {mean:.2f} oracle runs over {len(found)} workloads")
    return 0


def _cases(published: Published, args: argparse.Namespace) -> list[Case]:
    gpus = published.gpus if "all" in args.gpu else tuple(dict.fromkeys(g.casefold() for g in args.gpu))
    todo, unknown = [], set()
    for gpu in gpus:
        here, without_goal = cases(published, gpu, args.eta)
        todo += here
        unknown |= set(without_goal)
    for name in sorted(unknown):
        tell(f"{name} is left out: its target is not known, only those of {', '.join(GOALS)}")
    if not todo:
        raise NotFound(f"{args.data} has no training with a known target", f"known are {', '.join(GOALS)}")
    return todo


def _replayed(case: Case, names: tuple[str, ...], seeds: int, count: int | None) -> dict[str, Any]:
    """All that is found for one workload on one GPU."""
    base_j, base_s, _ = case.run(case.default, len(case.caps_w) - 1)
    at = case.oracle
    best_j, best_s, _ = case.run(at, int(case.best[at]))
    goal = GOALS.get(case.name)
    scored = {
        name: [score(case, replay(case, OPTIMIZERS[name], seed, count)) for seed in range(seeds)]
        for name in names
    }
    return {
        "gpu": case.gpu,
        "workload": case.name,
        "target": None if goal is None else goal.target,
        "max_epochs": case.task.max_epochs,
        "batches": list(case.task.batches),
        "power_limits_w": case.caps_w.tolist(),
        "recurrences": case.recurrences if count is None else count,
        "default": _config(case, case.default, len(case.caps_w) - 1, base_j, base_s),
        "oracle": _config(case, at, int(case.best[at]), best_j, best_s),
        "default_regret": default_regret(case, count),
        "optimizers": {name: _summary(scores) for name, scores in scored.items()},
    }


def _config(case: Case, batch: int, cap: int, energy_j: float, time_s: float) -> dict[str, Any]:
    return {
        "batch": case.task.batches[batch],
        "cap_w": float(case.caps_w[cap]),
        "energy_j": energy_j,
        "time_s": time_s,
    }


def _summary(scores: list[Score]) -> dict[str, Any]:
    """Mean, least and most of each figure over the seeds; null where it never was one."""
    rows = [asdict(each) for each in scores]
    summary: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if not math.isnan(row[name])]
        summary[name] = {
            "mean": float(np.mean(values)) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
            "never": len(rows) - len(values),
        }
    return summary


def _table(found: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    head = (
        "gpu",
        "workload",
        "recurrences",
        "optimizer",
        "last-5 energy saved",
        "regret",
        "within 10 % from",
        "default regret",
    )
    rows: list[tuple[str, ...]] = [head]
    for cell in found:
        for name in names:
            figures = cell["optimizers"][name]
            energy, regret, settles = (figures[key] for key in _SHOWN)
            at = "never" if settles["mean"] is None else f"{settles['mean']:.1f}"
            rows.append((
                cell["gpu"], cell["workload"], str(cell["recurrences"]), name,
                f"{energy['mean']:.1f} % ({energy['min']:.1f}..{energy['max']:.1f})",
                f"{regret['mean']:.1f} ({regret['min']:.1f}..{regret['max']:.1f})",
                at, f"{cell['default_regret']:.1f}",
            ))  # fmt: skip
    return rows
