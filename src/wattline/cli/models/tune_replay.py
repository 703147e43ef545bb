"""Optimisers on recorded trainings, for `wattline tune replay`."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

import numpy as np

from wattline.batch_size.bandit import Optimizer, Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import RecordedTables, read_tables
from wattline.batch_size.replay import GOALS, Score, TuningCase, build_cases, default_regret, replay, score
from wattline.cli.output import notify, print_json, print_table, progress_bar
from wattline.errors import NotFound
from wattline.units import pluralize

OPTIMIZERS: dict[str, Optimizer[Any]] = {"zeus": Zeus(), "wattline": BayesianTuner()}
_FIGURES = ("last_energy", "regret", "settles10")
_COLUMNS = (
    "gpu",
    "workload",
    "recurrences",
    "optimizer",
    "last-5 energy saved",
    "regret",
    "within 10 % from",
    "default regret",
)
_NUMBERS = tuple(name for name in _COLUMNS if name not in ("gpu", "workload", "optimizer"))


def replay_recorded(args: argparse.Namespace) -> int:
    """Replay recorded workloads; print a line for each workload and optimiser."""
    recorded = read_tables(args.data)
    names = tuple(OPTIMIZERS) if args.optimizer == "both" else (args.optimizer,)
    todo = _list_cases(recorded, args)
    results: list[dict[str, Any]] = []
    with progress_bar("replaying", len(todo)) as update:
        for case in todo:
            results.append(_replay_case(case, names, args.seeds, args.recurrences))
            update(len(results))
    if args.json:
        print_json({"eta": args.eta, "seeds": args.seeds, "cells": results})
        return 0
    print_table(_COLUMNS, _build_rows(results, names), right=_NUMBERS)
    for name in names:
        mean = np.mean([result["optimizers"][name]["regret"]["mean"] for result in results])
        notify(f"{name}: mean regret {mean:.2f} oracle runs over {pluralize(len(results), 'workload')}")
    return 0


def _list_cases(recorded: RecordedTables, args: argparse.Namespace) -> list[TuningCase]:
    gpus = recorded.gpus if "all" in args.gpu else tuple(dict.fromkeys(g.casefold() for g in args.gpu))
    todo, unknown = [], set()
    for gpu in gpus:
        on_gpu, without_goal = build_cases(recorded, gpu, args.eta)
        todo += on_gpu
        unknown |= set(without_goal)
    for name in sorted(unknown):
        notify(f"{name} is left out: only the targets of {', '.join(GOALS)} are known")
    if not todo:
        raise NotFound(
            f"{args.data} has no training with a known target", f"targets are known of {', '.join(GOALS)}"
        )
    return todo


def _replay_case(case: TuningCase, names: tuple[str, ...], seeds: int, count: int | None) -> dict[str, Any]:
    """Replay one workload on one GPU with every optimiser and seed."""
    full_cap = len(case.caps_w) - 1
    oracle, oracle_cap = case.oracle, int(case.best_cap[case.oracle])
    goal = GOALS.get(case.name)
    scores = {
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
        "default": _encode_setting(case, case.default_index, full_cap),
        "oracle": _encode_setting(case, oracle, oracle_cap),
        "default_regret": default_regret(case, count),
        "optimizers": {name: _summarize(of_seeds) for name, of_seeds in scores.items()},
    }


def _encode_setting(case: TuningCase, batch: int, cap: int) -> dict[str, Any]:
    energy_j, time_s, _ = case.expected_run(batch, cap)
    return {
        "batch": case.task.batches[batch],
        "cap_w": float(case.caps_w[cap]),
        "energy_j": energy_j,
        "time_s": time_s,
    }


def _summarize(scores: list[Score]) -> dict[str, Any]:
    """Return mean, least and most of each figure over the seeds; null if it is nan for all."""
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


def _build_rows(results: list[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for result in results:
        for name in names:
            energy, regret, settles = (result["optimizers"][name][key] for key in _FIGURES)
            rows.append((
                result["gpu"], result["workload"], str(result["recurrences"]), name,
                f"{energy['mean']:.1f} % ({energy['min']:.1f}..{energy['max']:.1f})",
                f"{regret['mean']:.1f} ({regret['min']:.1f}..{regret['max']:.1f})",
                "never" if settles["mean"] is None else f"{settles['mean']:.1f}",
                f"{result['default_regret']:.1f}",
            ))  # fmt: skip
    return rows
