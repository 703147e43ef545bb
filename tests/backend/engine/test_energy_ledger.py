from __future__ import annotations

from wattline.backend.engine.energy_ledger import ALL, Tally


def test_teams_have_what_left_and_what_runs() -> None:
    tally = Tally()
    tally.add("red", 5.0)
    assert tally.read(20.0, [("red", 1.0), ("blue", 2.0)]) == {"red": 6.0, "blue": 2.0, ALL: 20.0}


def test_what_was_used_before_counts_until_it_is_counted_anew() -> None:
    tally = Tally()
    tally.count_from({"red": 100.0, ALL: 200.0})
    tally.add("red", 5.0)
    assert tally.read(10.0, []) == {"red": 105.0, ALL: 210.0}
    tally.zero(10.0, [("blue", 3.0)])
    assert tally.read(12.0, [("blue", 4.0)]) == {"red": 0.0, "blue": 1.0, ALL: 2.0}
