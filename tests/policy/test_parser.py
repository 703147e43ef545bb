import pytest

from wattline import policy as p
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.loop.state import build_empty_state
from wattline.models.library import library
from wattline.placement.parser import parse_placer
from wattline.policy.parser import list_stages, parse_policy


def test_names_and_knobs_make_policies() -> None:
    assert parse_policy("fifo") is p.fifo
    assert parse_policy("las") == p.Las()
    assert parse_policy("LAS:quantum=10m") == p.Las(600.0)
    assert parse_policy("tiresias:thresholds=1h/10h,promote=4") == p.Tiresias((3600.0, 36000.0), 4.0)
    assert parse_policy("srtf + keep") == p.chain(p.srtf, p.keep)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("fiffo", "unknown stage 'fiffo'", "fifo"),
        ("las:quantums=3", "unknown knob 'quantums=3'", "quantum_s"),
        ("las:quantum", "unknown knob 'quantum'", ""),
        ("las:quantum=often", "quantum_s is 'often', expected a duration such as 300s", ""),
        ("fifo:x=1", "fifo has no knobs", ""),
        ("", "unknown stage ''", ""),
        ("las+", "unknown stage ''", ""),
        ("plan_as_requested", "unknown stage 'plan_as_requested'", ""),
        ("las:quantum=0", "policy 'las:quantum=0': las's quantum_s must be at least 1", ""),
        ("fifo+powerflow:eta=2", "policy 'fifo+powerflow:eta=2': powerflow's eta must be from 0 to 1", ""),
    ],
)
def test_a_bad_policy_is_explained(text: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text)
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_every_order_can_be_named() -> None:
    assert set(p.ORDERS) <= set(list_stages())
    for name in p.ORDERS:
        parse_policy(name)


@pytest.mark.parametrize("place", ["pack", "tune", "buddy", "optimum", "pack+power"])
@pytest.mark.parametrize("text", ["fifo", "las+demand", "keep+demand+fuse+cap", "powerflow", "andreas"])
def test_a_policy_decides_without_jobs(text: str, place: str) -> None:
    # A service decides also when nodes change before its first job has come.
    state = build_empty_state(Jobs.of(submit_s=[], gpus=[], duration_s=[]), nodes("a100", count=2, gpus=8))
    plan = parse_policy(text)(state, library())
    assert len(parse_placer(place)(plan, state, library()).leases) == 0
