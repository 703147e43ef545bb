"""The placer and the stage of rules keep the contracts, and without rules they change nothing."""

import numpy as np
import pytest
from hypothesis import given

from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.placement import Pack, Power
from wattline.policy.chain import chain
from wattline.policy.ordering import fifo
from wattline.rules.node_sets import bind_nodes
from wattline.rules.placer import RuledPack
from wattline.rules.rule_set import RuleSet
from wattline.rules.stage import OperatorRules
from wattline.testing import PlacerContract, PolicyContract
from wattline.testing.placer import _RELAXED
from wattline.testing.scenarios import Scenario, scenarios
from wattline.trace.synthetic import synth


def place_freely(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
    """Place with the placer of rules, without any."""
    return RuledPack(bind_nodes(RuleSet(), snapshot.nodes))(plan, snapshot, models)


class TestRuledPack(PlacerContract):
    place = place_freely


class TestRuledPackWithPower(PlacerContract):
    place = Power(place_freely)


class TestOperatorRules(PolicyContract):
    policy = chain(fifo, OperatorRules())


@_RELAXED
@given(scenario=scenarios())
def test_without_rules_the_placer_is_pack_for_jobs_that_are_not_preempted(scenario: Scenario) -> None:
    logs = [run(scenario.sim(), fifo, place=place) for place in (Pack(), place_freely)]
    assert np.array_equal(logs[0].actions, logs[1].actions)


@pytest.mark.parametrize("backfill", ["none", "easy", "greedy"])
def test_without_rules_a_whole_trace_runs_as_with_pack(backfill: str) -> None:
    jobs: Jobs = synth(count=300, seed=2)
    nodes = parse_cluster("4xv100:8")
    sets = bind_nodes(RuleSet(), nodes)
    ends = [
        run(Sim(jobs, nodes), fifo, place=place).actions
        for place in (Pack(backfill), RuledPack(sets, backfill=backfill))  # type: ignore[arg-type]
    ]
    assert np.array_equal(*ends)
