"""Rules in a TOML file: [[partitions]], [[qos]], [[reservations]], [[racks]], [[accounts]], [[users]] …"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from datetime import date, datetime
from typing import Any

from wattline.core.quotas import QuotaRule
from wattline.errors import ConfigError, did_you_mean
from wattline.rules.rule_set import RULE_LISTS, RULE_TABLES, RuleSet, UseLimits
from wattline.units import parse_seconds

_OWNERS = {"accounts": "team", "users": "user"}
_LIMITS = {
    "max_jobs_per_user": "user_jobs",
    "max_gpus_per_user": "user_gpus",
    "max_jobs_per_account": "account_jobs",
    "max_gpus_per_account": "account_gpus",
    "max_jobs_in_sum": "group_jobs",
    "max_gpus_in_sum": "group_gpus",
    "borrow": "borrow",
}
_TIMES = {"max_time", "default_time", "max_wall", "exempt", "duration", "every", "half_life", "age"}
_QUOTA = ("gpus", "gpu_hours_per_week", "share")


def read_toml_rules(path: str, text: str) -> RuleSet:
    """Return the rules of a TOML file; an unknown key or a wrong value raises `ConfigError`."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    _check_keys(content, (*RULE_LISTS, *RULE_TABLES, *_OWNERS), path)
    parts: dict[str, Any] = {}
    for name, rule in RULE_LISTS.items():
        parts[name] = tuple(
            _build(rule, table, f"{path}: {name}[{number}]")
            for number, table in enumerate(_list_tables(content, name, path))
        )
    for name, single in RULE_TABLES.items():
        if name in content:
            parts[name] = _build(single, _require_table(content[name], f"{path}: {name}"), f"{path}: {name}")
    parts["quotas"] = tuple(
        _build_quota(owner, table, f"{path}: {name}[{number}]")
        for name, owner in _OWNERS.items()
        for number, table in enumerate(_list_tables(content, name, path))
    )
    return RuleSet(**parts)


def _list_tables(content: Mapping[str, Any], name: str, path: str) -> list[Mapping[str, Any]]:
    tables = content.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{path}: {name} is {type(tables).__name__}, expected [[{name}]] tables")
    return [_require_table(table, f"{path}: {name}[{number}]") for number, table in enumerate(tables)]


def _require_table(table: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is {table!r}, expected a table of keys and values")
    return table


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(
                f"{where}: unknown key {key!r}, expected one of {', '.join(known)}",
                hint=did_you_mean(key, known),
            )


def _build(rule: type, table: Mapping[str, Any], where: str) -> Any:
    """Return the *rule* of a table; times may have units, limits of use are keys of their own."""
    types = {field.name: str(field.type) for field in fields(rule)}
    names = {name.removesuffix("_s"): name for name in types if name != "limits"}
    limits = _LIMITS if "limits" in types else {}
    _check_keys(table, (*names, *limits), where)
    if "name" in types and not isinstance(table.get("name"), str):
        raise ConfigError(f"{where}: name is missing, expected a word")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in limits:
            continue
        target = names[key]
        values[target] = _convert(key, types[target], value, where)
    if limits:
        chosen = {
            target: _convert(key, "bool" if key == "borrow" else "int", table[key], where)
            for key, target in limits.items()
            if key in table
        }
        values["limits"] = UseLimits(**chosen)
    try:
        return rule(**values)
    except TypeError as error:
        missing = str(error).partition(":")[2].strip() or str(error)
        raise ConfigError(f"{where}: {missing} is missing") from None


def _convert(key: str, kind: str, value: Any, where: str) -> Any:
    """Return *value* as the type of a field; raise `ConfigError` if it is another."""
    if key in _TIMES:
        return _parse_time(key, value, where)
    if key == "start" and isinstance(value, datetime | date):
        return value.isoformat()
    if key == "start" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if key == "nodes" and isinstance(value, list):
        value = ",".join(map(str, value))
    if kind.startswith("tuple"):
        words = [value] if isinstance(value, str) else value
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        expected = "a list of words"
    elif kind == "bool":
        if isinstance(value, bool):
            return value
        expected = "true or false"
    elif kind.startswith("int"):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        expected = "a whole number, at least 0"
    elif kind.startswith("float"):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        expected = "a number"
    else:
        if isinstance(value, str):
            return value
        expected = "a word"
    raise ConfigError(f"{where}: {key} is {value!r}, expected {expected}")


def _parse_time(key: str, value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    if isinstance(value, str):
        if value.casefold() == "unlimited":
            return math.inf
        try:
            return parse_seconds(value)
        except ValueError:
            pass
    raise ConfigError(f"{where}: {key} is {value!r}, expected a time as in 4h, 1-12:00:00, or unlimited")


def _build_quota(owner: str, table: Mapping[str, Any], where: str) -> QuotaRule:
    _check_keys(table, ("name", *_QUOTA), where)
    if not isinstance(table.get("name"), str):
        raise ConfigError(f"{where}: name is missing, expected a word")
    try:
        return QuotaRule(owner, table["name"], **{key: table[key] for key in _QUOTA if key in table})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from None
