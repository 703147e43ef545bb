"""The names of `wattline.fusion`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

pytest.importorskip("torch")

from wattline import fusion


@pytest.mark.parametrize("name", fusion.__all__)
def test_a_name_is_the_same_thing_however_often_it_is_asked_for(name: str) -> None:
    import_module(f"wattline.fusion.{fusion._MODULES[name]}")
    first, second = getattr(fusion, name), getattr(fusion, name)
    assert first is second
    assert not isinstance(first, ModuleType)
    assert first.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = fusion.nope
