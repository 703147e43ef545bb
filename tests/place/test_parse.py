import pytest

from wattline.errors import ConfigError
from wattline.place import Buddy, Pack, Power
from wattline.place.parse import parse_placer


def test_names_and_knobs_make_placers() -> None:
    assert parse_placer("pack", "none") == Pack("none")
    assert parse_placer("Buddy", "greedy") == Buddy("greedy")
    assert parse_placer("pack+power", "easy") == Power(Pack())
    assert parse_placer("buddy + power:spare=8", "none") == Power(Buddy("none"), spare=8)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("budy", "unknown placer 'budy', expected pack or buddy before the first +", "buddy"),
        ("", "unknown placer ''", ""),
        ("power", "unknown placer 'power', expected pack or buddy", ""),
        ("pack+powr", "unknown placer 'powr', expected power behind the first +", "power"),
        ("pack+buddy", "unknown placer 'buddy', expected power", ""),
        ("pack+power+power", "power is given twice", ""),
        ("buddy+power:spar=3", "unknown knob 'spar=3' of power, expected one of spare=0", "spare"),
        ("buddy+power:spare=many", "power's spare is 'many', expected a number like 0", ""),
        ("buddy+power:spare=1,spare=2", "power's spare is given twice", ""),
        ("buddy+power:spare=-1", "spare must be at least 0, got -1", ""),
        ("buddy+power:place=pack", "unknown knob 'place=pack' of power", ""),
        ("pack:backfill=none", "unknown knob 'backfill=none' of pack", ""),
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
