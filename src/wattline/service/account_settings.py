"""Table `[slurm]` of the settings: the Slurm accounts of users and teams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from wattline.backend.engine.slurm.accounts import AccountMap, SlurmAccount
from wattline.errors import ConfigError, did_you_mean

_OWNERS, _KEYS = ("teams", "users"), ("account", "qos")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}")


def parse_accounts(table: Any, where: str) -> AccountMap:
    """Return the accounts of a table; *where* begins the message of an error."""
    owners = {
        owner: {
            name: _parse_account(entry, f"{where}: slurm.{owner}.{name}")
            for name, entry in _check_table(entries, f"{where}: slurm.{owner}").items()
        }
        for owner, entries in _check_table(table, f"{where}: slurm", _OWNERS).items()
    }
    return AccountMap(owners.get("teams", {}), owners.get("users", {}))


def _parse_account(entry: Any, name: str) -> SlurmAccount:
    values = _check_table(entry, name, _KEYS)
    for key, value in values.items():
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ConfigError(f"{name}.{key} is {value!r}, expected the name of an account or QOS in Slurm")
    if not values:
        raise ConfigError(f"{name} is empty, expected account or qos")
    return SlurmAccount(**values)


def _check_table(value: Any, name: str, keys: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return a table; raise `ConfigError` if it is none, or has others than *keys*; empty: any."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}, expected a table")
    for key in value:
        if keys and key not in keys:
            raise ConfigError(
                f"{name}.{key} is unknown, expected one of {', '.join(keys)}", did_you_mean(key, keys)
            )
    return value
