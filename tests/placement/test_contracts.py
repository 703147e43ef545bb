"""Contracts of all placers, and of policies with placers that move jobs and switch nodes off."""

import pytest
from hypothesis import HealthCheck, given, settings

from wattline import policy as p
from wattline.papers import Greedy, TunePublished
from wattline.placement import Buddy, Host, Optimum, Pack, Power, Tune
from wattline.testing import PlacerContract, PolicyContract
from wattline.testing.scenarios import Scenario, scenarios


class TestPackEasy(PlacerContract):
    place = Pack()


class TestPackGreedy(PlacerContract):
    place = Pack("greedy")


class TestPackNone(PlacerContract):
    place = Pack("none")


class TestGreedy(PlacerContract):
    place = Greedy()


class TestTunePublished(PlacerContract):
    place = TunePublished()


class TestTune(PlacerContract):
    place = Tune()


class TestTuneGreedy(PlacerContract):
    place = Tune("greedy", move=0.0)


@pytest.mark.slow
class TestOptimum(PlacerContract):
    place = Optimum()

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(scenario=scenarios(max_jobs=8))  # each decision is a program of integers
    def test_leases_fit_and_match_the_plan(self, scenario: Scenario) -> None:
        self.check_scenario(scenario)


class TestBuddyHost(PlacerContract):
    place = Host(Buddy())


@pytest.mark.slow
class TestPackHostPower(PlacerContract):
    place = Power(Host(Pack()))


class TestTunePower(PlacerContract):
    place = Power(Tune())


class TestBuddyEasy(PlacerContract):
    place = Buddy()


class TestBuddyGreedy(PlacerContract):
    place = Buddy("greedy")


class TestBuddyNone(PlacerContract):
    place = Buddy("none")


class TestPackPower(PlacerContract):
    place = Power(Pack())


class TestBuddyPower(PlacerContract):
    place = Power(Buddy(), spare=2)


class TestFifoOnBuddies(PolicyContract):
    policy = p.fifo
    place = Buddy()


class TestLasOnBuddies(PolicyContract):
    policy = p.Las(quantum_s=60.0)
    place = Buddy()


class TestGandivaOnBuddies(PolicyContract):
    policy = p.Gandiva(slice_s=60.0)
    place = Buddy("none")


class TestFifoWithPower(PolicyContract):
    policy = p.fifo
    place = Power(Buddy())


class TestLasWithPower(PolicyContract):
    policy = p.Las(quantum_s=60.0)
    place = Power(Buddy())


class TestSrtfStrictWithPower(PolicyContract):
    policy = p.srtf
    place = Power(Buddy("none"), spare=1)


class TestGandivaWithPower(PolicyContract):
    policy = p.Gandiva(slice_s=60.0)
    place = Power(Pack())
