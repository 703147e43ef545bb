"""Rules from files: TOML, or the output of Slurm's commands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from wattline.errors import ConfigError
from wattline.rules.rule_set import RuleSet
from wattline.rules.slurm_reader import read_slurm_rules
from wattline.rules.toml_reader import read_toml_rules


def read_rules(paths: Sequence[str]) -> RuleSet:
    """Return the rules of all files together; a file that ends in .toml is TOML, any other is from Slurm."""
    rules = RuleSet()
    for path in paths:
        rules += _read_file(path)
    return rules


@lru_cache(maxsize=8)
def _read_file(path: str) -> RuleSet:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--rules {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--rules {path}: not text in UTF-8, expected TOML or Slurm's output") from None
    return read_toml_rules(path, text) if path.endswith(".toml") else read_slurm_rules(path, text)
