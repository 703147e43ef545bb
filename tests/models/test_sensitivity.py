"""Sensitivity of jobs to host resources, as Pareto points."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.host_workloads import MODELS, NAMES, model_sets
from wattline.cluster import join_nodes, nodes
from wattline.core.grants import Grants
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.models import TraceModels
from wattline.models.sensitivity import Sensitivity, build_sensitivity, find_points, find_saturation_points
from wattline.models.workload_models import WorkloadModels

NODE = nodes("v100", gpus=8, cpus=24, mem_gib=500)


def jobs_of(*names: str, gpus: int = 1, cluster: Nodes = NODE) -> Jobs:
    count = len(names)
    jobs = Jobs.of(
        submit_s=np.zeros(count), gpus=[gpus] * count, duration_s=np.full(count, 100.0), model=names
    )
    return fill_host_shares(jobs, cluster)


def full(known: Sensitivity, job: int, keep: float = 1.0) -> tuple[float, float, float, float]:
    """Return the cores, GiB and MiB/s per GPU at which a job saturates, and its speed there."""
    p = find_saturation_points(known, keep)[known.point_sets[job, 0]]
    cores, memory, read = known.host[:, p].tolist()
    return cores / 1000, memory / 1024, read, round(float(known.speed[p]), 3)


def test_a_job_saturates_with_as_many_cores_as_its_loader_needs() -> None:
    known = build_sensitivity(MODELS, jobs_of("image", "text"), NODE)
    assert full(known, 0)[0] == 12
    assert full(known, 0)[3] == 4  # three cores were a quarter of what it needs
    assert full(known, 1) == (1, 17.5, 0, 1)  # the smallest memory step


def test_less_than_the_best_speed_needs_less() -> None:
    known = build_sensitivity(MODELS, jobs_of("image"), NODE)
    assert full(known, 0, keep=0.5)[0] == 6


def test_a_cache_as_large_as_the_data_set_needs_no_storage() -> None:
    known = build_sensitivity(MODELS, jobs_of("speech"), NODE)
    cores, memory, _, speed = full(known, 0)
    assert (cores, memory) == (4, 187.5)  # of 200 GiB: the rest comes from storage in time
    assert speed > 4


def test_faster_storage_makes_up_for_memory() -> None:
    cluster = nodes("v100", gpus=8, cpus=24, mem_gib=500, storage_mib_s=480)
    known = build_sensitivity(MODELS, jobs_of("speech", cluster=cluster), cluster)
    own = slice(known.set_start[known.point_sets[0, 0]], known.set_start[known.point_sets[0, 0] + 1])
    host, speed = known.host[:, own], known.speed[own]
    fast = speed >= speed.max() - 1e-9
    assert len(np.unique(host[1, fast])) > 1
    assert (np.diff(host[2, fast][np.argsort(host[1, fast])]) < 0).all(), "more memory, less storage"


def test_an_unmeasured_job_gets_its_proportional_share() -> None:
    for beliefs in (MODELS, TraceModels()):
        known = build_sensitivity(beliefs, jobs_of("unheard-of"), NODE)
        assert full(known, 0) == (3, 62.5, 0, 1)
        assert known.set_start[known.point_sets[0, 0] + 1] == known.set_start[known.point_sets[0, 0]] + 1


def test_a_job_cannot_have_more_than_a_node() -> None:
    known = build_sensitivity(MODELS, jobs_of("image", gpus=4), NODE)
    assert full(known, 0)[0] == 6
    assert full(known, 0)[3] == 2


def test_nodes_of_one_kind_may_have_hosts_of_several_shapes() -> None:
    cluster = join_nodes(NODE, nodes("v100", count=2, gpus=8, cpus=96, mem_gib=500))
    known = build_sensitivity(MODELS, jobs_of("image", cluster=cluster), cluster)
    assert known.node_shape.tolist() == [0, 1, 1]
    assert (
        find_saturation_points(known, 1.0)[known.point_sets[0, 1]] == known.set_start[known.point_sets[0, 1]]
    ), "its share is enough"


@given(
    beliefs=model_sets(),
    gpus=st.integers(1, 12),
    cores=st.integers(4, 100),
    gib=st.integers(8, 600),
    storage=st.sampled_from((0.0, 100.0, 480.0)),
)
def test_points_rise_and_none_is_better_than_another(
    beliefs: WorkloadModels, gpus: int, cores: int, gib: int, storage: float
) -> None:
    cluster = nodes("v100", gpus=8, cpus=cores, mem_gib=gib, storage_mib_s=storage)
    jobs = jobs_of(*NAMES, gpus=gpus, cluster=cluster)
    on = -(-gpus // 8)
    here = -(-gpus // on)
    for job in range(len(NAMES)):
        host, speed = find_points(beliefs, jobs, cluster, job, gpus, 0, on)
        assert (host[:, 0] <= cluster.host_share[:, 0]).all(), "the first is within the share"
        assert (host * here <= np.maximum(cluster.host, 1)).all(), "all fit on a node"
        assert (np.diff(speed[1:]) >= 0).all()
        assert (speed >= 1 - 2e-9).all()
        as_said = relative(beliefs, jobs, cluster, job, gpus, host)
        assert (as_said >= speed - 1e-6).all(), "a point is as fast as it says"
        for a in range(len(speed)):
            for b in range(len(speed)):
                better = (host[:, b] <= host[:, a]).all() and speed[b] > speed[a] + 1e-6
                assert not better, "a point needs more without being faster"


def relative(
    beliefs: Models, jobs: Jobs, cluster: Nodes, job: int, gpus: int, host: np.ndarray
) -> np.ndarray:
    """Return the speed relative to the proportional share."""
    both = np.concatenate((host, cluster.host_share[:, :1]), axis=1)
    same = np.ones(both.shape[1], dtype=np.int64)
    nodes_each = same * -(-gpus // 8)
    speed = beliefs.speed(jobs, Grants.of(same * job, same * gpus, nodes_each, host=both, kind="v100"))
    return speed[:-1] / speed[-1]
