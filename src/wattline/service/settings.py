"""Settings of the service: the file `settings.toml`, and its table `[retention]`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattline.backend.engine.slurm.accounts import NO_ACCOUNTS, AccountMap
from wattline.errors import ConfigError, Conflict, did_you_mean
from wattline.service.account_settings import parse_accounts
from wattline.service.billing.settings import NO_TARIFF, BillSettings, parse_bill_settings
from wattline.service.metric_settings import DEFAULT_METRICS, MetricSettings, parse_metric_settings
from wattline.service.notifications.settings import NO_WEBHOOKS, WebhookSettings, parse_webhooks
from wattline.service.web_settings import DEFAULT_WEB, WebSettings, parse_web_settings
from wattline.units import parse_gib, parse_seconds

DAY_S = 86400.0
_NEVER = "never"


@dataclass(frozen=True)
class RetentionSettings:
    """Limits of what is kept. Ages are in seconds; inf: no limit."""

    jobs_s: float = 90 * DAY_S  # ended jobs, with their events and folders
    logs_s: float = 30 * DAY_S  # output of ended jobs
    events_s: float = 90 * DAY_S  # events of the service itself, idempotency keys, and old epochs
    max_bytes: float = 50 * 2.0**30  # folders of jobs and the database together
    every_s: float = 3600.0  # between two prunings by the service
    archive: str = ""  # folder to which jobs are written before they are deleted; empty: none


@dataclass(frozen=True)
class ServiceSettings:
    """The tables of a settings file."""

    retention: RetentionSettings = RetentionSettings()
    accounts: AccountMap = NO_ACCOUNTS
    metrics: MetricSettings = DEFAULT_METRICS
    bill: BillSettings = NO_TARIFF
    webhooks: WebhookSettings = NO_WEBHOOKS
    web: WebSettings = DEFAULT_WEB


_TABLES = ("retention", "slurm", "metrics", "bill", "webhooks", "web")
_FIELDS = {"jobs": "jobs_s", "logs": "logs_s", "events": "events_s", "every": "every_s"}
_KEYS = (*_FIELDS, "max_size", "archive")


def read_settings(path: Path, required: bool = False) -> ServiceSettings:
    """Read a settings file; a missing one gives the defaults, unless it is *required*."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):  # the store refuses a folder that is none
        if required:
            raise ConfigError(f"{path}: no such file") from None
        return ServiceSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    for key in document:
        if key not in _TABLES:
            raise ConfigError(
                f"{path}: unknown key {key}, expected one of {', '.join(_TABLES)}", did_you_mean(key, _TABLES)
            )
    table = document.get("retention", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: retention is {table!r}, expected a table [retention]")
    return ServiceSettings(
        parse_retention(table, str(path)),
        parse_accounts(document.get("slurm", {}), str(path)),
        parse_metric_settings(document.get("metrics", {}), str(path)),
        parse_bill_settings(document.get("bill", {}), str(path), path.resolve().parent),
        parse_webhooks(document.get("webhooks", {}), str(path)),
        parse_web_settings(document.get("web", {}), str(path)),
    )


def parse_retention(table: Mapping[str, Any], where: str) -> RetentionSettings:
    """Return the settings of a table; *where* begins the message of an error."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}: retention.{key}"
        if key not in _KEYS:
            expected = ", ".join(_KEYS)
            raise ConfigError(f"{name} is unknown, expected one of {expected}", did_you_mean(key, _KEYS))
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}, expected a text such as {_example(key)}")
        if key == "archive":
            if not value.startswith("/"):
                raise ConfigError(f"{name} is {value!r}, expected an absolute path")
            values[key] = value
        elif key == "max_size":
            values["max_bytes"] = parse_size(value, name)
        else:
            values[_FIELDS[key]] = parse_age(value, name)
    settings = RetentionSettings(**values)
    if settings.every_s < 1:
        raise ConfigError(f"{where}: retention.every is {settings.every_s:g} s, expected at least 1s")
    return settings


def override_retention(
    settings: RetentionSettings, older_than: str | None, max_size: str | None, archive: str | None
) -> RetentionSettings:
    """Return the settings with these limits in place of theirs; raise `Conflict` for an invalid one."""
    try:
        if older_than is not None:
            age_s = parse_age(older_than, "older_than")
            settings = replace(settings, jobs_s=age_s, logs_s=age_s, events_s=age_s)
        if max_size is not None:
            settings = replace(settings, max_bytes=parse_size(max_size, "max_size"))
    except ConfigError as error:
        raise Conflict(error.message, error.hint) from None
    if archive is not None:
        if not archive.startswith("/") or "\0" in archive:
            raise Conflict(f"archive is {archive!r}, expected an absolute path")
        settings = replace(settings, archive=archive)
    return settings


def parse_age(text: str, name: str) -> float:
    """Return an age such as 30d in seconds; `never` is inf."""
    try:
        return float("inf") if text == _NEVER else parse_seconds(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, expected an age such as 30d, or never") from None


def parse_size(text: str, name: str) -> float:
    """Return a size such as 10G in bytes; `never` is inf."""
    try:
        return float("inf") if text == _NEVER else parse_gib(text) * 2**30
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, expected a size such as 10G, or never") from None


def _example(key: str) -> str:
    return {"max_size": '"50G"', "archive": '"/backup/wattline"'}.get(key, '"30d"')
