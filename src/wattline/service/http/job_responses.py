"""Jobs of the store as responses of the API, with their live status."""

from __future__ import annotations

from wattline.backend.engine.folder_layout import log_file
from wattline.service.controller import Controller
from wattline.service.explain import describe_reason, find_reason_code
from wattline.service.http.schemas import JobResponse
from wattline.service.job_logs import LogReader, find_log
from wattline.service.storage.projection import JobRow

_TAIL_LINES, _TAIL_CHARACTERS = 10, 500


def build_job_responses(controller: Controller, rows: list[JobRow]) -> list[JobResponse]:
    """Return the responses of several jobs, all as of the same decision."""
    view, now_s = controller.view(), controller.clock()
    responses = []
    for row in rows:
        live = controller.live_status(row.id)
        if not live and row.state == "RUNNING":  # it has ended since it was read
            row = controller.job(row.id)
        log = str(log_file(controller.folder, row.id, row.starts)) if row.starts else ""
        response = JobResponse.from_row(row, live, describe_reason(view, row), now_s, log)
        waits = row.state == "PENDING" and not row.held and not row.withheld
        position = view.queue_position(row.id) if waits else None
        update = {"reason_code": find_reason_code(view, row), "queue_position": position}
        responses.append(response.model_copy(update=update))
    return responses


def build_job_response(controller: Controller, row: JobRow) -> JobResponse:
    """Return the response of one job."""
    return build_job_responses(controller, [row])[0]


def add_log_tail(controller: Controller, job: JobResponse) -> JobResponse:
    """Return *job* with the last lines of its log if it did not end well, or waits for a retry."""
    waits = job.state == "PENDING" and job.kill_count > 0
    if not job.starts or (job.state in ("PENDING", "RUNNING", "SUCCEEDED", "CANCELLED") and not waits):
        return job
    path = find_log(controller.folder, job.id, None, 0)
    lines = b"" if path is None else b"".join(LogReader(path).read(_TAIL_LINES))
    text = [line[:_TAIL_CHARACTERS] for line in lines.decode("utf-8", "replace").splitlines()]
    return job.model_copy(update={"log_tail": text})
