"""`top` and the tables in a real terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controllers import submit_text, wait_until, wait_until_running
from support.http_service import serve_http
from support.terminal import open_terminal
from wattline.cli.service.top_screen import TopScreen, format_sparkline

NAME = "a long name of a training job"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Serve four GPUs with four running jobs and one that waits, under budgets."""
    folder = tmp_path_factory.mktemp("service")
    with serve_http(folder) as controller:
        controller.set_budgets(["2kW", "vision:200kWh/day", "100kWh"])
        jobs = [
            submit_text(controller, f"run: sleep 600\nname: {NAME} {number}\nteam: vision")[0]
            for number in range(4)
        ]
        for job in jobs:
            wait_until_running(controller, job.id)
        submit_text(controller, "run: sleep 600\nname: waits", held=True)
        wait_until(lambda: controller.store.first_power_s(0, 1e12))
        yield folder


@pytest.mark.slow
def test_top_fits_80_columns_filters_scrolls_and_quits(folder: Path) -> None:
    with open_terminal(["top", "--every", "0.3s"], folder, rows=16) as terminal:
        screen = terminal.wait_for("1 job waiting")
        assert all(len(line) <= 80 for line in screen.splitlines())
        assert len(screen.splitlines()) <= 16
        assert "[####################] 4/4 busy" in screen
        assert "of 2000 W" in screen
        assert "█" in terminal.wait_for("59 W █")
        terminal.type("\x1b[B")
        terminal.type("/")
        terminal.type("job 2")
        screen = terminal.wait_for("/job 2_")
        terminal.type("\r")
        screen = terminal.wait_for("1 of 4 jobs running  /job 2")
        assert "\n     3 a long" in screen
        assert "\n     1 a long" not in screen
        terminal.type("\x1b")
        terminal.wait_for("4 jobs running  q quit")
        terminal.type("q")
        assert terminal.wait_for_end() == 0
        assert terminal.output.endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["queue"], ["1  a long name of …  RUNNING", "       Held by its owner or an operator."]),
        (["budget", "show"], ["2kW", "vision:200kWh/day"]),
        (["bill"], ["bill of all teams", "a long name of …"]),
        (["power", "--since", "1min"], ["/4 ", "####"]),
    ],
)
def test_tables_are_readable_in_80_columns(words: list[str], expected: list[str], folder: Path) -> None:
    with open_terminal(words, folder) as terminal:
        assert terminal.wait_for_end() == 0
        for text in expected:
            assert text.strip() in terminal.screen, terminal.screen
        table = [
            line for line in terminal.screen.splitlines() if not line.startswith(("energy:", "overshoot"))
        ]
        assert all(len(line) <= 80 for line in table), terminal.screen


def test_a_sparkline_shows_values_between_0_and_the_top() -> None:
    assert format_sparkline([0, 50, 100, None, 200], 100) == "▁▅█ █"
    assert format_sparkline([0, 100], 100, ascii_only=True) == ".@"
    assert format_sparkline([0, 0], 0) == "▁▁"


def test_keys_that_come_together_are_separated() -> None:
    screen = TopScreen()
    assert screen.press(b"\x1b[B\x1b[B\x1b[A")
    assert screen.offset == 1
    assert screen.press("/größe\x7f\r".encode())
    assert (screen.filter, screen.is_typing) == ("größ", False)
    assert not screen.press(b"q")
