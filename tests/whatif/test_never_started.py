"""Jobs that could not run at all."""

import numpy as np

from support.simulations import simulate
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.policy import fifo
from wattline.whatif.digest import Blocks, digest_log
from wattline.whatif.never_started import describe_never_started


def test_each_reason_has_its_sentence() -> None:
    jobs = Jobs.of(submit_s=[0, 0, 0], gpus=[1, 9, 1], duration_s=[5, 5, 5], gpu_kind=["", "", "h100"])
    digest = digest_log(simulate(jobs, fifo, gpus=2), Blocks((0.0,), ""))
    no_kind, too_big = describe_never_started(jobs, np.ones(3, dtype=np.bool_), digest, nodes("v100", gpus=2))
    assert no_kind.endswith("They ask for h100.")
    assert "as job 1: It requests more GPUs" in too_big


def test_there_is_no_note_where_all_jobs_run() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[5])
    digest = digest_log(simulate(jobs, fifo), Blocks((0.0,), ""))
    assert describe_never_started(jobs, np.ones(1, dtype=np.bool_), digest, nodes("v100")) == ()
