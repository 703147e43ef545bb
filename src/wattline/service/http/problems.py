"""Complaints of the API as problem documents (RFC 9457)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from wattline.errors import Conflict, InputError, NotAllowed, NotFound, StoreError, WattlineError
from wattline.jobfile import read_document
from wattline.service.http import schemas as shapes
from wattline.service.http.auth import Unknown

_STATUS: tuple[tuple[type[WattlineError], int], ...] = (
    (Unknown, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (InputError, 422),
    (StoreError, 503),
)
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in (
        (400, "The request cannot be read"),
        (401, "No token, or one that is not good"),
        (403, "The token does not allow it"),
        (404, "No such thing"),
        (409, "Not as things are now"),
        (413, "The body is too large"),
        (422, "Something in the request is wrong"),
        (429, "Too many requests"),
        (503, "The state cannot be written"),
    )
}


def problem(status: int, code: str, detail: str, hint: str = "", **headers: str) -> Response:
    """A problem as an answer."""
    titles = {n: str(p["description"]) for n, p in PROBLEMS.items()}
    words = {
        "type": f"urn:wattline:{code}",
        "title": titles.get(status, "Something went wrong"),
        "status": status,
        "detail": detail,
        "hint": hint,
    }
    return JSONResponse(words, status, headers=headers, media_type="application/problem+json")


def handle_problems(app: FastAPI) -> None:
    """Let *app* answer errors with problems."""

    @app.exception_handler(WattlineError)
    async def ours(request: Request, error: WattlineError) -> Response:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return problem(status, error.code, error.message, error.hint, **headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["loc"][:1] == ("body",) and first["type"] != "json_invalid" and _takes_job(request):
            try:
                read_document(error.body, "job")
            except WattlineError as said:
                return problem(422, said.code, said.message, said.hint)
        where = ".".join(str(step) for step in first["loc"])
        return problem(422, "bad_request", f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = {str(k): str(v) for k, v in (error.headers or {}).items()}
        return problem(error.status_code, "http", str(error.detail), **headers)


def _takes_job(request: Request) -> bool:
    return request.url.path in ("/api/v1/jobs", "/api/v1/plan")


def describe_problems(app: FastAPI) -> None:
    """The OpenAPI document, with problems instead of the framework's own errors."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemas = document["components"]["schemas"]
        schemas["Problem"] = shapes.Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
