import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.units import (
    format_joules,
    format_joules_alike,
    format_seconds,
    parse_gib,
    parse_joules,
    parse_mhz,
    parse_seconds,
    parse_watts,
    pluralize,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300", 300),
        ("300s", 300),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("250ms", 0.25),
        ("05:00", 300),
        ("2-12", 216000),
        ("12:00:00", 43200),
        ("1-12:00:00", 129600),
        ("0s", 0),
        ("1.5h", 5400),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "5 parsecs", "-5s", "1h30", "nan", "5m3"])
def test_invalid_durations_are_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected something like"):
        parse_seconds(text)


@given(st.integers(0, 10**7))
def test_slurm_times_round_trip(seconds: int) -> None:
    days, rest = divmod(seconds, 86400)
    assert parse_seconds(f"{days}-{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}") == seconds


def test_sizes_are_gib() -> None:
    assert [parse_gib(t) for t in ("32G", "500GiB", "1T", "2048M", "7")] == [32, 500, 1024, 2, 7]
    with pytest.raises(ValueError, match="expected something like"):
        parse_gib("lots")


def test_durations_are_formatted_in_a_fitting_unit() -> None:
    assert [format_seconds(s) for s in (42, 300, 7200, 200000)] == ["42 s", "5 min", "2 h", "2.31 d"]


def test_watts_and_clocks_are_parsed() -> None:
    assert [parse_watts(t) for t in ("250W", "250", "0.25kW", " 250 w ", ".25kw")] == [250] * 5
    assert [parse_mhz(t) for t in ("1200MHz", "1200", "1.2GHz", " 1200 mhz ")] == [1200] * 4


@pytest.mark.parametrize("text", ["", "W", "250V", "-250W", "nan", "inf", "1e3", "2 50W", "250 kkW"])
def test_invalid_powers_and_clocks_are_rejected_with_an_example(text: str) -> None:
    for parse in (parse_watts, parse_mhz):
        with pytest.raises(ValueError, match="expected something like"):
            parse(text)


def test_joules_are_parsed() -> None:
    assert [parse_joules(t) for t in ("3kWh", "3 kwh", "10.8MJ", "10800kJ", "10800000")] == [10.8e6] * 5
    assert [parse_joules(t) for t in ("2Wh", "1GJ", "1MWh", "7J")] == [7200, 1e9, 3.6e9, 7]


@pytest.mark.parametrize("text", ["", "kWh", "3kW", "-3kWh", "5mJ", "5mWh", "nan", "1e3J", "3kWh/day"])
def test_invalid_energies_are_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected something like 3kWh"):
        parse_joules(text)


def test_tiny_durations_are_zero() -> None:
    assert [format_seconds(s) for s in (0, 2.62e-13, -1e-9, 0.05)] == ["0 s", "0 s", "0 s", "0.05 s"]


def test_energies_of_one_column_have_one_unit() -> None:
    assert format_joules_alike([14.9, 3.2e6, 0.0]) == ["0.00414 Wh", "889 Wh", "0 Wh"]
    assert format_joules_alike([1.0, 3.6e9]) == ["<0.001 MWh", "1 MWh"]
    assert [format_joules(j) for j in (0, 849.6, 99.97, 44424, 1.2e12)] == [
        *("0 J", "850 J", "100 J", "12.3 Wh", "333 MWh"),
    ]
    assert format_joules_alike([]) == []


def test_counts_agree_with_their_noun() -> None:
    assert [pluralize(n, "job") for n in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
