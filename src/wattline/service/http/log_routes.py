"""Routes of the output of jobs: as text, as server-sent events, and in pages of lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from wattline.service.http.log_stream import LogStream
from wattline.service.http.routes import Caller, PathJobId, Service, refuse_unknown_parameters
from wattline.service.job_logs import LogPosition, LogReader, find_log, list_ranks
from wattline.service.log_pages import MOST_LINES, LogPage, read_log_page

log_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])

POSITION = r"^([0-9]{1,9}:[0-9]{1,18}:[0-9]{1,20})?$"
"""Pattern of a position in a log: attempt, byte and file; or nothing."""


class LogLinesResponse(BaseModel):
    """A page of a log. Positions are attempt, byte and file, as in the ids of the stream."""

    model_config = ConfigDict(extra="forbid")

    attempt: int | None = Field(description="null: the job has not started")
    ranks: list[int] = Field(description="ranks of this attempt that have logs")
    lines: list[str] = Field(description="finished lines, the oldest first")
    unfinished: str | None = Field(description="last line while it has no newline, such as a progress bar")
    before: str | None = Field(description="pass it as `before` to get earlier lines; null: none is earlier")
    end: str | None = Field(description="pass it as `since` to follow; null: this is not the newest page")
    lost: bool = Field(description="lines before the asked position were deleted when the log was rotated")


@log_router.get(
    "/api/v1/jobs/{job}/logs",
    tags=["jobs"],
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}}},
)
def show_job_log(
    job: PathJobId,
    caller: Caller,
    controller: Service,
    rank: Annotated[int, Query(ge=0, le=4095)] = 0,
    attempt: Annotated[int, Query(ge=0, le=10**6, description="0: the latest")] = 0,
    tail: Annotated[int, Query(ge=-1, le=10**6, description="number of last lines; -1: all")] = -1,
    follow: Annotated[bool, Query(description="send server-sent events until the job ends")] = False,
    raw: Annotated[bool, Query(description="with follow: send the output as it comes, not by lines")] = False,
    since: Annotated[
        str, Query(pattern=POSITION, description="with follow: only what comes after this position")
    ] = "",
    last_event_id: Annotated[str, Header(pattern=r"^([0-9]{1,9}:[0-9]{1,18}(:[0-9]{1,20})?)?$")] = "",
) -> Response:
    """Return the output of a job, as text or as server-sent events that close with the event `end`.

    The default event is a line. While a line is unfinished, such as a progress bar, the event `bar` is its
    text now. With *raw* the event `output` is a JSON string of what was written, with carriage returns;
    bytes that are not UTF-8 are the surrogates U+DC80 to U+DCFF. The id of an event is the position after it.
    """
    controller.job(job)
    path = find_log(controller.folder, job, attempt or None, rank)  # raises before a stream starts
    lines = None if tail < 0 else tail
    if not follow:
        blocks = () if path is None else LogReader(path).read(lines)
        return StreamingResponse(blocks, media_type="text/plain; charset=utf-8")
    stream = LogStream(controller, job, attempt or None, rank, raw).send(lines, last_event_id or since)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@log_router.get("/api/v1/jobs/{job}/logs/lines", tags=["jobs"])
def show_log_lines(
    job: PathJobId,
    caller: Caller,
    controller: Service,
    rank: Annotated[int, Query(ge=0, le=4095)] = 0,
    attempt: Annotated[int, Query(ge=0, le=10**6, description="0: the latest")] = 0,
    before: Annotated[str, Query(pattern=POSITION, description="lines before this position")] = "",
    search: Annotated[str, Query(max_length=200, description="only lines with this text, in any case")] = "",
    lines: Annotated[int, Query(ge=1, le=MOST_LINES)] = 200,
) -> LogLinesResponse:
    """Show the last lines of a job's output, or those before a position, in pages.

    Of a line that is drawn again, such as a progress bar, it is the last state. A search reads at most
    32 MiB: a page with fewer lines than asked for may have an earlier one.
    """
    controller.job(job)
    number, page = read_job_lines(controller.folder, job, attempt, rank, before, lines, search)
    if page is None:
        return LogLinesResponse(
            attempt=None, ranks=[], lines=[], unfinished=None, before=None, end=None, lost=False
        )
    return LogLinesResponse(
        attempt=number,
        ranks=list_ranks(controller.folder, job, number),
        lines=[line.text.decode("utf-8", "replace") for line in page.lines],
        unfinished=None if page.unfinished is None else page.unfinished.text.decode("utf-8", "replace"),
        before=format_position(number, page.before),
        end=format_position(number, page.end),
        lost=page.is_lost,
    )


def read_job_lines(
    root: Path, job: str, attempt: int, rank: int, before: str, count: int, search: str
) -> tuple[int, LogPage | None]:
    """Return the number of an attempt and a page of its log; None: the job has not started.

    *before* names its attempt; else *attempt* does, of which 0 is the latest.
    """
    number, *place = [int(word) for word in before.split(":")] if before else [attempt]
    path = find_log(root, job, number or None, rank)
    if path is None:
        return 0, None
    position = LogPosition(inode=place[1], offset=place[0]) if place else None
    return int(path.parent.name), read_log_page(path, position, count, search)


def format_position(attempt: int, position: LogPosition | None) -> str | None:
    """Return a position as text, as in the ids of the stream; None for None."""
    return None if position is None else f"{attempt}:{position.offset}:{position.inode}"
