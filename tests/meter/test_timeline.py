"""Power and temperature timelines."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import wattline
from wattline.errors import ConfigError
from wattline.meter import Meter, open_meter


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    return open_meter(f"simulated:2xv100,model=resnet50,batch=64,time=virtual,state={tmp_path / 'gpus'}")


def test_a_timeline_has_power_and_temperature_of_each_gpu(meter: Meter) -> None:
    with wattline.timeline(meter=meter) as t:
        for _ in range(5):
            meter.stepped(64)
            t.sample()
    assert len(t.at_s) == 6  # one at the start
    assert t.at_s[0] == 0
    assert t.at_s[-1] == pytest.approx(meter.now_s())
    assert set(t.power_w) == set(t.temperature_c) == {0, 1}
    assert t.power_w[1] == pytest.approx([meter.gpus[1].power_w()] * 6, rel=0.9)
    assert t.temperature_c[0][-1] == meter.gpus[0].temperature_c()
    meter.stepped(64)
    t.sample()  # after its end
    assert len(t.at_s) == 6


def test_memory_is_bounded_and_the_whole_time_stays_covered(meter: Meter) -> None:
    with wattline.timeline(meter=meter, max_samples=8) as t:
        watts = []
        for k in range(101):
            meter.gpus[0].set_cap(100.0 + 2 * k)
            meter.stepped(64)
            t.sample()
            watts.append(meter.gpus[0].power_w())
            assert len(t.at_s) <= 8
    assert t.at_s[-1] > 0.85 * meter.now_s()
    assert (np.diff(t.at_s) > 0).all()
    assert np.mean(t.power_w[0]) == pytest.approx(np.mean(watts), rel=0.05)
    assert np.corrcoef(t.at_s, t.power_w[0])[0, 1] > 0.9  # the caps rise over time


def test_what_is_never_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("at_s,gpu,power_w\n0,0,100\n1,0,120\n2,0,90\n")
    meter = open_meter(f"replay:{tmp_path / 'r.csv'},time=virtual")
    with wattline.timeline(meter=meter) as t:
        for _ in range(3):  # the recording ends before
            meter.stepped(1)
            t.sample()
    assert t.temperature_c == {0: None}
    assert t.power_w[0] == pytest.approx([100, 120, 90, np.nan], nan_ok=True)
    with wattline.timeline(meter="none") as t:
        pass
    assert (t.power_w, t.temperature_c) == ({}, {})


def test_the_file_of_a_timeline_can_be_replayed(meter: Meter, tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    for _ in range(2):  # the second run replaces the first
        with wattline.timeline(meter=meter, csv=path) as t:
            for _ in range(3):
                meter.stepped(64)
                t.sample()
    replayed = open_meter(f"replay:{path},time=virtual")
    for power_w, temperature_c in zip(t.power_w[1], t.temperature_c[1], strict=True):
        assert replayed.gpus[1].power_w() == pytest.approx(power_w, abs=1e-3)
        assert replayed.gpus[1].temperature_c() == pytest.approx(temperature_c, rel=1e-4)
        replayed.stepped(1)


def test_no_other_file_is_overwritten(meter: Meter, tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds something else than a timeline"):
        wattline.timeline(meter=meter, csv=path).__enter__()
    assert path.read_text() == "years of work"
    with (
        wattline.timeline(meter=meter, csv=tmp_path / "power.csv"),
        pytest.raises(ConfigError, match="another timeline is written there"),
    ):
        wattline.timeline(meter=meter, csv=tmp_path / "power.csv").__enter__()


def test_samples_are_taken_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = open_meter("simulated:1xv100,model=resnet50,batch=64,time=real")
    enough = threading.Event()
    reads = []

    def read() -> float:
        reads.append(1)
        if len(reads) >= 4:
            enough.set()
        return 50.0

    monkeypatch.setattr(meter.gpus[0], "temperature_c", read)
    with wattline.PowerTimeline(meter=meter, every_s=0.005) as t:
        assert enough.wait(60)
    assert len(t.at_s) >= 4
    count = len(reads)
    t.sample()
    assert len(reads) == count
    meter.close()


@pytest.mark.parametrize("options", [{"every_s": 0}, {"every_s": float("nan")}, {"max_samples": 1}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"expected"):
        wattline.timeline(**options)  # type: ignore[arg-type]
