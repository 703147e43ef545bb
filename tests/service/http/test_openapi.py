from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from unittest import SkipTest

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from support.controllers import run_controller
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.http.schemas import State
from wattline.service.states import STATES


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with run_controller(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="module")
def api(controller: Controller) -> Any:
    app = create_app(controller, rate=1e9)
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)

    @schema.hook
    def map_query(context: Any, query: Any) -> Any:
        """Turn `follow` off: the streams of events do not end."""
        if context.operation.path == "/api/v1/live":
            return {**(query or {}), "follow": "false"}
        return {**query, "follow": "false"} if query and "follow" in query else query

    return schema


@pytest.fixture(scope="module")
def token(controller: Controller) -> str:
    return TokenStore(controller.store, controller.clock).create("fuzz", "operator")


def document_operations(app: FastAPI) -> set[tuple[str, str]]:
    """Return method and path of every operation in the OpenAPI document."""
    return {(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item}


def has_input(operation: dict[str, Any]) -> bool:
    """Return whether a request can be invalid: it has parameters or a body of the operation's own."""
    return bool(operation.get("parameters") or operation.get("requestBody"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_operation_conforms_to_the_openapi_document(
    api: Any, controller: Controller, token: str, mode: GenerationMode
) -> None:
    exercised: Counter[tuple[str, str]] = Counter()
    for result in api.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def conforms(case: Any) -> None:
            exercised[case.method.upper(), case.path] += 1
            parts = {str(where): part.mode for where, part in case.meta.components.items()}
            wrong = any("header" in where.lower() and mode.is_negative for where, mode in parts.items())
            # Schemathesis may make the Authorization header invalid; a valid token would repair it.
            # A valid job file may ask for what the cluster does not have, a token for an unknown user.
            # Policies, and job files in YAML, have a grammar that the document does not describe.
            paths = ("/api/v1/jobs", "/api/v1/plan", "/api/v1/tokens", "/api/v1/whatif", "/api/v1/jobfile")
            may_refuse = case.path in paths
            case.call_and_validate(
                headers={} if wrong else {"Authorization": f"Bearer {token}"},
                excluded_checks=[positive_data_acceptance] if may_refuse else [],
            )

        # An operation without parameters has no invalid requests; the check below allows only these.
        with suppress(SkipTest, Unsatisfiable):
            conforms()

    app = create_app(controller)
    expected = document_operations(app)
    if mode.is_negative:
        expected = {
            (method, path)
            for method, path in expected
            if has_input(app.openapi()["paths"][path][method.lower()])
        }
    assert expected - exercised.keys() == set(), "operations of the document that no request was sent to"
    assert len(document_operations(app)) >= 21


def test_the_document_lists_every_state() -> None:
    assert get_args(State) == STATES


@pytest.mark.slow
def test_every_operation_documents_its_problems(controller: Controller, tmp_path: Path) -> None:
    document = create_app(controller).openapi()
    for path, item in document["paths"].items():
        for operation in item.values():
            if path.startswith("/api/v1/"):
                assert {"401", "403", "422", "429"} <= set(operation["responses"])
                problem = operation["responses"]["422"]["content"]["application/problem+json"]["schema"]
                assert problem == {"$ref": "#/components/schemas/ProblemResponse"}


def test_every_operation_has_a_description(controller: Controller) -> None:
    for path, item in create_app(controller).openapi()["paths"].items():
        for method, operation in item.items():
            assert operation["description"].endswith("."), f"{method} {path}"
