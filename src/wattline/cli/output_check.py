"""Can what was asked for be written?"""

from __future__ import annotations

from pathlib import Path

from wattline.errors import ConfigError


def claim(*paths: str | None) -> None:
    """Make sure that files can be written before a long run, not after it; leaves none behind."""
    for path in (Path(text) for text in paths if text):
        there = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "ab").close()
            if not there:
                path.unlink()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
