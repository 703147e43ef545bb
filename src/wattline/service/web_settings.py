"""Settings of the web page: the table `[web]` of `settings.toml`."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from wattline.errors import ConfigError, did_you_mean

_KEYS = ("origin", "base_path", "hosts", "user_header", "proxies")
_EXAMPLES = {
    "origin": '"https://gpu.example.org"',
    "base_path": '"/wattline"',
    "hosts": '["gpu.example.org"]',
    "user_header": '"X-Remote-User"',
    "proxies": '["127.0.0.1"]',
}


@dataclass(frozen=True)
class WebSettings:
    """Addresses under which browsers reach the service, and the proxy in front of it."""

    origin: str = ""  # scheme, host and port in a browser's address line; empty: those of the request
    base_path: str = ""  # of all addresses, such as /wattline; empty: none
    hosts: tuple[str, ...] = ()  # accepted in the header Host, besides this machine's name and addresses
    user_header: str = ""  # in which a proxy names the token of its user; empty: none
    proxies: tuple[str, ...] = ()  # addresses of peers that may send user_header

    @property
    def is_secure(self) -> bool:
        """True if browsers reach the service by TLS."""
        return self.origin.startswith("https://")

    @property
    def cookie(self) -> str:
        """Name of the session cookie."""
        return "__Host-wattline_session" if self.is_secure else "wattline_session"

    def accepts_host(self, header: str) -> bool:
        """Return whether a header Host names this service.

        Addresses are accepted as such: a page of another site can only reach the service under a name that
        it controls (DNS rebinding).
        """
        host = _strip_port(header).casefold()
        if host in self._names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    @property
    def _names(self) -> frozenset[str]:
        own = (socket.gethostname(), "localhost", _strip_port(urlsplit(self.origin).netloc))
        return frozenset(name.casefold() for name in (*self.hosts, *own) if name)


DEFAULT_WEB = WebSettings()


def _strip_port(netloc: str) -> str:
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0]


def parse_web_settings(table: Any, where: str) -> WebSettings:
    """Return the settings of a table; *where* begins the message of an error."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: web is {table!r}, expected a table [web]")
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}: web.{key}"
        if key not in _KEYS:
            raise ConfigError(
                f"{name} is unknown, expected one of {', '.join(_KEYS)}", did_you_mean(key, _KEYS)
            )
        values[key] = _parse_value(key, value, name)
    settings = WebSettings(**values)
    if settings.user_header and not settings.proxies:
        raise ConfigError(
            f"{where}: web.user_header is {settings.user_header!r}, and web.proxies is empty, expected the"
            " addresses of the proxies that set it",
            'proxies = ["127.0.0.1"]',
        )
    return settings


def _parse_value(key: str, value: Any, name: str) -> str | tuple[str, ...]:
    expected = f"expected {_EXAMPLES[key]}"
    if key in ("hosts", "proxies"):
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(f"{name} is {value!r}, {expected}")
        if key == "proxies":
            return tuple(_parse_address(one, name) for one in value)
        return tuple(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}, {expected}")
    pattern = {
        "origin": r"https?://[^/?#\s]+",
        "base_path": r"(/[A-Za-z0-9._~-]+)*",
        "user_header": r"[A-Za-z0-9-]+",
    }[key]
    if not re.fullmatch(pattern, value):
        raise ConfigError(f"{name} is {value!r}, {expected}")
    return value


def _parse_address(text: str, name: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ConfigError(f"{name} has {text!r}, expected an address such as 127.0.0.1") from None
