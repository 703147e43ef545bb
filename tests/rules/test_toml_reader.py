import math

import pytest

from wattline.errors import ConfigError
from wattline.rules.toml_reader import read_toml_rules

RULES = """
[[partitions]]
name = "gpu"
nodes = ["a-[0-3]", "b-1"]
max_time = "2d"
max_gpus = 16
max_jobs_per_user = 3
borrow = true

[[qos]]
name = "high"
priority = 5
preempts = ["low"]
max_gpus_in_sum = 8

[[reservations]]
name = "service"
start = 2026-11-17T08:00:00
duration = "4h"
every = "1w"
maintenance = true

[[racks]]
name = "r1"
nodes = "a-[0-3]"
pod = "p1"

[topology]
within = "rack"
rack_penalty = 1.1

[[accounts]]
name = "vision"
gpus = 8

[fairshare]
half_life = "3d"
"""


def test_rules_of_a_file() -> None:
    rules = read_toml_rules("rules.toml", RULES)
    (gpu,), (high,), (service,), (rack,) = rules.partitions, rules.qos, rules.reservations, rules.racks
    assert (gpu.nodes, gpu.max_time_s, gpu.max_gpus) == ("a-[0-3],b-1", 172_800.0, 16)
    assert (gpu.limits.user_jobs, gpu.limits.borrow, gpu.limits.user_gpus) == (3, True, None)
    assert (high.priority, high.preempts, high.limits.group_gpus) == (5, ("low",), 8)
    assert (service.start, service.duration_s, service.every_s) == (
        "2026-11-17T08:00:00",
        14_400.0,
        604_800.0,
    )
    assert (rack.pod, math.isnan(gpu.default_time_s)) == ("p1", True)
    assert rules.topology is not None
    assert (rules.topology.within, rules.topology.rack_penalty) == ("rack", 1.1)
    assert rules.fairshare is not None
    assert rules.fairshare.half_life_s == 259_200.0
    assert rules.quotas[0].gpus == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[partition]]\nname='a'", "unknown key 'partition', expected one of partitions"),
        ("[[partitions]]\nname='a'\nmaxtime='1h'", r"partitions\[0\]: unknown key 'maxtime'"),
        ("[[partitions]]\nnodes='a'", r"partitions\[0\]: name is missing"),
        ("[[partitions]]\nname='a'\nmax_time='soon'", "max_time is 'soon', expected a time"),
        ("[[partitions]]\nname='a'\nmax_gpus=-1", "max_gpus is -1, expected a whole number"),
        ("[[qos]]\nname='a'\npreempts=3", "preempts is 3, expected a list of words"),
        ("[[reservations]]\nname='a'\nstart=3", "duration_s"),
        ("[topology]\nwithin='room'", "within is 'room', expected rack or pod"),
        ("[topology]\nrack_penalty=0.5", "rack_penalty is 0.5, expected at least 1"),
        ("[[accounts]]\nname='a'\ngpus=-2", r"accounts\[0\]: gpus of team a is -2"),
        ("[[qos]]\nname='a'\n[[qos]]\nname='a'", "qos has two entries named 'a'"),
        ("partitions = 3", "expected \\[\\[partitions\\]\\] tables"),
        ("x = [", "not TOML"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_toml_rules("rules.toml", text)
