"""Mechanisms of other systems as published, for comparison.

They are not in the lists that `wattline policies` and `--help` print; `simulate` and `compare` accept their
names.
"""

from wattline.papers.synergy_placers import Greedy, TunePublished
from wattline.papers.synergy_policies import drf_published, ftf_published, tetris_published

PLACERS = {"greedy": Greedy, "tune-published": TunePublished}
POLICIES = {
    "drf-published": drf_published,
    "ftf-published": ftf_published,
    "tetris-published": tetris_published,
}

__all__ = [
    "PLACERS",
    "POLICIES",
    "Greedy",
    "TunePublished",
    "drf_published",
    "ftf_published",
    "tetris_published",
]
