"""Synergy's published mechanisms, in cases small enough to do by hand."""

import numpy as np

from support.simulations import NO_OVERHEADS, finish_times
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import START
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer
from wattline.core.reasons import REASONS, Reason
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.papers import Greedy, TunePublished
from wattline.papers.synergy_speedups import SynergyModels


def played(place: Placer, *names: str, count: int = 1, gpus: list[int] | None = None) -> Log:
    jobs = Jobs.of(
        submit_s=np.zeros(len(names)),
        gpus=[1] * len(names) if gpus is None else gpus,
        duration_s=np.full(len(names), 2940.0),
        model=names,
    )
    sim = Sim(jobs, nodes("v100", count=count, gpus=8), truth=SynergyModels(), overheads=NO_OVERHEADS)
    policy = p.chain(p.Demand(keep=1.0), p.fifo, p.preempt)
    return run(sim, policy, SynergyModels(), place=place)


def hosts(log: Log) -> dict[int, tuple[float, float]]:
    """Cores and GiB of each GPU of each job when it first started."""
    found: dict[int, tuple[float, float]] = {}
    for verb, job, *_, mcpus, mem_mib, _ in log.actions.tolist():
        if verb == START:
            found.setdefault(job, (mcpus / 1000, mem_mib / 1024))
    return found


def test_a_job_has_all_that_it_demands() -> None:
    for place in (Greedy(), TunePublished()):
        log = played(place, "alexnet", "gnmt")
        assert hosts(log) == {0: (12, 125), 1: (1, 20)}
        assert finish_times(log)["0"] == 1000


def test_greedy_lets_jobs_wait_that_cannot_have_their_whole_demand() -> None:
    log = played(Greedy(), "alexnet", "alexnet", "alexnet", "gnmt")
    assert min(log.action_s[log.actions[:, 1] == 2]) == 1000
    assert [REASONS[reason] for _, reason in log.wait_reasons.tolist()][:2] == [Reason.NO_HOST] * 2
    assert finish_times(log)["2"] == 2000


def test_greedy_lets_other_jobs_overtake_that_fit() -> None:
    log = played(Greedy(), "alexnet", "shufflenet", "gnmt", "alexnet")
    assert finish_times(log)["2"] > finish_times(log)["0"]
    assert min(log.action_s[log.actions[:, 1] == 3]) > 0


def test_tune_falls_back_to_the_share() -> None:
    log = played(TunePublished(), "alexnet", "alexnet", "alexnet")
    assert hosts(log)[0] == hosts(log)[2] == (3, 62.5)  # the first fell back for the third
    assert hosts(log)[1] == (12, 125)


def test_tune_places_anew_when_a_job_ends() -> None:
    log = played(TunePublished(), "alexnet", "alexnet", "alexnet")
    assert finish_times(log)["1"] == 1000
    assert finish_times(log)["0"] < 2940


def test_a_wide_job_may_span_nodes_with_the_same_for_each_gpu() -> None:
    log = played(TunePublished(), "gnmt", "alexnet", count=2, gpus=[1, 16])
    assert hosts(log)[1] == (3, 62.5)
    log = played(TunePublished(), "gnmt", "gnmt", count=2, gpus=[3, 13])
    rows = log.actions[(log.actions[:, 0] == START) & (log.actions[:, 1] == 1)]
    assert rows[:, 4].tolist() == [5, 8]
    assert (rows[:, 7] == 1000).all()
