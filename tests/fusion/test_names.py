"""The public names of `wattline.fusion`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

pytest.importorskip("torch")

from wattline import fusion


@pytest.mark.parametrize("name", fusion.__all__)
def test_a_name_is_the_same_object_on_every_access(name: str) -> None:
    import_module(f"wattline.fusion.{fusion._MODULES[name]}")
    first, second = getattr(fusion, name), getattr(fusion, name)
    assert first is second
    assert not isinstance(first, ModuleType)
    assert first.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = fusion.nope
