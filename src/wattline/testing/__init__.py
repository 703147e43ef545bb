"""Contract tests for user-defined policies, placers, backends, meters and trace readers.

    class TestMine(PolicyContract):
        policy = Mine(knob=3)

Requires the `test` extra (hypothesis, pytest).
"""

from wattline.testing.backend import BackendContract, JobBehaviour
from wattline.testing.meter import MeterContract
from wattline.testing.placer import PlacerContract
from wattline.testing.policy import PolicyContract, QuotaContract
from wattline.testing.scenarios import Scenario, quotas, scenarios
from wattline.testing.trace import TraceContract

__all__ = [
    "BackendContract",
    "JobBehaviour",
    "MeterContract",
    "PlacerContract",
    "PolicyContract",
    "QuotaContract",
    "Scenario",
    "TraceContract",
    "quotas",
    "scenarios",
]
