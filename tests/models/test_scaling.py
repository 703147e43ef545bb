"""The assumed speed of jobs of unknown scaling."""

import numpy as np
import pytest

from support.simulations import simulate
from wattline.core.actions import ACTION_GPUS, ACTION_JOB, ACTION_VERB, START
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.models.scaling import LINEAR, REQUEST, Scaling, parse_scaling
from wattline.models.trace_model import TraceModels
from wattline.policy import Afs, Andreas, ElasticFlow, FirstPrinciple, Pollux, PowerFlow

ONE = np.array([1, 2, 4, 8])


def test_a_job_is_no_faster_than_with_what_it_asked_for() -> None:
    assert REQUEST.speed(ONE, np.full(4, 4), np.zeros(4, dtype=np.int64)).tolist() == [0.25, 0.5, 1.0, 1.0]


def test_a_job_asks_for_its_largest_size_where_the_trace_states_one() -> None:
    assert REQUEST.speed(ONE, np.full(4, 2), np.full(4, 4)).tolist() == [0.5, 1.0, 2.0, 2.0]


def test_linear_scaling_has_no_limit() -> None:
    assert LINEAR.speed(ONE, np.full(4, 1), np.zeros(4, dtype=np.int64)).tolist() == [1, 2, 4, 8]


def test_amdahls_law_is_relative_to_the_request() -> None:
    speed = Scaling("amdahl", 0.9).speed(ONE, np.full(4, 1), np.zeros(4, dtype=np.int64))
    assert speed == pytest.approx([1.0, 1 / 0.55, 1 / 0.325, 1 / 0.2125])


@pytest.mark.parametrize("text", ["request", "linear", "amdahl:0.9"])
def test_a_scaling_prints_as_it_is_typed(text: str) -> None:
    assert str(parse_scaling(text)) == text


@pytest.mark.parametrize("text", ["linea", "amdahl", "amdahl:2", "linear:3", ""])
def test_other_texts_are_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        parse_scaling(text)


ELASTIC = [Afs(), Afs(lengths="known"), Pollux(), PowerFlow(), ElasticFlow(), Andreas(), FirstPrinciple()]


@pytest.mark.parametrize("policy", ELASTIC, ids=str)
def test_no_policy_gives_a_job_of_unknown_scaling_more_than_it_asked_for(policy: object) -> None:
    jobs = Jobs.of(
        submit_s=[0, 0, 600, 1200], gpus=[1, 2, 1, 4], duration_s=[9000, 9000, 3600, 7200],
        deadline_s=[30_000, 20_000, 9000, 40_000],
    )  # fmt: skip
    log = simulate(jobs, policy, gpus=8, count=2)  # type: ignore[arg-type]
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    assert len(starts)
    held: dict[tuple[int, int], int] = {}
    for number, row in zip(log.action_round[log.actions[:, ACTION_VERB] == START], starts, strict=True):
        key = (int(number), int(row[ACTION_JOB]))
        held[key] = held.get(key, 0) + int(row[ACTION_GPUS])
    assert all(gpus <= jobs.gpus[job] for (_, job), gpus in held.items())


def test_a_named_assumption_lets_a_policy_use_idle_gpus() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[36_000])
    as_requested = simulate(jobs, PowerFlow(), gpus=8)
    models = TraceModels(scaling=LINEAR)
    from wattline.backend.sim.simulator import Sim
    from wattline.cluster import nodes
    from wattline.loop.run import run

    wider = run(Sim(jobs, nodes("v100", gpus=8), truth=models), PowerFlow(), models)
    assert wider.end_s < as_requested.end_s / 4
    grants = Grants.of(np.zeros(1, dtype=np.int64), np.array([8]))
    assert TraceModels().speed(jobs, grants).tolist() == [1.0]
