"""Prices of the market as they concern one job: why it waits, and what would let it start now."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wattline.core.events import ARRIVED, Event, build_events
from wattline.loop.state import advance, build_empty_decision
from wattline.policy.market.job_offer import explain_offer
from wattline.service.forecast import Forecast
from wattline.service.http.schemas import MarketResponse


def compute_offer(forecast: Forecast) -> MarketResponse | None:
    """Return the offer of the job of *forecast* beside the prices now; None: the policy has no prices.

    A job that is not submitted arrives first.
    """
    state = forecast.state
    row = int(np.searchsorted(state.queue.job, forecast.row))
    if row == len(state.queue) or state.queue.job[row] != forecast.row:
        arrived = build_events(Event(ARRIVED, forecast.row, state.now_s))
        accepted = state.nodes.accepted_kinds(state.jobs.gpu_kind)
        state = advance(state, build_empty_decision(state), state.now_s, arrived, state.jobs, accepted)
        row = int(np.searchsorted(state.queue.job, forecast.row))
    found = explain_offer(forecast.policy, state, forecast.view.models, row)
    if found is None or not found.offers:
        return None
    (offer,) = found.offers
    return MarketResponse(
        gpu_h={kind: prices[0] for kind, prices in zip(found.kinds, found.gpu_h, strict=True)},
        joule=found.joule,
        budget_joule=found.budget_joule,
        offer_per_gpu_h=_finite(offer.offer_per_gpu_h),
        price_per_gpu_h=offer.price_per_gpu_h,
        missing_per_gpu_h=_finite(offer.missing_per_gpu_h),
        gpus_now=offer.gpus_now or None,
        starts_in_s=_finite(offer.starts_in_s),
        text=str(replace(offer, starts_in_s=math.nan)),  # the forecast simulates it, and is more exact
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
