"""Draw the picture of the README: every policy on one synthetic trace, energy against mean JCT.

python benchmarks/picture.py docs/policies.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import wattline as wl
from wattline.policy import ORDERS
from wattline.reports import build_plot_data, draw_headline_svg


def main(path: str) -> int:
    jobs = wl.synth(count=1500, seed=1, load=0.95, gpus_total=64)
    cluster = wl.nodes("v100", count=8, gpus=8)
    runs = [build_plot_data(wl.run(wl.Sim(jobs, cluster), wl.parse_policy(name))) for name in ORDERS]
    Path(path).write_text(draw_headline_svg(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
