"""Errors of the API as problem documents (RFC 9457)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from wattline.errors import (
    Conflict,
    InputError,
    NotAllowed,
    NotFound,
    StoreError,
    Unsatisfiable,
    WattlineError,
)
from wattline.jobfile import read_document
from wattline.service.http.auth import UnknownToken
from wattline.service.http.schemas import ProblemResponse

_STATUS: tuple[tuple[type[WattlineError], int], ...] = (
    (UnknownToken, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (InputError, 422),
    (StoreError, 503),
)
_TITLES = {
    400: "The request cannot be parsed",
    401: "The token is missing, unknown or expired",
    403: "The token does not allow this",
    404: "Not found",
    409: "Conflict with the current state",
    413: "The request body is too large",
    422: "The request is invalid",
    429: "Too many requests",
    503: "The state cannot be written",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": title,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemResponse"}}},
    }
    for status, title in _TITLES.items()
}
"""Error responses of every route, for the OpenAPI document."""


def problem_response(
    status: int, code: str, detail: str, hint: str = "", field: str = "", **headers: str
) -> Response:
    """Return a problem document; its type is `urn:wattline:` and *code*."""
    content = {
        "type": f"urn:wattline:{code}",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "hint": hint,
        **({"field": field} if field else {}),
    }
    return JSONResponse(content, status, headers=headers, media_type="application/problem+json")


def handle_problems(app: FastAPI) -> None:
    """Install handlers that turn exceptions into problem documents."""

    @app.exception_handler(WattlineError)
    async def handle_wattline_error(request: Request, error: WattlineError) -> Response:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        field = error.field if isinstance(error, Unsatisfiable) else ""
        return problem_response(status, error.code, error.message, error.hint, field, **headers)

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["loc"][:1] == ("body",) and first["type"] != "json_invalid" and _has_job_body(request):
            try:
                read_document(error.body, "job")  # raises the error in the words of a job file
            except WattlineError as job_error:
                return problem_response(422, job_error.code, job_error.message, job_error.hint)
        where = ".".join(str(step) for step in first["loc"])
        return problem_response(422, "bad_request", f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def handle_http_exception(request: Request, error: HTTPException) -> Response:
        headers = {str(k): str(v) for k, v in (error.headers or {}).items()}
        return problem_response(error.status_code, "http", str(error.detail), **headers)


def _has_job_body(request: Request) -> bool:
    return request.url.path in ("/api/v1/jobs", "/api/v1/plan")


def describe_problems(app: FastAPI) -> None:
    """Put `ProblemResponse` in the OpenAPI document, in place of FastAPI's own error schemas."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        document = build()
        schemas = document["components"]["schemas"]
        schemas["ProblemResponse"] = ProblemResponse.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
