"""Base class of the request bodies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """Base of all requests: no unknown fields, and neither true nor "5" is a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


def read_whole(value: Any) -> Any:
    """Return 4 for 4.0, which JSON does not distinguish, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
