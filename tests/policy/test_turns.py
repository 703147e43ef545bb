"""Turns of policies, against simulations that would not end."""

import pytest

from support.simulations import simulate
from wattline import policy as p
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.protocols import Policy
from wattline.loop.run import iterate
from wattline.models import TraceModels
from wattline.placement import Pack
from wattline.policy.turns import Turn, find_turn

JOBS = Jobs.of(submit_s=[0, 10, 20], gpus=[1, 1, 1], duration_s=[5000, 5000, 5000])


def ends(policy: Policy, restart_s: float) -> bool:
    """Return whether three jobs on one GPU end within 500 rounds."""
    sim = Sim(JOBS, nodes("v100", gpus=1), overheads=Overheads(restart_s=restart_s))
    return all(number <= 500 for number, _ in enumerate(iterate(sim, policy, TraceModels(), Pack())))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [p.Las(300.0), p.Gandiva(300.0), p.Gavel(speeds="equal", round_s=300.0)])
def test_turns_no_longer_than_a_restart_end_no_job(policy: Policy) -> None:
    turn = find_turn(policy)
    assert turn is not None
    assert turn.least_s == 300.0
    assert not ends(policy, restart_s=300.0)
    assert ends(policy, restart_s=100.0)


@pytest.mark.parametrize(
    "policy",
    [
        p.fifo,
        p.srtf,
        p.Tiresias(),
        p.Pollux(),
        p.Sia(interval_s=600.0),
        p.Afs(),
        p.Ftf(),
        p.chain(p.Las(), p.keep),
    ],
)
def test_policies_without_turns_end_whatever_a_restart_takes(policy: Policy) -> None:
    assert find_turn(policy) is None
    assert ends(policy, restart_s=1500.0)


def test_the_shortest_turn_of_a_chain_counts() -> None:
    assert find_turn(p.chain(p.Gandiva(600.0), p.Las(60.0))) == Turn("las", "quantum_s", 60.0)
    assert find_turn(p.Gittins()) == Turn("gittins", "quantum_s", 300.0)
    assert len(simulate(JOBS, p.Las()))
