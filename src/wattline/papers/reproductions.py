"""The experiments of `wattline reproduce`, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from wattline.errors import ConfigError
from wattline.papers.andreas_experiment import reproduce_andreas
from wattline.papers.hfta_experiment import reproduce_hfta
from wattline.papers.powerflow_experiment import reproduce_powerflow
from wattline.papers.results import Experiments, PaperResult
from wattline.papers.synergy_experiment import reproduce_synergy
from wattline.papers.together_experiment import reproduce_together
from wattline.papers.zeus_experiment import reproduce_zeus
from wattline.public_data.registry import SETS

EXPERIMENTS: Mapping[str, Callable[[Experiments], PaperResult]] = {
    "zeus": reproduce_zeus,
    "powerflow": reproduce_powerflow,
    "synergy": reproduce_synergy,
    "hfta": reproduce_hfta,
    "andreas": reproduce_andreas,
    "together": reproduce_together,
}


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` unless *folder* has the folder of some data set."""
    if not folder.is_dir():
        raise ConfigError(f"--data {folder} is no folder", "wattline data fetch all downloads data")
    if not any((folder / name).is_dir() for name in SETS):
        raise ConfigError(
            f"--data {folder} has none of the folders {', '.join(SETS)}",
            "name the folder above them; without --data the cache of wattline data fetch is used",
        )
