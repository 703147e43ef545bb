"""The table [web] of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.errors import ConfigError
from wattline.service.settings import read_settings
from wattline.service.web_settings import WebSettings, parse_web_settings


def test_all_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(
        '[web]\norigin = "https://gpu.example.org"\nbase_path = "/wattline"\nhosts = ["gpu"]\n'
        'user_header = "X-Remote-User"\nproxies = ["::1"]\n'
    )
    web = read_settings(path).web
    assert web == WebSettings("https://gpu.example.org", "/wattline", ("gpu",), "X-Remote-User", ("::1",))
    assert web.is_secure
    assert web.accepts_host("gpu.example.org")
    assert web.accepts_host("GPU:7717")
    assert not web.accepts_host("gpu.example.org.evil.example")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"orign": "https://x"}, "did you mean origin"),
        ({"origin": "https://x/path"}, "web.origin is 'https://x/path', expected \"https://gpu.example.org\""),
        ({"origin": "ftp://x"}, "web.origin"),
        ({"base_path": "wattline"}, "web.base_path"),
        ({"base_path": "/a/../b c"}, "web.base_path"),
        ({"hosts": "gpu"}, "web.hosts"),
        ({"proxies": ["localhost"]}, "expected an address such as 127.0.0.1"),
        ({"user_header": "X-User"}, "web.proxies is empty"),
        ({"user_header": "X User\n", "proxies": ["127.0.0.1"]}, "web.user_header"),
        ("x", "expected a table"),
    ],
)  # fmt: skip
def test_an_invalid_key_is_named(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_web_settings(table, "settings.toml")
    assert message in f"{error.value.message} {error.value.hint}"
    assert error.value.message.startswith("settings.toml: web")
