"""Names of docs/adding.md; the blocks export the policy, and its contract is run."""

import numpy as np  # noqa: F401

from wattline.core.plan import Plan  # noqa: F401
from wattline.core.protocols import Models  # noqa: F401
from wattline.core.snapshot import Snapshot  # noqa: F401
from wattline.policy.chain import rank_rows  # noqa: F401
from wattline.testing import PolicyContract  # noqa: F401


class Exported:
    """The names that the page exports from `wattline.policy`."""

    def __getattr__(self, name):
        return globals()[name]


p = Exported()
AFTER = {"TestWidestFirst": lambda page: page.setup.TestWidestFirst().test_a_run_obeys_every_law()}
