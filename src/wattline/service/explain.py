"""Explanations: the reason for a job's state, its forecast, and alternatives that would change it."""

from __future__ import annotations

import numpy as np

from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.queue import QUEUE_REQUESTED_GPUS
from wattline.core.reasons import REASONS, Reason
from wattline.jobfile import JobFile
from wattline.loop.run import LoopStep
from wattline.loop.state import restore_state
from wattline.service.forecast import QUEUE_LIMIT, Forecast, current_state, select_jobs
from wattline.service.http.schemas import ExplanationResponse, ForecastResponse, PlanResponse
from wattline.service.states import LIVE_STATES
from wattline.service.storage.projection import JobRow
from wattline.service.submission import build_submissions
from wattline.service.view import ControllerView
from wattline.units import format_seconds


def describe_reason(view: ControllerView, job: JobRow) -> str:
    """Return one sentence on why a job is not running, or how it ended; empty for a running job."""
    if job.state not in LIVE_STATES:
        done = "It completed." if job.state == "SUCCEEDED" else f"Its exit code was {job.exit_code}."
        return job.message or done
    if job.held:
        return "Held by its owner or an operator."
    if job.cancelled:
        return "Cancelled, but it has not ended yet."
    if job.state == "RUNNING":
        return ""
    now_s = view.clock()
    if job.retry_at_s is not None and job.retry_at_s > now_s:
        return f"{job.message} It is retried in {format_seconds(job.retry_at_s - now_s)}.".strip()
    reason = _wait_reason(view, job)
    return "Not yet scheduled." if reason is Reason.NONE else reason.value


def _wait_reason(view: ControllerView, job: JobRow) -> Reason:
    position = view.queue_position(job.id)
    if view.step is None or position is None:
        return Reason.NONE
    return REASONS[int(view.step.placement.reason[position])]


def explain(view: ControllerView, job: JobRow) -> ExplanationResponse:
    """Return the dominant reason for a job's state, the evidence, its forecast, and alternatives."""
    step = view.step
    held = job.held and job.state == "PENDING"
    in_queue = job.state in LIVE_STATES and not held
    position = view.queue_position(job.id) if in_queue else None
    waits = job.state == "PENDING" and position is not None
    code = _wait_reason(view, job).name.lower() if waits else "held" if held else job.state.lower()
    evidence, expected, changes = _attempt_facts(job), None, list[ForecastResponse]()
    if step is not None and position is not None:
        evidence += _queue_facts(view, step, position) if waits else []
        forecast = Forecast.from_queue(view, position)
        expected = forecast.run("as things are")
        changes = forecast.run_alternatives() if waits else []
    return ExplanationResponse(
        job=job.id,
        state=job.state,  # type: ignore[arg-type]
        code=code,
        reason=describe_reason(view, job) or ("It is running." if job.state == "RUNNING" else ""),
        evidence=evidence,
        expected=expected,
        changes=changes,
        epoch=view.epoch,
        decided_s=None if step is None else step.state.now_s,
    )


def _attempt_facts(job: JobRow) -> list[str]:
    facts = []
    runs = job.state == "RUNNING"
    if job.held and job.state == "PENDING":
        facts.append(f"It can start after: wattline release {job.id}")
    if job.starts:
        facts.append(f"It was started {job.starts} time{'s' if job.starts > 1 else ''}.")
    if job.kill_count:
        facts.append(f"It was killed {job.kill_count} time{'s' if job.kill_count > 1 else ''}.")
    if job.allocation.get("fused_with"):
        others = len(job.allocation["fused_with"])
        facts.append(
            f"It {'is' if runs else 'was'} trained as one array with {others} other "
            f"job{'s' if others > 1 else ''}."
        )
    if job.allocation.get("cap_w"):
        facts.append(f"Its GPUs {'have' if runs else 'had'} a power cap of {job.allocation['cap_w']:g} W.")
    if job.exit_code not in (None, 0):
        facts.append(f"Its exit code was {job.exit_code}.")
    return facts


def _queue_facts(view: ControllerView, step: LoopStep, position: int) -> list[str]:
    state = step.state
    requested = int(state.queue.block[QUEUE_REQUESTED_GPUS, position])
    waiting = ~state.queue.running
    ahead, waits = int(np.count_nonzero(waiting[:position])), int(np.count_nonzero(waiting))
    return [
        f"It requests {requested} GPU{'s' if requested > 1 else ''}; "
        f"{int(state.free_gpus.sum())} of {int(state.nodes.gpus.sum())} are free.",
        f"Pending jobs: {waits}, submitted before it: {ahead}; "
        f"running jobs: {int(np.count_nonzero(state.queue.running))}.",
        *(f"The energy budget is {text}." for text in view.budgets),
    ]


def plan_job(view: ControllerView, job: JobFile, user: str, workdir: str) -> PlanResponse:
    """Return when and on what a job would run if it was submitted now, and with other numbers of GPUs.

    Of a sweep, the first member is planned.
    """
    submissions = build_submissions(job, user, workdir)
    first = submissions[0]
    state = current_state(view)
    front = np.arange(min(len(state.queue), QUEUE_LIMIT))
    state, _ = select_jobs(state, np.union1d(front, np.flatnonzero(state.queue.running)))
    columns = {name: [value] for name, value in first.columns.items()}
    columns["deadline_s"] = [first.columns["deadline_s"] or float("inf")]
    new = fill_host_shares(Jobs.of(id=["new"], submit_s=[state.now_s], fuse=[""], **columns), state.nodes)
    requested = job.resources.gpu_range[1]
    per_node, total = int(state.nodes.gpus.max()), int(state.nodes.gpus.sum())
    has_kind = state.nodes.accepted_kinds(new.gpu_kind)[0] != 0
    notes = (
        [f"this is a sweep of {len(submissions)} jobs: the first is planned"] if len(submissions) > 1 else []
    )
    if first.fuse:
        notes.append("its members may be trained as one array")
    if view.simulated:
        notes.append("GPUs are simulated here")
    if not has_kind:
        kinds = ", ".join(state.nodes.kind.names)
        notes.append(f"no GPU here is {' or '.join(job.resources.gpu_types)}: there are {kinds}")
    elif requested > total:
        notes.append(f"it requests {requested} GPUs and there are {total}")
    if not has_kind or requested > total:
        return PlanResponse(
            jobs=len(submissions), feasible=False, expected=None, alternatives=[], notes=notes
        )

    jobs = state.jobs.concatenate(new) if len(state.jobs) else new
    with_new = restore_state(
        jobs, state.nodes, state.seed, state.now_s, state.queue, state.leases, state.meter
    )
    forecast = Forecast(view, with_new, len(jobs) - 1, view.policy)

    def run_with(gpus: int) -> ForecastResponse:
        changed = forecast if gpus == requested else forecast.with_columns(gpus=gpus)
        return changed.run(f"with {gpus} GPU{'s' if gpus > 1 else ''}")

    others = sorted({n for n in (1, 2, 4, 8, per_node, requested) if n <= total and n != requested})
    return PlanResponse(
        jobs=len(submissions),
        feasible=True,
        expected=run_with(requested),
        alternatives=[run_with(gpus) for gpus in others[:4]],
        notes=notes,
    )
