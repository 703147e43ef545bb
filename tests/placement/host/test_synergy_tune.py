"""Cores and memory by sensitivity: in cases checked by hand, and on random clusters and jobs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.host_workloads import MODELS, CheckedPlacer, build_jobs, clusters_with_jobs, model_sets, simulate
from support.simulations import finish_times
from wattline import policy as p
from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import (
    ACTION_GROUP,
    ACTION_HOST,
    ACTION_JOB,
    ACTION_VERB,
    RETUNE,
    START,
    STOP,
)
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.workload_models import WorkloadModels
from wattline.placement import Pack, Tune
from wattline.testing.laws import check_no_oversubscription

NODE = nodes("v100", gpus=4, cpus=12, mem_gib=250)


def first_cores(log: Log) -> dict[int, float]:
    """Return the cores of each GPU of each job at its first start."""
    cores: dict[int, float] = {}
    for verb, job, *_, mcpus, _, _ in log.actions.tolist():
        if verb == START:
            cores.setdefault(job, mcpus / 1000)
    return cores


def test_cores_that_one_job_does_not_need_go_to_another() -> None:
    granted = first_cores(simulate(build_jobs("image", "text", "text", "text"), Tune()))
    assert granted == {0: 9, 1: 1, 2: 1, 3: 1}


def test_equal_jobs_get_equal_cores() -> None:
    assert first_cores(simulate(build_jobs("image", "image", "text", "text"), Tune())) == {
        0: 5,
        1: 5,
        2: 1,
        3: 1,
    }


def test_cores_of_idle_gpus_are_used() -> None:
    assert first_cores(simulate(build_jobs("image"), Tune())) == {0: 12}
    assert finish_times(simulate(build_jobs("image"), Tune())) == {
        "0": 25
    }  # four times as fast as with its share


def test_a_running_job_gives_spare_cores_back_without_a_restart() -> None:
    jobs = Jobs.of(submit_s=[0, 10], gpus=[1, 1], duration_s=[400, 400], model=["image", "image"])
    log = simulate(jobs, Tune(), nodes("v100", gpus=2, cpus=12, mem_gib=250))
    verbs = log.actions[:, ACTION_VERB].tolist()
    assert (STOP in verbs, RETUNE in verbs) == (False, True)


def test_freed_cores_go_to_jobs_that_still_run() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[100, 200], model=["image", "image"])
    cluster = nodes("v100", gpus=2, cpus=12, mem_gib=250)
    # Both run with their share of six cores, half of what saturates them; then one has twelve.
    assert finish_times(simulate(jobs, Tune(), cluster)) == {"0": 100, "1": 150}


def test_a_job_goes_where_the_cores_are() -> None:
    cluster = nodes("v100", count=2, gpus=2, cpus=13, mem_gib=250)
    log = simulate(build_jobs("image", "image", "text", "text"), Tune(), cluster)
    assert finish_times(log)["0"] == pytest.approx(100 * 6.5 / 12)
    assert finish_times(log)["1"] == pytest.approx(100 * 6.5 / 12)


def test_jobs_are_swapped_if_that_pays_for_their_restarts() -> None:
    # Two jobs with large core demand end up on one node because the others were there first.
    jobs = Jobs.of(
        submit_s=[0, 0, 0, 0, 1, 1],
        gpus=[1] * 6,
        duration_s=[10, 10, 5000, 5000, 5000, 5000],
        model=["text", "text", "text", "text", "image", "image"],
    )
    cluster = nodes("v100", count=2, gpus=3, cpus=16, mem_gib=250)
    slow = Overheads(restart_s=30.0)
    still, moving = (simulate(jobs, Tune(move=move), cluster, overheads=slow) for move in (np.inf, 0.1))
    assert np.count_nonzero(still.actions[:, ACTION_VERB] == STOP) == 0
    assert np.count_nonzero(moving.actions[:, ACTION_VERB] == STOP) == 1
    assert all(finish_times(moving)[job] < 0.7 * finish_times(still)[job] for job in ("4", "5"))


def test_a_job_that_spans_nodes_has_equal_cores_on_all() -> None:
    cluster = nodes("v100", count=2, gpus=2, cpus=8, mem_gib=250)
    log = simulate(build_jobs("text", "image", gpus=[1, 3]), Tune(), cluster)
    rows = log.actions[(log.actions[:, ACTION_VERB] == START) & (log.actions[:, ACTION_JOB] == 1)]
    assert len(rows) == 2
    assert len(set(rows[:, ACTION_HOST].tolist())) == 1


def test_jobs_that_share_gpus_have_their_proportional_share() -> None:
    log = simulate(
        build_jobs("image", "image"), Tune(), nodes("v100", gpus=1, cpus=12), p.Gandiva(slice_s=60.0)
    )
    pair = log.actions[log.actions[:, ACTION_JOB] != log.actions[:, ACTION_GROUP]]
    assert len(pair)
    assert not pair[:, ACTION_HOST:].any()


def test_storage_bandwidth_is_split_too() -> None:
    slow, fast = (nodes("v100", gpus=2, cpus=24, mem_gib=40, storage_mib_s=storage) for storage in (60, 600))
    jobs = build_jobs("speech", "speech")
    log = simulate(jobs, Tune(), fast)
    read = log.actions[log.actions[:, ACTION_VERB] == START, ACTION_HOST + HOST_RESOURCES.index("read_mib_s")]
    assert (read > 0).all()
    assert read.sum() <= 600
    assert max(finish_times(log).values()) <= max(finish_times(simulate(jobs, Tune(), slow)).values()) * 1.001


def test_a_job_on_a_whole_node_reads_as_fast_as_with_its_share() -> None:
    # It would read more than the node's storage has: neither placer can give it that.
    slow, jobs = nodes("v100", gpus=4, cpus=24, mem_gib=40, storage_mib_s=200), build_jobs("speech", gpus=[4])
    tuned, packed = (finish_times(simulate(jobs, place, slow)) for place in (Tune(), Pack()))
    assert tuned == packed == {"0": pytest.approx(100 * 60 / 50)}


@pytest.mark.parametrize("knobs", [{"keep": 0.0}, {"keep": 1.1}, {"move": -1.0}, {"move": np.nan}])
def test_invalid_knobs_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(knobs))} must be"):
        Tune(**knobs)


# -- random clusters and jobs


@pytest.mark.slow
@given(generated=clusters_with_jobs(), models=model_sets(), move=st.sampled_from((0.0, 0.1, np.inf)))
def test_no_job_is_slower_than_with_its_share(
    generated: tuple[Nodes, Jobs], models: WorkloadModels, move: float
) -> None:
    cluster, jobs = generated
    for policy in (p.fifo, p.Las(60.0)):
        log = simulate(jobs, CheckedPlacer(Tune("greedy", move=move)), cluster, policy, models)
        assert len(finish_times(log)) == len(jobs)


@pytest.mark.slow
@given(generated=clusters_with_jobs(), models=model_sets())
def test_elastic_jobs_are_never_slower_than_with_their_share(
    generated: tuple[Nodes, Jobs], models: WorkloadModels
) -> None:
    cluster, jobs = generated
    log = simulate(jobs, CheckedPlacer(Tune("greedy")), cluster, p.Afs(), models)
    assert len(finish_times(log)) == len(jobs)


@pytest.mark.slow
@given(generated=clusters_with_jobs(), models=model_sets())
def test_jobs_that_never_wait_end_no_later_than_with_their_shares(
    generated: tuple[Nodes, Jobs], models: WorkloadModels
) -> None:
    cluster, jobs = generated
    one_by_one = Jobs.of(
        submit_s=1e4 * np.arange(len(jobs)), gpus=jobs.gpus, duration_s=jobs.duration_s, model=jobs.model
    )
    tuned, packed = (
        finish_times(simulate(one_by_one, place, cluster, beliefs=models)) for place in (Tune(), Pack())
    )
    assert all(tuned[job] <= at_s + 1e-6 for job, at_s in packed.items())


@pytest.mark.slow
def test_tune_swaps_jobs_only_where_the_least_of_both_fits() -> None:
    # Jobs that span nodes leave less of the host than the incoming job of a swap needs.
    rng = np.random.default_rng(1)
    count = 80
    jobs = Jobs.of(
        submit_s=np.sort(rng.integers(0, 20 * count, count)).astype(np.float64),
        gpus=rng.choice([1, 2, 4, 8, 16, 32], count),
        duration_s=rng.lognormal(6, 1.2, count),
        model=[("image", "speech", "text", "unknown")[i] for i in rng.integers(0, 4, count)],
    )
    cluster = nodes("v100", count=16, gpus=8, cpus=24, mem_gib=500, rack_size=4)
    faults = Faults(node_mtbf_s=100_000.0, node_repair_s=3000.0)
    log = run(Sim(jobs, cluster, truth=MODELS, faults=faults, seed=3), p.srtf, MODELS, place=Tune())
    check_no_oversubscription(log)
