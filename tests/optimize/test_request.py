"""The optimiser as other schedulers call it."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.optimize_instances import build_instance, instances
from wattline.cli import main
from wattline.errors import ConfigError
from wattline.optimize.exact import compute_cost, solve
from wattline.optimize.instance import POSTPONED, Assignment, Instance, check_assignment
from wattline.optimize.node_assignment import assign_nodes
from wattline.optimize.objective import rolling
from wattline.optimize.request import optimize

REQUEST: dict[str, Any] = {
    "now_s": 0,
    "price_kwh": 0.2,
    "pue": 1.5,
    "nodes": [
        {"id": "n1", "kind": "tesla", "gpus": 4},
        {"id": "n2", "kind": "tesla", "gpus": 4},
        {"id": "n3", "kind": "turing", "gpus": 2},
    ],
    "power_w": {"tesla": [530, 700, 870, 1040], "turing": [400, 470]},
    "jobs": [
        {"id": "a", "due_s": 9000, "late_per_h": 1.2, "left_s": {"tesla": {"1": 5170, "2": 3666}}},
        {
            "id": "b",
            "due_s": 90000,
            "late_per_h": 1.2,
            "left_s": {"tesla": {"1": 5000}, "turing": {"1": 9000}},
        },
        {"id": "c", "left_s": {"turing": {"1": 7200}}},
    ],
}


def with_(**changed: Any) -> dict[str, Any]:
    return {**deepcopy(REQUEST), **changed}


@pytest.mark.parametrize("method", ["exact", "search", "randomised", "greedy"])
def test_every_job_gets_a_node_or_waits(method: str) -> None:
    answer = optimize(with_(method=method))
    assert set(answer["jobs"]) == {"a", "b", "c"}
    assert answer["jobs"]["c"]["node"] == "n3"
    assert answer["method"] == method
    assert answer["estimated_cost"] == pytest.approx(answer["energy_cost"] + answer["tardiness_cost"])
    assert 0 < answer["reschedule_s"] <= 9000
    assert (answer["gap"] is None) == (method != "exact")


def test_a_job_that_keeps_its_configuration_keeps_its_node() -> None:
    first = optimize(REQUEST)
    a = first["jobs"]["a"]
    other = {"n1": "n2", "n2": "n1"}[a["node"]]
    again = optimize(with_(current={"a": {"node": other, "gpus": a["gpus"]}}))
    assert again["jobs"]["a"]["node"] == other


def test_the_same_question_has_the_same_answer() -> None:
    assert optimize(REQUEST) == optimize(deepcopy(REQUEST))


def test_a_request_without_jobs_is_answered() -> None:
    answer = optimize(with_(jobs=[]))
    assert (answer["jobs"], answer["reschedule_s"], answer["estimated_cost"]) == ({}, None, 0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"jobs": 3}, "jobs is 3, expected a list"),
        ({"jobz": []}, "unknown key jobz"),
        ({"method": "magic"}, "method is 'magic', expected one of exact, relink, search, randomised, greedy"),
        ({"power_w": {"tesla": [1]}}, r"power_w.tesla is \[1\], expected 4 numbers"),
        (
            {"nodes": [{"id": "n", "kind": "tesla", "gpus": 0}]},
            r"nodes\[0\].gpus is 0, expected a whole number",
        ),
        ({"nodes": [{"id": "n", "kind": "", "gpus": 1}]}, r"nodes\[0\].kind is '', expected a name"),
        ({"jobs": [{"id": "a"}]}, r"jobs\[0\].left_s is None, expected seconds"),
        ({"jobs": [{"id": "a", "left_s": {"tesla": {"1": -5}}}]}, r"jobs\[0\].left_s.tesla.1 is -5"),
        ({"jobs": [{"id": "a", "left_s": {"tesla": {"x": 5}}}]}, r"jobs\[0\].left_s.tesla has 'x'"),
        (
            {"jobs": [{"id": "a", "due_s": "soon", "left_s": {"tesla": {"1": 5}}}]},
            r"jobs\[0\].due_s is 'soon'",
        ),
        ({"jobs": [{"id": "a", "left_s": {"t": {"1": 5}}}] * 2}, r"jobs\[1\].id is 'a', expected a name"),
        ({"current": {"z": {"node": "n1", "gpus": 1}}}, "current.z is"),
        ({"pue": 0.5}, "pue must be at least 1"),
        ({"tries": 1e400}, "tries is inf, expected 1 to 1e"),
        ({"seed": -1}, "seed is -1, expected 0 to"),
        ({"gap": -0.5}, "gap is -0.5, expected 0 to 1"),
        ({"node_limit": 0}, "node_limit is 0, expected 1 to 1e"),
        ({"price_kwh": float("inf")}, "price_kwh is inf, expected at least 0"),
        ({"power_w": {"tesla": "1234", "turing": [400, 470]}}, "power_w.tesla is '1234', expected 4 numbers"),
        ({"power_w": {"tesla": [1, 2, None, 4], "turing": [1, 2]}}, "power_w.tesla is"),
        ({"power_w": {"tesla": [-1, 2, 3, 4], "turing": [1, 2]}}, "power_w.tesla is"),
        (
            {"jobs": [{"id": "a", "late_per_h": -1, "left_s": {"tesla": {"1": 5}}}]},
            r"jobs\[0\].late_per_h is -1",
        ),
        ({"jobs": [{"id": "a", "left_s": {"tesla": {"04": 5}}}]}, "has '04', expected a number of GPUs"),
        ({"jobs": [{"id": "a", "left_s": {"tesla": {"4": []}}}]}, "left_s.tesla.4 is empty"),
        ({"jobs": [{"id": ["a"], "left_s": {"tesla": {"4": 1}}}]}, r"jobs\[0\].id is \['a'\]"),
    ],
)
def test_a_mistake_is_named_by_its_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        optimize(with_(**changed))


@given(instance=instances(), data=st.data())
def test_node_assignment_adds_no_cost_and_breaks_nothing(instance: Instance, data: st.DataObject) -> None:
    charges = rolling(instance)
    found = solve(instance, charges)
    assert found is not None
    before = np.full(instance.jobs, POSTPONED, dtype=np.int64)
    node = np.full(instance.jobs, -1, dtype=np.int64)
    free = [np.full(int(n), g) for n, g in zip(instance.node_counts, instance.gpus.tolist(), strict=True)]
    for job in range(instance.jobs):  # something that fits
        config = data.draw(st.integers(0, 2))
        node_type, gpus = int(instance.config_node_type[config]), int(instance.config_gpus[config])
        room = np.flatnonzero(free[node_type] >= gpus)
        if instance.possible[job, config] and len(room):
            before[job], node[job] = config, data.draw(st.sampled_from(room.tolist()))
            free[node_type][node[job]] -= gpus
    after = assign_nodes(instance, charges, found, before, node, np.zeros(instance.jobs))
    check_assignment(instance, after)
    assert after.config.tolist() == found.config.tolist()
    assert compute_cost(instance, charges, after) <= found.cost + 1.1e-3 * abs(found.cost) + 1e-9

    # The dearer moving is, the fewer move.
    dear = assign_nodes(instance, charges, found, before, node, np.full(instance.jobs, 1e9))
    check_assignment(instance, dear)

    def moves(assignment: Assignment) -> int:
        same = (before != POSTPONED) & (assignment.config == before)
        return int((same & (assignment.node != node)).sum())

    assert moves(dear) <= moves(after)


def test_one_small_job_makes_room_for_a_large_one_and_the_others_stay() -> None:
    # Two nodes of four GPUs with three single jobs each; one more wants two GPUs.
    instance = build_instance([[9000, 8999, np.inf]] * 6 + [[np.inf, 5000, np.inf]], [1e6] * 7, nodes=(2, 0))
    charges = rolling(instance)
    now = np.array([0, 0, 0, 0, 0, 0, POSTPONED])
    node = np.array([0, 0, 0, 1, 1, 1, -1])
    packed = Assignment(np.array([0, 0, 0, 0, 0, 0, 1]), np.array([0, 1, 0, 1, 0, 0, 1]))
    found = assign_nodes(instance, charges, replace(packed, cost=0.0), now, node, np.ones(7))
    check_assignment(instance, found)
    assert int((found.node[:6] != node[:6]).sum()) == 1


def test_an_impossible_present_assignment_is_refused() -> None:
    jobs = [{"id": name, "left_s": {"tesla": {"4": 900}}} for name in "ab"]
    current = {name: {"node": "n1", "gpus": 4} for name in "ab"}
    with pytest.raises(
        ConfigError, match="current is impossible: a node of type 0 has 8 busy GPUs, expected at most 4"
    ):
        optimize(with_(jobs=jobs, current=current))


def test_energy_that_costs_nothing_is_no_reason_to_wait() -> None:
    jobs = [{"id": "a", "left_s": {"tesla": {"1": 900}}}]
    assert optimize(with_(jobs=jobs, price_kwh=0, current={}))["jobs"]["a"]["gpus"] == 1


@pytest.mark.parametrize(("few", "large", "method"), [(4, 0, "exact"), (40, 0, "exact"), (1, 3, "search")])
def test_nodes_of_many_gpus_are_searched_unless_a_quick_method_is_within_the_gap(
    few: int, large: int, method: str
) -> None:
    # Too many patterns for the solver. Of the large jobs one fits, and the bound counts nearly two.
    any_size = {"big": {str(g): 9000 / g for g in range(1, 33)}}
    jobs = [{"id": f"a{k}", "left_s": any_size} for k in range(few)]
    one_size = {"due_s": 0, "late_per_h": 10, "left_s": {"big": {"17": 9000}}}
    jobs += [{"id": f"b{k}", **one_size} for k in range(large)]
    request = {
        "nodes": [{"id": "n", "kind": "big", "gpus": 32}],
        "power_w": {"big": [100 * g for g in range(1, 33)]},
        "jobs": jobs,
    }
    found = optimize(request)
    assert found["method"] == method
    assert found["gap"] > 1e-3 if method == "search" else found["gap"] <= 1e-3


def test_caps_can_be_requested() -> None:
    request = {
        "price_kwh": 0.2,
        "nodes": [{"id": "n", "kind": "v100", "gpus": 1}],
        "power_w": {"v100": [400]},
        "jobs": [
            {
                "id": "a",
                "due_s": 9000,
                "late_per_h": 5.0,
                "left_s": {"v100": {"1": [{"left_s": 3600}, {"cap_w": 150, "left_s": 4000, "less_w": 120}]}},
            }
        ],
    }
    assert optimize(request)["jobs"]["a"]["cap_w"] == 150
    request["jobs"][0]["due_s"] = 3600  # type: ignore[index]
    assert optimize(request)["jobs"]["a"]["cap_w"] is None
    request["jobs"][0]["left_s"]["v100"]["1"][1]["less_w"] = -5  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"left_s.v100.1\[1\].less_w is -5, expected at least 0"):
        optimize(request)


def test_a_running_job_moves_only_if_that_pays_for_the_restart() -> None:
    request = {
        "price_kwh": 0.2,
        "nodes": [{"id": "n", "kind": "old", "gpus": 1}, {"id": "m", "kind": "new", "gpus": 1}],
        "power_w": {"old": [400], "new": [380]},
        "jobs": [{"id": "a", "left_s": {"old": {"1": 9000}, "new": {"1": 9000}}}],
        "current": {"a": {"node": "n", "gpus": 1}},
    }
    assert optimize(request)["jobs"]["a"]["node"] == "m"
    assert optimize({**request, "restart_s": 600})["jobs"]["a"]["node"] == "n"
    with pytest.raises(ConfigError, match="restart_s is -1"):
        optimize({**request, "restart_s": -1})


def test_the_command_answers_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(REQUEST))
    assert main(["optimize", "--input", str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 GPU of n3" in out
    assert "distance to the best plan at most" in out
    assert main(["optimize", "--input", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == optimize(REQUEST)


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[]", "the request is")])
def test_a_file_that_is_no_request_is_named(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert main(["optimize", "--input", str(path)]) == 2
    assert message in capsys.readouterr().err
