"""Arrays of an instance and its charges, as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, I1, record
from wattline.optimize.instance import Instance
from wattline.optimize.objective import Charges


class ProblemArrays(NamedTuple):
    """An instance and its charges as kernels read them; see `Instance` and `Charges`."""

    node_counts: Ints
    gpus: Ints
    config_node_type: Ints
    config_gpus: Ints
    run_cost: Floats
    wait_cost: Floats


PROBLEM = record(ProblemArrays, I1, I1, I1, I1, F3, F1)


def build_arrays(instance: Instance, charges: Charges) -> ProblemArrays:
    """Return the arrays of *instance* and *charges* for kernels."""
    return ProblemArrays(
        instance.node_counts,
        instance.gpus,
        instance.config_node_type,
        instance.config_gpus,
        charges.run_cost,
        charges.wait_cost,
    )
