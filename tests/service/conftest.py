"""A controller and a client of its API, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from support.controllers import open_client, run_controller
from wattline.service.controller import Controller


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """Run a controller with simulated GPUs."""
    with run_controller(tmp_path_factory.mktemp("service")) as one:
        yield one


@pytest.fixture(scope="module")
def client(controller: Controller) -> Iterator[TestClient]:
    """Open a client with an operator's token."""
    with open_client(controller) as one:
        yield one
