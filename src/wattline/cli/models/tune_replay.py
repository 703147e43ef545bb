"""Optimisers on recorded trainings, for `wattline tune replay`."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from wattline.batch_size.bandit import Optimizer, Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import RecordedTables, read_tables
from wattline.batch_size.replay import GOALS, Score, TuningCase, build_cases, default_regret, replay, score
from wattline.cli.output import check_writable, notify, print_json, print_table, progress_bar
from wattline.errors import ConfigError, NotFound
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
    "target",
)
_NUMBERS = tuple(name for name in _COLUMNS if name not in ("gpu", "workload", "optimizer"))


def replay_recorded(args: argparse.Namespace) -> int:
    """Replay recorded workloads; print a line for each workload and optimiser."""
    check_writable(args.html)
    recorded = read_tables(args.data)
    names = tuple(OPTIMIZERS) if args.optimizer == "both" else (args.optimizer,)
    todo = _list_cases(recorded, args)
    results: list[dict[str, Any]] = []
    with progress_bar("replaying", len(todo)) as update:
        for case in todo:
            results.append(_replay_case(case, names, args.seeds, args.recurrences))
            update(len(results))
    if args.html:
        from wattline.reports.html.tuning_page import write_tuning_page

        rows = _build_rows(results, names)
        write_tuning_page(args.html, args.data, args.seeds, args.eta, results, _COLUMNS, rows)
        notify(f"page: {args.html}")
    if args.json:
        print_json({"eta": args.eta, "seeds": args.seeds, "cells": results})
        return 0
    print_table(_COLUMNS, _build_rows(results, names), right=_NUMBERS)
    for name in names:
        regrets = [result["optimizers"][name]["regret"]["mean"] for result in results]
        known = [regret for regret in regrets if regret is not None]
        if known:
            over = pluralize(len(known), "workload")
            notify(f"{name}: mean regret {np.mean(known):.2f} oracle runs over {over}")
        if len(known) < len(results):
            never = pluralize(len(results) - len(known), "workload")
            notify(f"{name}: {never} never reached the target")
    return 0


def _list_cases(recorded: RecordedTables, args: argparse.Namespace) -> list[TuningCase]:
    gpus = recorded.gpus if "all" in args.gpu else tuple(dict.fromkeys(g.casefold() for g in args.gpu))
    todo, unknown = [], set()
    for gpu in gpus:
        on_gpu, without_goal = build_cases(recorded, gpu, args.eta, all_targets=args.all_targets)
        for case in on_gpu:
            if np.isinf(case.mean_epochs).all():
                notify(f"{case.name} on {gpu} is left out: no run reaches the target {case.target:g}")
            else:
                todo.append(case)
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
    oracle, oracle_cap = case.oracle, int(case.best_cap[case.oracle])
    full_cap = int(case.full_cap[case.default_index])
    scores = {
        name: [_score_seed(case, OPTIMIZERS[name], seed, count) for seed in range(seeds)] for name in names
    }
    bound = default_regret(case, count)
    return {
        "gpu": case.gpu,
        "workload": case.name,
        "target": case.target,
        "max_epochs": case.task.max_epochs,
        "batches": list(case.task.batches),
        "power_limits_w": case.caps_w.tolist(),
        "recurrences": case.recurrences if count is None else count,
        "default": _encode_setting(case, case.default_index, full_cap),
        "oracle": _encode_setting(case, oracle, oracle_cap),
        "default_regret": bound if math.isfinite(bound) else None,
        "optimizers": {name: _summarize(of_seeds) for name, of_seeds in scores.items()},
    }


def _score_seed(
    case: TuningCase, optimizer: Optimizer[Any], seed: int, count: int | None
) -> dict[str, float]:
    """Return the figures of one replay, all nan if the optimiser gave up."""
    try:
        return asdict(score(case, replay(case, optimizer, seed, count)))
    except ConfigError:  # such as: the default did not reach the target
        return {field.name: math.nan for field in fields(Score)}


def _encode_setting(case: TuningCase, batch: int, cap: int) -> dict[str, Any]:
    energy_j, time_s, _ = case.expected_run(batch, cap)
    reached = math.isfinite(time_s)
    return {
        "batch": case.task.batches[batch],
        "cap_w": float(case.caps_w[cap]),
        "energy_j": energy_j if reached else None,
        "time_s": time_s if reached else None,
    }


def _summarize(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Return mean, least and most of each figure over the seeds; null if it is nan for all."""
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
            bound = result["default_regret"]
            rows.append((
                result["gpu"], result["workload"], str(result["recurrences"]), name,
                _format_spread(energy, " %"), _format_spread(regret),
                "never" if settles["mean"] is None else f"{settles['mean']:.1f}",
                "never reached" if bound is None else f"{bound:.1f}", f"{result['target']:g}",
            ))  # fmt: skip
    return rows


def _format_spread(figure: dict[str, Any], unit: str = "") -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:.1f}{unit} ({figure['min']:.1f}..{figure['max']:.1f})"
