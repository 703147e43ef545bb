"""Tables that fit into a terminal."""

from wattline.text_table import format_narrow_table

HEADER = ("policy", "mean JCT", "x", "energy", "x", "", "mean wait", "p99 wait", "held", "stops")
ROWS = [("a-policy-of-some-length", "12.3 h", "0.82 [0.79, 0.86]", "4.56 MWh", "0.97 [0.96, 0.98]", "*",
         "12.3 min", "1.23 d", "93.1 %", "12,345")]  # fmt: skip


def test_columns_that_do_not_fit_follow_below_with_the_first_column() -> None:
    lines = format_narrow_table(HEADER, ROWS, right=range(1, len(HEADER)))
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line] == ["policy", "a-policy-of-some-length"] * 3
    assert "" in lines
    assert " ".join(lines).count("12,345") == 1


def test_a_ratio_stays_beside_its_figure() -> None:
    for line in format_narrow_table(HEADER, ROWS, right=range(1, len(HEADER))):
        assert ("mean JCT" in line) <= (" x" in line)


def test_a_narrow_table_is_one_table() -> None:
    assert len(format_narrow_table(("a", "b"), [("1", "2")])) == 2
