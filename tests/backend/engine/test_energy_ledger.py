from __future__ import annotations

from wattline.backend.engine.energy_ledger import ALL, EnergyLedger


def test_a_team_has_the_energy_of_its_ended_and_running_jobs() -> None:
    ledger = EnergyLedger()
    ledger.add("red", 5.0)
    assert ledger.read(20.0, [("red", 1.0), ("blue", 2.0)]) == {"red": 6.0, "blue": 2.0, ALL: 20.0}


def test_energy_of_earlier_processes_counts_until_a_reset() -> None:
    ledger = EnergyLedger()
    ledger.restore({"red": 100.0, ALL: 200.0})
    ledger.add("red", 5.0)
    assert ledger.read(10.0, []) == {"red": 105.0, ALL: 210.0}
    ledger.reset(10.0, [("blue", 3.0)])
    assert ledger.read(12.0, [("blue", 4.0)]) == {"red": 0.0, "blue": 1.0, ALL: 2.0}
