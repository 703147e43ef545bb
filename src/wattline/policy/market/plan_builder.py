"""Plan of a decision of the market."""

from __future__ import annotations

import numpy as np

from wattline.core.plan import Plan
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.reasons import REASONS, Reason
from wattline.core.resource_prices import BUDGETS, ENERGY, KWH, WATTS, ResourcePrices
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.policy.budget_limits import CAP_WATTS, JOULES, BudgetLimits
from wattline.policy.chain import keep_reasons
from wattline.policy.elastic.power_draw import fill_default_caps
from wattline.policy.market.decision import MarketDecision

_HOUR_S = 3600.0
_NO_ROOM, _TOO_BIG, _OUTRANKED = (
    REASONS.index(reason) for reason in (Reason.NO_ROOM, Reason.TOO_BIG, Reason.OUTRANKED)
)


def build_plan(
    snapshot: Snapshot,
    decision: MarketDecision,
    limits: BudgetLimits,
    plan: Plan | None,
    next_decision_s: float,
    fills_gaps: bool,
) -> Plan:
    """Return the plan of *decision*; if it *fills_gaps*, rows that wait follow at their least size.

    The kinds come one after the other, jobs that keep their size before others, then the largest: small jobs
    fill the gaps. The members of an array follow its leader.
    """
    scene = decision.scene
    configs, kind = scene.configs, decision.kind
    gpus = scene.count_gpus(kind, decision.size)
    runs = np.flatnonzero(kind >= 0)
    runs = runs[np.lexsort((-gpus[runs], gpus[runs] != scene.held[runs], kind[runs]))]
    waits = np.flatnonzero((kind < 0) & (scene.open_to > 0)) if fills_gaps else runs[:0]
    row = np.concatenate((runs, waits))
    least_kind = np.array(
        [(mask & -mask).bit_length() - 1 for mask in scene.open_to[waits].tolist()], np.int64
    )
    of = scene.find_class(np.concatenate((kind[runs], least_kind)), row)
    size, cap = np.maximum(decision.size[row], 0), decision.cap[row].copy()
    cap[len(runs) :] = configs.cap_w.shape[2] - 1
    is_capped = bool((limits.unit == CAP_WATTS).any())  # a cap that is not set could not be held
    cap_w = fill_default_caps(configs, snapshot.nodes) if is_capped else configs.cap_w
    member, row_of = _list_members(scene.leader, row)
    of, size, cap = of[row_of], size[row_of], cap[row_of]
    return Plan(
        row=member,
        gpus=np.ascontiguousarray(configs.gpus[of, size]),
        group=scene.leader[member],
        next_decision_s=next_decision_s if plan is None else min(next_decision_s, plan.next_decision_s),
        cap_w=np.ascontiguousarray(cap_w[of, size, cap]),
        batch=np.ascontiguousarray(configs.batch[of, size, cap]) if configs.has_batches else None,
        reason=_complete_reasons(snapshot, decision, plan),
        needs_meter=len(limits.amount) > 0 or (plan is not None and plan.needs_meter),
        kind=np.ascontiguousarray(kind[row][row_of]) if scene.kinds > 1 else None,
        gap=decision.gap,
        prices=_name_prices(snapshot, decision, limits),
        move_cost=None if decision.move_cost is None else decision.move_cost[row][row_of],
    )


def _list_members(leader: Ints, row: Ints) -> tuple[Ints, Ints]:
    """Return the rows of all arrays that *row* leads, leaders first, and the index in *row* of each."""
    every = np.arange(len(leader), dtype=np.int64)
    index = np.full(len(leader), -1, dtype=np.int64)
    index[row] = np.arange(len(row))
    member = every[(index[leader] >= 0)]
    member = member[np.lexsort((leader[member] != member, index[leader[member]]))]
    return member, index[leader[member]]


def _name_prices(snapshot: Snapshot, decision: MarketDecision, limits: BudgetLimits) -> ResourcePrices:
    """Return the prices of *decision* for the log; without a job that could run, GPUs are free."""
    nodes, prices = snapshot.nodes, dict[str, float]()
    for k, kind in enumerate(nodes.kind.names):
        prices[kind] = 0.0 if decision.prices is None else float(decision.prices.gpu[k, 0]) * _HOUR_S
    if len(limits.amount):
        is_energy = limits.unit == JOULES
        name = KWH if is_energy.all() else BUDGETS if is_energy.any() else WATTS
        full_w = float(np.average(nodes.busy_w, weights=nodes.gpus))
        prices[name] = decision.budget_price * full_w * _HOUR_S
    prices[ENERGY] = decision.energy_price
    return ResourcePrices.of(prices, decision.bound)


def _complete_reasons(snapshot: Snapshot, decision: MarketDecision, plan: Plan | None) -> Ints:
    """Return the reasons of *decision*; rows that no kind is large enough for, even with all up, are too big.

    Of the rows that could run if more GPUs were free, all but the first in line are outranked: the one of the
    least precedence that offers most.
    """
    nodes, scene, reason = snapshot.nodes, decision.scene, decision.reason
    shut = np.flatnonzero(reason == _NO_ROOM)
    line = shut[(scene.open_to[shut] > 0) | scene.outranked[shut]]
    if len(line) > 1:
        rank = np.zeros(len(reason), dtype=np.int64)
        if plan is not None and plan.precedence is not None:
            rank[plan.row] = plan.precedence
        offer = np.nan_to_num(decision.offer[line], nan=-np.inf)
        reason = reason.copy()
        reason[line[np.lexsort((-offer, rank[line]))[1:]]] = _OUTRANKED
    if len(shut):
        total = np.bincount(nodes.kind.codes, nodes.gpus, scene.kinds).astype(np.int64)
        accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)[shut]
        fits = np.zeros(len(shut), dtype=np.bool_)
        for k in range(scene.kinds):
            least = scene.configs.gpus[scene.job_class[shut] + k * scene.classes, 0]
            fits |= ((accepts >> k) & 1 == 1) & (least <= total[k])
        reason = reason.copy()
        reason[shut[~fits]] = _TOO_BIG
    return reason if plan is None else keep_reasons(plan, plan.row, reason)
