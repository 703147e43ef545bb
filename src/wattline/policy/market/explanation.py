"""Explanation of a decision by its prices: why a job waits, and what would let it start now."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.policy.market.decision import MarketDecision
from wattline.policy.market.scene import Scene
from wattline.units import format_seconds

_HOUR_S = 3600.0


def format_amount(value: float) -> str:
    """Return an amount with three significant digits, and never as a power of ten from 1 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class JobOffer:
    """Offer of one job for GPUs, beside their price; money is in the unit of the policy's aim."""

    job: str
    runs: bool
    offer_per_gpu_h: float  # the most that a GPU-hour is worth to it; nan: no GPU is open to it
    price_per_gpu_h: float  # of the kind that suits it best
    starts_in_s: float  # 0: now; nan: not foreseen
    gpus_now: int  # GPUs with which its offer is high enough for the present price; 0: none

    @property
    def missing_per_gpu_h(self) -> float:
        """Difference of its offer to the present price; 0: none, nan: no GPU is open to it."""
        return 0.0 if self.runs else max(0.0, self.price_per_gpu_h - self.offer_per_gpu_h)

    def __str__(self) -> str:
        if self.runs:
            return (
                f"job {self.job} runs: a GPU-hour costs {format_amount(self.price_per_gpu_h)}, its GPUs"
                " are worth more"
            )
        if math.isnan(self.offer_per_gpu_h):
            return f"job {self.job} waits: no GPU of the kinds that it accepts is open to it"
        text = (
            f"job {self.job} waits: a GPU-hour costs {format_amount(self.price_per_gpu_h)} now and it offers"
            f" {format_amount(self.offer_per_gpu_h)}"
        )
        if self.gpus_now:
            text += f"; on {self.gpus_now} GPUs it could pay the price, but too few are free"
        elif self.missing_per_gpu_h > 0:
            text += f"; to start now it would have to give {format_amount(self.missing_per_gpu_h)} more"
        if self.starts_in_s > 0:
            text += f"; it is expected to start in about {format_seconds(self.starts_in_s)}"
        return text


@dataclass(frozen=True)
class MarketExplanation:
    """Prices of a decision, and the offer of each job of the queue."""

    kinds: tuple[str, ...]
    begin_s: tuple[float, ...]  # of the time buckets, from now
    gpu_h: tuple[tuple[float, ...], ...]  # price of a GPU-hour by kind and bucket
    joule: float  # price of a joule now, budgets included
    budget_joule: float  # the part of it that is due to budgets
    gap: float
    offers: tuple[JobOffer, ...]


def explain_decision(
    snapshot: Snapshot, decision: MarketDecision, only: int | None = None
) -> MarketExplanation:
    """Return the prices of *decision* and what each job offers, or *only* that of one row.

    The offer of a member of a fused array is that of the whole array.
    """
    scene = decision.scene
    prices, kinds = decision.prices, snapshot.nodes.kind.names
    if prices is None:
        return MarketExplanation(kinds, (), (), math.nan, 0.0, math.nan, ())
    offers, start_s = [], prices.find_starts()
    ids = snapshot.jobs.id[snapshot.queue.job]
    for job in range(len(scene.work_s)) if only is None else (only,):
        row = int(scene.leader[job])
        each = _list_offers(scene, decision, row)
        net = each - prices.gpu[:, :1]
        kind = int(np.argmax(net.max(axis=1))) if np.isfinite(each).any() else 0
        pays = np.flatnonzero(net[kind] >= 0) if np.isfinite(each).any() else np.empty(0, dtype=np.int64)
        of = int(scene.job_class[row]) + kind * scene.classes
        runs = bool(decision.kind[row] >= 0)
        offers.append(
            JobOffer(
                job=str(ids[job]),
                runs=runs,
                offer_per_gpu_h=float(decision.offer[row]) * _HOUR_S,
                price_per_gpu_h=float(prices.gpu[kind, 0]) * _HOUR_S,
                starts_in_s=0.0 if runs else float(start_s[row]),
                gpus_now=int(scene.configs.gpus[of, pays[0]]) if len(pays) and not runs else 0,
            )
        )
    return MarketExplanation(
        kinds=kinds,
        begin_s=tuple(prices.buckets.begin_s.tolist()),
        gpu_h=tuple(tuple(row) for row in (prices.gpu * _HOUR_S).tolist()),
        joule=decision.energy_price,
        budget_joule=decision.budget_price,
        gap=decision.gap,
        offers=tuple(offers),
    )


def _list_offers(scene: Scene, decision: MarketDecision, row: int) -> Floats:
    """Return what a GPU-second is worth to a row by kind and size; -inf: it is not open to it."""
    by_kind = scene.job_class[row] + np.arange(scene.kinds) * scene.classes
    return np.where(
        np.isfinite(decision.worth[row]), decision.worth[row] / scene.configs.gpus[by_kind], -np.inf
    )
