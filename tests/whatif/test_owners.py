"""What a policy changes for teams and users."""

import numpy as np

from support.simulations import simulate
from wattline.core.jobs import Jobs
from wattline.policy import fifo, srtf
from wattline.whatif.digest import Blocks, digest_log
from wattline.whatif.owners import compare_owners

JOBS = Jobs.of(
    submit_s=[0, 1, 2], gpus=[1, 1, 1], duration_s=[100, 10, 10], team=["a", "b", "b"], user=["u", "v", "w"]
)


def test_short_jobs_gain_and_the_long_one_pays() -> None:
    blocks = Blocks((0.0,), "")
    before, after = (digest_log(simulate(JOBS, policy), blocks) for policy in (fifo, srtf))
    a, b = compare_owners(JOBS.team, JOBS, np.ones(3, dtype=np.bool_), before, [after])
    assert (a.name, a.jobs, b.name, b.jobs) == ("a", 1, "b", 2)
    assert a.ratios[0] > 1 > b.ratios[0]
    assert (a.later, b.earlier) == ((1.0,), (1.0,))


def test_one_user_can_be_chosen() -> None:
    digest = digest_log(simulate(JOBS, fifo), Blocks((0.0,), ""))
    (only,) = compare_owners(JOBS.user, JOBS, np.ones(3, dtype=np.bool_), digest, [digest], "v")
    assert (only.name, only.jobs, only.ratios) == ("v", 1, (1.0,))
