"""Explanations: the reason for a job's state, its forecast, and alternatives that would change it."""

from __future__ import annotations

import time

import numpy as np

from wattline.core.queue import QUEUE_REQUESTED_GPUS
from wattline.core.reasons import REASONS, Reason
from wattline.loop.run import LoopStep
from wattline.service.fair_share import describe_gpu_quota, explain_account
from wattline.service.forecast import Forecast, changes_something
from wattline.service.http.access_schemas import AccountResponse
from wattline.service.http.schemas import ExplanationResponse, ForecastResponse
from wattline.service.market_offer import compute_offer
from wattline.service.satisfiability import find_unmet_requests
from wattline.service.states import LIVE_STATES
from wattline.service.storage.projection import JobRow
from wattline.service.view import ControllerView
from wattline.units import format_seconds, pluralize


def describe_reason(view: ControllerView, job: JobRow) -> str:
    """Return one sentence on why a job is not running, or how it ended; empty for a running job."""
    if job.state not in LIVE_STATES:
        done = "" if job.state == "SUCCEEDED" else f"Its exit code was {job.exit_code}."
        return job.message or done
    if job.cancelled:
        return "Cancelled, but it has not ended yet."
    if job.held and job.state == "PENDING":
        return "Held by its owner or an operator."
    if job.state == "RUNNING":
        return ""
    if job.withheld:
        withheld = view.withheld_reason(job.id)
        return "Not yet scheduled." if withheld is None else withheld.text
    now_s = view.clock()
    if job.retry_at_s is not None and job.retry_at_s > now_s:
        return f"{job.message} It is retried in {format_seconds(job.retry_at_s - now_s)}.".strip()
    if waits := view.engine_reason(job.id):
        return waits
    reason = _wait_reason(view, job)
    if reason is Reason.TOO_BIG:
        unmet = find_unmet_requests(view, job.submission["spec"], job.submission["columns"])
        return f"It waits for nodes that may come: {unmet[0]}." if unmet else reason.value
    if reason in (Reason.TEAM_GPU_QUOTA, Reason.USER_GPU_QUOTA):
        return describe_gpu_quota(view, job.team, job.user, reason is Reason.TEAM_GPU_QUOTA) or reason.value
    return "Not yet scheduled." if reason is Reason.NONE else reason.value


def _wait_reason(view: ControllerView, job: JobRow) -> Reason:
    position = view.queue_position(job.id)
    if view.step is None or position is None:
        return Reason.NONE
    return REASONS[int(view.step.placement.reason[position])]


REASON_CODES = tuple(reason.name.lower() for reason in REASONS)
"""Codes of the reasons for which a job in the queue waits, as `find_reason_code` returns them."""


def find_reason_code(view: ControllerView, job: JobRow) -> str:
    """Return the code of the reason for which a job waits; else its state in lower case."""
    if job.state != "PENDING":
        return job.state.lower()
    if job.held:
        return "held"
    if job.withheld and (withheld := view.withheld_reason(job.id)) is not None:
        return withheld.code
    if view.queue_position(job.id) is None:
        return "pending"
    return "engine" if view.engine_reason(job.id) else _wait_reason(view, job).name.lower()


def find_jobs_waiting(view: ControllerView, code: str) -> list[str]:
    """Return the ids of the jobs in the queue of the last decision that wait for a reason."""
    if view.step is None:
        return []
    state, reason = view.step.state, view.step.placement.reason
    waiting = (reason == REASON_CODES.index(code)) & ~state.queue.running
    return [str(id) for id in state.jobs.id[state.queue.job[waiting]]]


def explain(view: ControllerView, job: JobRow) -> ExplanationResponse:
    """Return the dominant reason for a job's state, the evidence, its forecast, and alternatives."""
    step = view.step
    held = job.held and job.state == "PENDING"
    in_queue = job.state in LIVE_STATES and not held
    position = view.queue_position(job.id) if in_queue else None
    waits = job.state == "PENDING" and position is not None
    code = find_reason_code(view, job)
    in_engine = waits and bool(view.engine_reason(job.id))
    evidence, expected, changes = _attempt_facts(job), None, list[ForecastResponse]()
    offer = None
    fair_share, account_facts = explain_account(view, job.team, job.user)
    if in_engine:  # the policy takes it for started, so that no forecast is known
        evidence.append("Its GPUs are reserved for it, and the engine has not started it yet.")
    elif step is not None and position is not None:
        evidence += _queue_facts(view, step, position) if waits else _budget_facts(step, position)
        evidence += account_facts
        forecast = Forecast.from_queue(view, position)
        expected = forecast.run("as things are")
        if (offer := compute_offer(forecast)) is not None and waits:
            evidence.append(f"At the market's prices, {offer.text}.")
        alternatives = forecast.run_alternatives() if waits else []
        changes = [one for one in alternatives if changes_something(one, expected)]
    return ExplanationResponse(
        job=job.id,
        state=job.state,  # type: ignore[arg-type]
        code=code,
        reason=describe_reason(view, job) or _describe_run(job),
        evidence=evidence,
        expected=expected,
        changes=changes,
        epoch=view.epoch,
        decided_s=None if step is None else step.state.now_s,
        fair_share=None if fair_share is None else AccountResponse(**fair_share),
        market=offer,
    )


def _describe_run(job: JobRow) -> str:
    """Return since when a job runs, and on which GPUs; empty unless it runs."""
    if job.state != "RUNNING" or job.start_s is None:
        return ""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.start_s))
    gpus = pluralize(len(job.allocation.get("gpus", ())), f"{job.allocation.get('kind', '')} GPU".strip())
    return f"Since {since} on {gpus}."


def _budget_facts(step: LoopStep, position: int) -> list[str]:
    """Return that a running job exceeds the budget and is not stopped for it, if that is so."""
    reason = step.plan.reason
    if reason is None or REASONS[int(reason[position])] is not Reason.OVER_BUDGET:
        return []
    return [
        "It draws more than the energy budget allows, even at its lowest power cap; it is not stopped"
        " because its job file has preemptible: false."
    ]


def _attempt_facts(job: JobRow) -> list[str]:
    facts = []
    runs = job.state == "RUNNING"
    if job.held and job.state == "PENDING":
        facts.append(f"It can start after: wattline release {job.id}")
    if job.starts > 1 or (job.starts and not runs):
        facts.append(f"It was started {pluralize(job.starts, 'time')}.")
    if job.state == "PENDING" and job.starts and job.message:
        facts.append(job.message)
    if job.kill_count:
        facts.append(f"It was killed {pluralize(job.kill_count, 'time')}.")
    if job.allocation.get("fused_with"):
        others = len(job.allocation["fused_with"])
        facts.append(
            f"It {'is' if runs else 'was'} trained as one array with {pluralize(others, 'other job')}."
        )
    if job.allocation.get("cap_w"):
        facts.append(f"Its GPUs {'have' if runs else 'had'} a power cap of {job.allocation['cap_w']:g} W.")
    if job.exit_code not in (None, 0) and job.message:  # else the reason is the exit code
        facts.append(f"Its exit code was {job.exit_code}.")
    return facts


def _queue_facts(view: ControllerView, step: LoopStep, position: int) -> list[str]:
    state = step.state
    requested = int(state.queue.block[QUEUE_REQUESTED_GPUS, position])
    waiting = ~state.queue.running
    ahead, waits = int(np.count_nonzero(waiting[:position])), int(np.count_nonzero(waiting))
    return [
        f"It requests {pluralize(requested, 'GPU')}; "
        f"{int(state.free_gpus.sum())} of {int(state.nodes.gpus.sum())} are free.",
        f"Pending jobs: {waits}, submitted before it: {ahead}; "
        f"running jobs: {int(np.count_nonzero(state.queue.running))}.",
        *(f"The energy budget is {text}." for text in view.budgets),
    ]
