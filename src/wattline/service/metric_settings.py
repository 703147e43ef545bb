"""Table `[metrics]` of the settings: access to the metrics, and job files for DCGM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattline.errors import ConfigError, did_you_mean

_KEYS = ("require_token", "dcgm_job_mapping")


@dataclass(frozen=True)
class MetricSettings:
    """Settings of the metrics."""

    require_token: bool = False  # False: any caller that reaches the port reads them, as `/healthz`
    dcgm_job_mapping: str = ""  # folder of the job files for DCGM; empty: none are written


DEFAULT_METRICS = MetricSettings()


def parse_metric_settings(table: Any, where: str) -> MetricSettings:
    """Return the settings of a table; *where* begins the message of an error."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: metrics is {table!r}, expected a table [metrics]")
    for key in table:
        if key not in _KEYS:
            expected = ", ".join(_KEYS)
            raise ConfigError(
                f"{where}: metrics.{key} is unknown, expected one of {expected}", did_you_mean(key, _KEYS)
            )
    require_token, folder = table.get("require_token", False), table.get("dcgm_job_mapping", "")
    if not isinstance(require_token, bool):
        raise ConfigError(f"{where}: metrics.require_token is {require_token!r}, expected true or false")
    if not isinstance(folder, str) or (folder and not folder.startswith("/")):
        raise ConfigError(f"{where}: metrics.dcgm_job_mapping is {folder!r}, expected an absolute path")
    return MetricSettings(require_token, folder)
