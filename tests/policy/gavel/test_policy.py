"""Gavel's rounds: contracts, cases by hand, and the results of its authors' simulator."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from support.simulations import NO_OVERHEADS, finish_times, first_start_times, simulate
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.quotas import QuotaRule, Quotas
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.models.throughput_table import ThroughputTable, read_throughput_table
from wattline.models.trace_model import TraceModels
from wattline.policy.chain import spell
from wattline.policy.knobs import insert_quota
from wattline.testing import PolicyContract, QuotaContract
from wattline.testing.scenarios import Scenario, quotas, scenarios
from wattline.trace import read_trace

MIXED = "1xv100:8+2xp100:8+3xk80:8"


class GavelContract(PolicyContract):
    """Contract with fewer examples: most decisions are linear programs."""

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenario=scenarios(max_jobs=10))
    def test_a_run_obeys_every_law(self, scenario: Scenario) -> None:
        self.check_scenario(scenario)


@pytest.mark.slow
class TestMaxMin(GavelContract):
    policy = p.Gavel(round_s=300.0, reset_s=500.0)


@pytest.mark.slow
class TestFinishTimeFairness(GavelContract):
    policy = p.Gavel("ftf", round_s=1200.0)


@pytest.mark.slow
class TestMakespanWithEqualSpeeds(GavelContract):
    policy = p.Gavel("makespan", "equal", round_s=300.0, reset_s=0.0)


class TestFifo(GavelContract):
    policy = p.Gavel("fifo", round_s=300.0, reset_s=0.0)


@pytest.mark.slow
class TestBeforeCap(GavelContract):
    policy = p.chain(p.Gavel(speeds="equal", round_s=300.0), p.Cap(eta=1.0))


class TestQuotas(QuotaContract):
    policy = p.Gavel(speeds="equal", round_s=3600.0)  # quotas of a week are many rounds

    @pytest.mark.slow
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenario=scenarios(max_jobs=10), limits=quotas())
    def test_no_job_starts_beyond_a_quota(self, scenario: Scenario, limits: Quotas) -> None:
        QuotaContract.test_no_job_starts_beyond_a_quota.hypothesis.inner_test(self, scenario, limits)  # type: ignore[attr-defined]


def test_a_job_beyond_its_quota_takes_no_gpus_from_others() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 0], gpus=[4, 9], duration_s=[100, 2000], user=["eve", "ann"])
    limits = Quotas((QuotaRule("user", "eve", gpus=3),))
    sim = Sim(jobs, parse_cluster("3xv100:4"), overheads=NO_OVERHEADS)
    log = run(sim, insert_quota(p.Gavel(round_s=360.0)), TraceModels(), quotas=limits)
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    assert ended[:, EVENT_JOB].tolist() == [1]


def test_a_new_job_waits_for_the_next_round_and_gpus_idle_until_it() -> None:
    jobs = Jobs.of(id=["a", "b", "c"], submit_s=[0, 0, 10], gpus=[1, 1, 1], duration_s=[100, 1000, 100])
    log = simulate(jobs, p.Gavel(round_s=360.0), gpus=2)
    assert first_start_times(log) == {"a": 0, "b": 0, "c": 360}


def test_a_job_that_comes_to_an_idle_cluster_does_not_wait_for_a_round() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 500], gpus=[1, 1], duration_s=[100, 100])
    assert first_start_times(simulate(jobs, p.Gavel(round_s=360.0))) == {"a": 0, "b": 500}


def test_each_job_runs_on_the_kind_that_suits_it() -> None:
    table = ThroughputTable(
        "by hand", {"v100": {"x": {1: 4.0}, "y": {1: 1.0}}, "k80": {"x": {1: 1.0}, "y": {1: 1.0}}}
    )
    jobs = Jobs.of(
        id=["y", "x"], submit_s=[0, 0], gpus=[1, 1], steps=[1000, 4000], step_s=[1, 1], model=["y", "x"]
    )
    sim = Sim(table.time_jobs(jobs), parse_cluster("1xk80:1+1xv100:1"), truth=table, overheads=NO_OVERHEADS)
    assert finish_times(run(sim, p.Gavel("makespan", round_s=100.0, reset_s=0.0), table)) == {
        "x": 1000,
        "y": 1000,
    }


def test_its_text_names_its_knobs() -> None:
    assert spell(p.Gavel("ftf", "equal", 100.0)) == "gavel:objective=ftf,speeds=equal,round=100s"
    with pytest.raises(ConfigError, match="objective must be one of maxmin, ftf, makespan, fifo, got 'fair'"):
        p.Gavel("fair")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="round_s must be at least 1"):
        p.Gavel(round_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "policy", "cluster", "mean_s", "makespan_s", "within"),
    [
        ("max_min_fairness", p.Gavel(), MIXED, 14_623, None, 0.02),
        ("max_min_fairness", p.Gavel(speeds="equal"), MIXED, 19_989, None, 0.03),
        ("max_min_fairness", p.Gavel("ftf"), MIXED, 15_010, None, 0.02),
        ("minimize_makespan", p.Gavel("makespan"), MIXED, None, 64_721, 0.02),
        ("max_min_fairness", p.Gavel("fifo"), "3xv100:8", 22_713, 76_632, 1e-4),
        ("max_min_fairness", p.Gavel("fifo", reset_s=0.0), "3xv100:8", 19_173, 69_792, 1e-4),
    ],
    ids=["maxmin", "maxmin-equal", "ftf", "makespan", "fifo", "fifo-every-round"],
)
def test_gavel_gives_the_results_of_its_authors_simulator(
    data: Path,
    trace: str,
    policy: p.Gavel,
    cluster: str,
    mean_s: float | None,
    makespan_s: float | None,
    within: float,
) -> None:
    table = read_throughput_table(str(data / "gavel/simulation_throughputs.json.gz"))
    jobs = table.time_jobs(read_trace(data / f"gavel/traces/{trace}.trace"))
    log = run(Sim(jobs, parse_cluster(cluster), truth=table, overheads=NO_OVERHEADS), policy, table)
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    assert len(ended) == len(jobs)
    if mean_s is not None:
        jct_s = ended[:, EVENT_AT_S] - jobs.submit_s[ended[:, EVENT_JOB].astype(np.int64)]
        assert jct_s.mean() == pytest.approx(mean_s, rel=within)
    if makespan_s is not None:
        assert ended[:, EVENT_AT_S].max() == pytest.approx(makespan_s, rel=within)
