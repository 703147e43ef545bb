"""Screenshots that the demo keeps, by chromium alone."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "demo"))
from screenshots import SIZE, find_browser, keep_screenshots

pytestmark = pytest.mark.slow


def test_the_demo_keeps_pictures_of_pages_behind_the_login(
    url: str, tokens: dict[str, str], tmp_path: Path
) -> None:
    if find_browser() is None:
        pytest.skip("chromium is not installed; scripts/install-system-packages installs it")
    pages = {tmp_path / "a" / "overview.png": "/", tmp_path / "login.png": "/login"}
    keep_screenshots(url, tokens["viewer"], pages)
    overview, login = (file.read_bytes() for file in pages)
    for picture in (overview, login):
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == (SIZE["width"], SIZE["height"])
    assert len(overview) > 1.5 * len(login)  # without a session both are the login
