"""Results of `wattline reproduce` as text of 80 columns, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from wattline.papers.reproduction_text import (
    COLUMNS,
    EFFECT_COLUMNS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    list_effect_rows,
    list_rows,
    list_step_rows,
    list_summary,
)
from wattline.papers.results import PaperResult, Sample
from wattline.text_table import format_table

_WIDTH = 80


def print_result(one: PaperResult) -> None:
    """Print an experiment with its conditions."""
    print(one.title)
    for name, text in (
        ("claim", one.claim),
        ("original", one.original),
        ("conditions", one.conditions),
        ("left out", one.left_out),
    ):
        if text:
            print(fill(text, _WIDTH, initial_indent=f"  {name:12}", subsequent_indent=" " * 14))
    for columns, rows in _list_tables(one):
        print()
        print("\n".join(format_table(columns, rows)))
    notes = () if one.figure == "steps" else one.notes  # the table of steps has them
    if notes:
        print()
    for note in notes:
        print(fill(f"- {note}", _WIDTH, initial_indent="  ", subsequent_indent="    "))
    print(flush=True)


def print_summary(found: Sequence[PaperResult]) -> None:
    """Print a row of each experiment."""
    print("Means of the cases, least to most")
    print("\n".join(format_table(SUMMARY_COLUMNS, list_summary(found))))


def _list_tables(one: PaperResult) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    if one.figure == "steps":
        return [(STEP_COLUMNS, list_step_rows(one)), (EFFECT_COLUMNS, list_effect_rows(one))]
    return [(COLUMNS, list_rows(one))] if one.cases else []


def describe_result(one: PaperResult) -> dict[str, Any]:
    """Return an experiment as JSON; every row says what its data is."""
    return {
        "title": one.title,
        "claim": {"text": one.claim, "low": _finite(one.low), "high": _finite(one.high)},
        "unit": one.unit.strip(),
        "original": one.original,
        "conditions": one.conditions,
        "left_out": one.left_out or None,
        "cases": [
            {
                "case": case.case,
                "data": case.data,
                "original": None if case.original is None else _describe_sample(case.original),
                "ours": _describe_sample(case.ours),
                "losses": case.losses,
            }
            for case in one.cases
        ],
        "notes": list(one.notes),
        **one.extra,
    }


def _describe_sample(sample: Sample) -> dict[str, Any]:
    return {
        "mean": _finite(sample.mean),
        "interval": [_finite(value) for value in sample.interval],
        "values": [_finite(value) for value in sample.values],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
