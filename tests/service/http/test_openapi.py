from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from unittest import SkipTest

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from support.controllers import run_controller
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import Tokens
from wattline.service.http.schemas import State
from wattline.service.states import STATES


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with run_controller(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="module")
def api(controller: Controller) -> Any:
    app = create_app(controller, rate=1e9)
    found = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)

    @found.hook
    def map_query(context: Any, query: Any) -> Any:
        """Streams have no end, and a test has."""
        return {**query, "follow": "false"} if query and "follow" in query else query

    return found


@pytest.fixture(scope="module")
def token(controller: Controller) -> str:
    return Tokens(controller.store, controller.clock).make("fuzz", "operator")


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_api_keeps_what_its_document_says(api: Any, token: str, mode: GenerationMode) -> None:
    for found in api.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def holds(case: Any) -> None:
            parts = {str(where): part.mode for where, part in case.meta.components.items()}
            wrong = any("header" in where.lower() and mode.is_negative for where, mode in parts.items())
            # Where it is headers that are wrong, a good token would put right what may be wrong with them.
            case.call_and_validate(headers={} if wrong else {"Authorization": f"Bearer {token}"})

        with suppress(SkipTest, Unsatisfiable):  # nothing of this can be wrong
            holds()


def test_the_document_knows_every_state() -> None:
    assert get_args(State) == STATES


def test_the_document_names_every_problem(controller: Controller, tmp_path: Path) -> None:
    document = create_app(controller).openapi()
    for path, ways in document["paths"].items():
        for way in ways.values():
            if path.startswith("/api/v1/"):
                assert {"401", "403", "422", "429"} <= set(way["responses"])
                problem = way["responses"]["422"]["content"]["application/problem+json"]["schema"]
                assert problem == {"$ref": "#/components/schemas/Problem"}
