"""The market beside every baseline: one part for each of its bars.

python benchmarks/market.py --part energy|batch|pollux|gavel|cost|combined|starve|speed|budget|watts
    [--policy market@buddy+power] [--durations clairvoyant|history] [--seeds 101-103] [--count 300]
    [--loads 0.7,1.5] [--cells philly:ee9e8c,...]

`--policy` may be any policy: the knob that it declares (`ENERGY_KNOB`) is turned where energies are to be
equal. Ratios are a baseline's figure over ours, so below 1 we lose; their mean, standard deviation and range
are over seeds and cells. Every baseline switches idle nodes off, too (`@buddy+power`), unless its part says
otherwise. The part `cost` needs a policy that counts money, and knows that a restart takes 60 s there, as the
baselines do: `--policy market:aim=cost,restart=60s,nodes=exact@pack+power`.
Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import field_parts
from field_parts import Options

PARTS: dict[str, Callable[[Options], bool]] = {
    "energy": field_parts.compare_energy,
    "batch": field_parts.compare_batches,
    "pollux": field_parts.compare_pollux,
    "gavel": field_parts.compare_gavel,
    "cost": field_parts.compare_cost,
    "combined": field_parts.compare_combined,
    "starve": field_parts.check_starvation,
    "speed": field_parts.measure_speed,
    "budget": field_parts.check_budget,
    "watts": field_parts.compare_budgets,
}


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse `101-105` or `1,4,9`."""
    first, dash, last = text.partition("-")
    return tuple(range(int(first), int(last) + 1)) if dash else tuple(map(int, text.split(",")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", required=True)
    parser.add_argument("--policy", default="market@buddy+power")
    parser.add_argument("--durations", choices=("clairvoyant", "history"), default="clairvoyant")
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("101-103"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--loads", default="1.5")
    parser.add_argument("--cells", default="")
    args = parser.parse_args()
    loads = tuple(map(float, args.loads.split(",")))
    cells = tuple(filter(None, args.cells.split(",")))
    options = Options(args.policy, args.durations, args.seeds, args.count, loads, cells)
    good = True
    for part in args.part:
        print(f"== {part}: {args.policy}, durations {args.durations}, seeds {args.seeds}, {args.count} jobs")
        good = PARTS[part](options) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
