"""Plan of a job that is not submitted: when, on what and with how much energy it would run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.preemption import preemption_columns
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.errors import Unsatisfiable
from wattline.jobfile import JobFile
from wattline.loop.state import restore_state
from wattline.service.forecast import QUEUE_LIMIT, Forecast, current_state, select_jobs
from wattline.service.http.schemas import ForecastResponse, PlanResponse
from wattline.service.market_offer import compute_offer
from wattline.service.satisfiability import check_satisfiable, limit_request
from wattline.service.submission import DEFAULT_DURATION_S, Submission, build_submissions
from wattline.service.view import ControllerView
from wattline.units import format_seconds, pluralize

_MOST_ALTERNATIVES = 4


def plan_job(
    view: ControllerView, job: JobFile, user: str, workdir: str, expected_s: float | None = None
) -> PlanResponse:
    """Return when and on what a job would run if it was submitted now, and with other numbers of GPUs.

    Of a sweep, the first member is planned. *expected_s* is the mean run time of earlier recurrences.
    """
    submissions = build_submissions(job, user, workdir, expected_s)
    first = replace(submissions[0], columns=limit_request(submissions[0].columns, view.nodes))
    notes = _list_notes(view, job, submissions, expected_s)
    try:
        check_satisfiable(view, job, first)
    except Unsatisfiable as error:
        return PlanResponse(
            jobs=len(submissions),
            feasible=False,
            reason=error.message,
            field=error.field,
            expected=None,
            alternatives=[],
            notes=notes,
        )
    forecast = _build_forecast(view, first)
    requested, total = first.columns["gpus"], int(view.nodes.gpus.sum())

    def run_with(gpus: int) -> ForecastResponse:
        changed = forecast if gpus == requested else forecast.with_columns(gpus=gpus)
        return changed.run(f"with {pluralize(gpus, 'GPU')}")

    expected = run_with(requested)
    others = sorted({n for n in (1, 2, 4, 8, int(view.nodes.gpus.max())) if n <= total and n != requested})
    alternatives = [run_with(gpus) for gpus in others[:_MOST_ALTERNATIVES]]
    offer = compute_offer(forecast)
    if offer is not None:
        notes.append(f"at the market's prices, {offer.text}")
    return PlanResponse(
        jobs=len(submissions),
        feasible=not expected.never_starts,
        reason=expected.reason if expected.never_starts else "",
        field="",
        expected=expected,
        alternatives=alternatives,
        notes=notes,
        market=offer,
    )


def _build_forecast(view: ControllerView, submission: Submission) -> Forecast:
    """Return the forecast of a job that arrives now, behind the running jobs and the front of the queue."""
    state = current_state(view)
    front = np.arange(min(len(state.queue), QUEUE_LIMIT))
    state, _ = select_jobs(state, np.union1d(front, np.flatnonzero(state.queue.running)))
    columns = {name: [value] for name, value in submission.columns.items()}
    columns["deadline_s"] = [submission.columns["deadline_s"] or float("inf")]
    record = JobRecord(JobSpec.from_dict({"id": "new", **submission.spec}), submission.columns, state.now_s)
    columns |= {name: [value] for name, value in preemption_columns(record).items()}
    new = fill_host_shares(Jobs.of(id=["new"], submit_s=[state.now_s], fuse=[""], **columns), state.nodes)
    jobs = state.jobs.concatenate(new) if len(state.jobs) else new
    with_new = restore_state(
        jobs,
        state.nodes,
        state.seed,
        state.now_s,
        state.queue,
        state.leases,
        state.meter,
        state.usage,
        state.quotas,
    )
    return Forecast(view, with_new, len(jobs) - 1, view.policy)


def _list_notes(
    view: ControllerView, job: JobFile, submissions: list[Submission], expected_s: float | None
) -> list[str]:
    notes = []
    if len(submissions) > 1:
        notes.append(f"this is a sweep of {len(submissions)} jobs: the first is planned")
    if submissions[0].fuse:
        notes.append("its members may be trained as one array")
    if job.dependencies:
        notes.append("depends_on is not part of this forecast: it is as if these jobs had ended")
    if view.simulated:
        notes.append("GPUs are simulated here")
    if expected_s is None and job.resources.time_s is None:
        notes.append(f"its duration is assumed to be {format_seconds(DEFAULT_DURATION_S)}: it has no time")
    elif expected_s is None:
        notes.append("its duration is assumed to be its time limit")
    return notes
