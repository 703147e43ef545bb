"""Assumptions that a result depends on."""

from dataclasses import replace
from typing import Any

import numpy as np

from wattline.cluster import join_nodes, nodes
from wattline.core.jobs import Jobs
from wattline.models.library import library
from wattline.models.scaling import LINEAR, REQUEST
from wattline.models.trace_model import TraceModels
from wattline.reports.assumptions import Assumption, format_assumptions, list_assumptions, with_limit_watts

JOBS = Jobs.of(submit_s=[0, 0], gpus=[1, 4], duration_s=[10, 10], model=["resnet50", "unheard of"])


def found(models: Any = None, cluster: Any = None, **settings: Any) -> dict[str, Assumption]:
    usual = {
        "scaling": REQUEST, "watts": "kind", "restart_s": 30.0, "checkpoint_s": None, "span_penalty": 1.0,
        "durations": "clairvoyant",
    }  # fmt: skip
    listed = list_assumptions(
        JOBS, cluster or nodes("v100", count=2, gpus=2), models or TraceModels(), **(usual | settings)
    )
    return {one.name: one for one in listed}


def test_a_job_of_known_model_needs_no_assumption_about_its_scaling() -> None:
    assert "2 jobs of unknown model" in found()["scaling"].says
    assert "1 job of unknown model" in found(library())["scaling"].says


def test_the_default_scaling_is_the_pessimistic_one_and_others_are_checked_against_it() -> None:
    assert found()["scaling"].pessimistic == ""
    assert found(scaling=LINEAR)["scaling"].pessimistic == "request"


def test_guessed_watts_are_called_a_guess() -> None:
    assert "v100 225 W, a guess" in found()["watts"].says
    assert found(watts="limit")["watts"].pessimistic == ""
    assert with_limit_watts(nodes("v100")).busy_w.tolist() == [300.0]


def test_jobs_on_several_nodes_assume_how_fast_they_are_there() -> None:
    assert found()["span"].says == "a job that spans nodes runs as fast as on one node"
    narrow = list_assumptions(
        JOBS.take(np.array([True, False])), nodes("v100", count=2, gpus=2), TraceModels(), scaling=REQUEST,
        watts="kind", restart_s=300.0, checkpoint_s=-1.0, span_penalty=1.0, durations="history",
    )  # fmt: skip
    assert "span" not in {one.name for one in narrow}


def test_each_has_a_short_text() -> None:
    text = format_assumptions([one.as_dict() for one in found(checkpoint_s=600.0).values()])
    assert text.startswith("scaling request, watts kind, restart 30s, checkpoints 600s")


def test_several_kinds_of_gpus_that_are_taken_for_equally_fast_are_named() -> None:
    mixed = join_nodes(nodes("v100", gpus=2), nodes("k80", gpus=2))
    assert "kinds" not in found()
    assert found(cluster=mixed)["kinds"].says.startswith("2 of 2 jobs run equally fast on v100, k80")
    timed = replace(library(), timed_on="v100")
    assert found(timed, mixed)["kinds"].says.startswith("1 of 2 jobs run equally fast")
