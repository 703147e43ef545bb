"""Accuracy that the models must reach on published measurements they were not fitted to."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", ["speed", "caps", "clocks", "memory"])
def test_predictions_of_unseen_measurements_are_accurate_enough(data: Path, part: str) -> None:
    import held_out  # reads the public data

    assert getattr(held_out, f"check_{part}")()


def test_the_library_equals_the_output_of_its_script(data: Path) -> None:
    import fit_library

    from wattline import library
    from wattline.models.library import format_models

    made = {(w.model, w.gpu): format_models([w]) for w in fit_library.fit_source("elasticflow")}
    shipped = [w for w in library().workloads if w.source.name == "elasticflow"]
    assert len(shipped) >= 6
    for w in shipped:
        assert made[w.model, w.gpu] == format_models([w])
