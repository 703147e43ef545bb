import pytest

from wattline.errors import ConfigError
from wattline.papers import PLACERS, TunePublished
from wattline.placement import Buddy, Pack, Power, Tune
from wattline.placement.parser import parse_placer


def test_names_and_knobs_make_placers() -> None:
    assert parse_placer("pack", "none") == Pack("none")
    assert parse_placer("Buddy", "greedy") == Buddy("greedy")
    assert parse_placer("pack+power", "easy") == Power(Pack())
    assert parse_placer("proportional", "none") == Pack("none")
    assert parse_placer("Tune:move=0.5", "easy") == Tune(move=0.5)
    assert parse_placer("tune-published:round=60", "greedy", PLACERS) == TunePublished(round_s=60.0)
    assert parse_placer("buddy + power:spare=8", "none") == Power(Buddy("none"), spare=8)
    assert parse_placer("buddy:backfill=none+power", "greedy") == Power(Buddy("none"))


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("budy", "unknown placer 'budy', expected one of pack, proportional, buddy, tune,", "buddy"),
        ("", "unknown placer ''", ""),
        ("power", "unknown placer 'power', expected one of pack, proportional, buddy", ""),
        ("pack+powr", "unknown placer 'powr', expected one of host, power behind the first +", "power"),
        ("pack+buddy", "unknown placer 'buddy', expected one of host, power", ""),
        ("pack+power+power", "power is given twice", ""),
        ("buddy+power:spar=3", "unknown knob 'spar=3' of power, expected one of spare=0", "spare"),
        ("buddy+power:spare=many", "power's spare is 'many', expected a number like 0", ""),
        ("buddy+power:spare=1,spare=2", "power's spare is given twice", ""),
        (
            "buddy+power:spare=-1",
            "place 'buddy+power:spare=-1': power's spare must be at least 0, got -1",
            "",
        ),
        ("buddy+power:place=pack", "unknown knob 'place=pack' of power", ""),
        ("pack:backfill=nine", "pack's backfill must be one of none, easy, greedy, got 'nine'", "none"),
    ],
)
def test_a_bad_placer_is_explained(text: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_placer(text, "easy")
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_a_bad_backfill_is_explained() -> None:
    with pytest.raises(ConfigError, match="backfill must be one of none, easy, greedy, got 'esay'") as caught:
        parse_placer("pack", "esay")
    assert caught.value.hint == "did you mean easy?"
