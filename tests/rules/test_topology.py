from typing import Any

import pytest

from support.ruled_simulations import RuledRun, simulate_ruled
from wattline.core.reasons import Reason
from wattline.errors import ConfigError
from wattline.rules.rule_set import RackRule, RuleSet, TopologyRule

RACKS = (
    RackRule("r0", "v100-[0-1]", "p0"),
    RackRule("r1", "v100-[2-3]", "p0"),
    RackRule("r2", "v100-[4-5]", "p1"),
    RackRule("r3", "v100-[6-7]", "p1"),
)


def simulate(topology: TopologyRule, gpus: list[int], duration_s: list[float]) -> RuledRun:
    """Simulate jobs, submitted every second, on 8 nodes of 8 GPUs, two per rack and four per pod."""
    jobs: dict[str, Any] = {"submit_s": list(range(len(gpus))), "gpus": gpus, "duration_s": duration_s}
    return simulate_ruled(RuleSet(racks=RACKS, topology=topology), "8xv100:8", jobs)


def test_a_job_prefers_one_rack_then_one_pod() -> None:
    run = simulate(TopologyRule(), [4, 16, 32, 8], [100.0] * 4)
    assert run.nodes == [[0], [2, 3], [4, 5, 6, 7], [1]]


def test_spreading_slows_a_job_down() -> None:
    penalties = TopologyRule(rack_penalty=1.5, pod_penalty=2.0)
    run = simulate(penalties, [16, 24, 40], [100.0] * 3)
    assert run.end_s[0] == 100.0
    assert run.end_s[1] == pytest.approx(1.0 + 150.0)
    assert run.end_s[2] - run.start_s[2] == pytest.approx(200.0)
    assert run.log.header["spread"] == {"several_racks": 1.5, "several_pods": 2.0}


def test_a_job_that_fits_into_a_rack_can_be_made_to_wait_for_one() -> None:
    gpus, duration_s = [4, 4, 4, 4, 16], [100.0, 110.0, 120.0, 130.0, 10.0]
    halves = RuleSet(racks=RACKS[:2], topology=TopologyRule("rack"))
    jobs = {"submit_s": list(range(5)), "gpus": [6] * 4 + [8], "duration_s": duration_s}
    waits = simulate_ruled(halves, "4xv100:8", jobs)
    assert waits.start_s[4] == 100.0
    assert waits.reasons[4] == [Reason.TOPOLOGY]
    prefers = simulate_ruled(RuleSet(racks=RACKS[:2], topology=TopologyRule()), "4xv100:8", jobs)
    assert prefers.start_s[4] == 4.0
    assert simulate(TopologyRule("rack"), gpus, duration_s).nodes[4] == [2, 3]


def test_a_job_larger_than_a_rack_is_not_made_to_wait_for_one() -> None:
    run = simulate(TopologyRule("rack"), [24], [10.0])
    assert run.start_s == [0.0]


def test_a_node_is_in_one_rack() -> None:
    twice = RuleSet(racks=(RackRule("a", "v100-0"), RackRule("b", "v100-[0-1]")))
    with pytest.raises(ConfigError, match="node v100-0 is in another rack already"):
        simulate_ruled(twice, "2xv100:8", {"submit_s": [0], "gpus": [1], "duration_s": [1.0]})
