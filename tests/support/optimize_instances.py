"""Small instances of the cost programme, and a programme with a variable for every node to compare with."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from wattline.optimize.instance import Instance
from wattline.optimize.objective import Charges

TESLA_W, TURING_W = (0, 530, 700, 870, 1040), (0, 400, 470, 0, 0)


def build_instance(
    left_s: list[list[float]],
    due_s: list[float],
    late: list[float] | None = None,
    nodes: tuple[int, int] = (1, 1),
    now_s: float = 0.0,
) -> Instance:
    """Return an instance with nodes of four and of two GPUs.

    Configurations are 1 and 2 GPUs of the first type, 1 of the second.
    """
    return Instance(
        now_s=now_s,
        node_counts=np.array(nodes),
        gpus=np.array([4, 2]),
        cost_per_s=np.array([TESLA_W, TURING_W]) * 0.17168313 * 1.33 / 1000 / 3600,
        config_node_type=np.array([0, 0, 1]),
        config_gpus=np.array([1, 2, 1]),
        left_s=np.array(left_s, dtype=np.float64).reshape(-1, 3),
        due_s=np.array(due_s, dtype=np.float64),
        late_per_s=np.full(len(due_s), 3e-4) if late is None else np.array(late),
    )


@st.composite
def instances(draw: st.DrawFn, max_jobs: int = 9) -> Instance:
    jobs = draw(st.integers(1, max_jobs))
    seconds = st.floats(600, 40_000).map(round)
    rows = []
    for _ in range(jobs):
        one = draw(seconds)
        faster, slower = draw(st.floats(1.1, 2.0)), draw(st.floats(0.8, 3.0))
        rows.append([one, one / faster, one * slower if draw(st.integers(0, 5)) else np.inf])
    due_s = [float(draw(st.integers(-5_000, 60_000))) for _ in range(jobs)]
    late = [draw(st.floats(0, 1e-3)) for _ in range(jobs)]
    return build_instance(rows, due_s, late, nodes=(draw(st.integers(0, 2)), draw(st.integers(0, 2))))


def minimal_cost_by_node(instance: Instance, charges: Charges) -> float:
    """Return the least cost of an assignment: a variable for each job, configuration, busy GPUs and node."""
    names, cost = [], []
    for node_type, count in enumerate(instance.node_counts.tolist()):
        for node in range(count):
            for used in range(1, int(instance.gpus[node_type]) + 1):
                names.append(("on", node_type, node, used, -1, -1))
                cost.append(0.0)
                for c in np.flatnonzero(instance.config_node_type == node_type).tolist():
                    for job in range(instance.jobs):
                        if np.isfinite(charges.run_cost[job, c, used]):
                            names.append(("runs", node_type, node, used, job, c))
                            cost.append(float(charges.run_cost[job, c, used]))
    for job in range(instance.jobs):
        names.append(("waits", -1, -1, -1, job, -1))
        cost.append(float(charges.wait_cost[job]))
    rows, low, high = [], [], []

    def must(row: list[float], least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    for job in range(instance.jobs):
        must([1.0 if name[0] != "on" and name[4] == job else 0.0 for name in names], 1, 1)
    for node_type, count in enumerate(instance.node_counts.tolist()):
        for node in range(count):
            must([1.0 if name[:3] == ("on", node_type, node) else 0.0 for name in names], 0, 1)
            for used in range(1, int(instance.gpus[node_type]) + 1):
                must(
                    [
                        -float(used)
                        if name[:4] == ("on", node_type, node, used)
                        else float(instance.config_gpus[name[5]])
                        if name[:4] == ("runs", node_type, node, used)
                        else 0.0
                        for name in names
                    ],
                    0,
                    0,
                )
    found = milp(
        cost,
        integrality=np.ones(len(names)),
        bounds=(0, 1),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"mip_rel_gap": 1e-9},
    )
    return float(found.fun)
