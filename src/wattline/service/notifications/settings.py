"""Table `[webhooks]` of the settings: the origins that webhooks may call, and the webhooks of teams.

Users may name a URL for their jobs, and the service calls it from inside the site's network. So only the
origins that an operator lists are called, redirects are not followed, and proxies are not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wattline.errors import ConfigError, did_you_mean

EVENTS = ("end", "failure", "budget")
"""Occasions: a job succeeded or was cancelled, a job ended in another way, a budget is exhausted."""
_KEYS = ("allow", "teams", "secret_file")
_MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Webhook:
    """A URL, and the occasions on which it is called."""

    url: str
    on: tuple[str, ...] = EVENTS


@dataclass(frozen=True)
class WebhookSettings:
    """Settings of webhooks; without allowed origins none is called."""

    allow: tuple[str, ...] = ()  # origins: https://hooks.example.org, http://127.0.0.1:8080
    teams: dict[str, Webhook] = field(default_factory=dict)
    secret_file: str = ""  # empty: `webhook-secret` in the folder of the service

    def check_url(self, url: str, name: str) -> None:
        """Raise `ConfigError` unless webhooks may call *url*; *name* begins the message."""
        origin = parse_origin(url, name)
        if origin not in self.allow:
            allowed = ", ".join(self.allow) or "none"
            raise ConfigError(
                f"{name} is {url!r}, and webhooks may not call {origin}; allowed: {allowed}",
                "an operator adds it to [webhooks] allow in settings.toml of the service",
            )


NO_WEBHOOKS = WebhookSettings()


def parse_origin(url: str, name: str) -> str:
    """Return scheme, host and port of a URL; raise `ConfigError` if it is no URL of a webhook."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if parts.scheme not in ("http", "https") or not host or not is_plain or len(url) > _MOST_CHARACTERS:
        raise ConfigError(f"{name} is {url!r}, expected a URL such as https://hooks.example.org/wattline")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{name} is {url!r}, expected a URL without a user and password")
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{shown}" + ("" if port in (None, default) else f":{port}")


def parse_webhooks(table: Any, where: str) -> WebhookSettings:
    """Return the settings of a table; *where* begins the message of an error."""
    name = f"{where}: webhooks"
    if not isinstance(table, dict):
        raise ConfigError(f"{name} is {table!r}, expected a table [webhooks]")
    for key in table:
        if key not in _KEYS:
            raise ConfigError(
                f"{name}.{key} is unknown, expected one of {', '.join(_KEYS)}", did_you_mean(key, _KEYS)
            )
    allow, teams, secret = table.get("allow", []), table.get("teams", {}), table.get("secret_file", "")
    if not isinstance(allow, list) or not all(isinstance(one, str) for one in allow):
        raise ConfigError(f"{name}.allow is {allow!r}, expected a list of origins")
    if not isinstance(teams, dict):
        raise ConfigError(f"{name}.teams is {teams!r}, expected a table of teams and URLs")
    if not isinstance(secret, str) or (secret and not secret.startswith("/")):
        raise ConfigError(f"{name}.secret_file is {secret!r}, expected an absolute path")
    for one in allow:
        if urlsplit(one).path.strip("/") or urlsplit(one).query:
            raise ConfigError(
                f"{name}.allow is {one!r}, expected an origin such as https://hooks.example.org"
            )
    origins = tuple(parse_origin(one, f"{name}.allow") for one in allow)
    settings = WebhookSettings(
        origins,
        {team: _parse_webhook(entry, f"{name}.teams.{team}") for team, entry in teams.items()},
        secret,
    )
    for team, webhook in settings.teams.items():
        settings.check_url(webhook.url, f"{name}.teams.{team}")
    return settings


def _parse_webhook(entry: Any, name: str) -> Webhook:
    if isinstance(entry, str):
        return Webhook(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str) or set(entry) - {"url", "on"}:
        raise ConfigError(f'{name} is {entry!r}, expected a URL, or {{url = "…", on = ["failure"]}}')
    on = entry.get("on", list(EVENTS))
    if not isinstance(on, list) or not on or any(one not in EVENTS for one in on):
        raise ConfigError(f"{name}.on is {on!r}, expected a list of {', '.join(EVENTS)}")
    return Webhook(entry["url"], tuple(on))
