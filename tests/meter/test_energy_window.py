"""Energy between two moments."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter.energy_window import EnergyWindow, measure_energy
from wattline.meter.power_sampler import PowerIntegrator


def open_virtual(more: str = "") -> Meter:
    return open_meter(f"simulated:2xv100,model=resnet50,batch=128,time=virtual{more}")


def test_a_window_sums_the_gpus_and_has_the_meter_s_seconds() -> None:
    meter = open_virtual()
    meter.stepped(128)
    before_j, before_s = [gpu.energy_j() for gpu in meter.gpus], meter.now_s()
    window = EnergyWindow(meter)
    meter.stepped(128)
    meter.stepped(128)
    used = window.end()
    assert [part.energy_j for part in used.parts] == [
        gpu.energy_j() - before for gpu, before in zip(meter.gpus, before_j, strict=True)
    ]
    assert used.energy_j == pytest.approx(2 * sum(before_j))
    assert used.seconds == pytest.approx(2 * before_s)
    assert used.watts == pytest.approx(sum(gpu.power_w() for gpu in meter.gpus))
    assert (used.method, used.lost) == ("simulated", ())
    meter.close()


def test_windows_may_overlap_and_cover_some_gpus_only() -> None:
    meter = open_virtual()
    outer = EnergyWindow(meter)
    meter.stepped(128)
    inner = EnergyWindow(meter, meter.gpus[:1])
    meter.stepped(128)
    one, both = inner.end(), outer.end()
    assert one.energy_j is not None
    assert both.energy_j == pytest.approx(4 * one.energy_j)
    assert one.counted_j == one.energy_j, "two windows of one process both count"
    meter.close()


def test_without_a_meter_energy_is_none_and_not_0() -> None:
    with measure_energy(open_meter("none")) as used:
        time.sleep(0.01)
    assert used[0].seconds >= 0.01
    assert (used[0].energy_j, used[0].counted_j, used[0].watts) == (None, None, None)
    assert used[0].method == "unmetered"


def test_the_energy_of_a_block_that_raises_is_known() -> None:
    meter = open_virtual()
    used = []

    def fails() -> None:
        nonlocal used
        with measure_energy(meter) as used:
            meter.stepped(128)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert used[0].energy_j == pytest.approx(sum(gpu.energy_j() for gpu in meter.gpus))
    meter.close()


def test_a_gpu_lost_in_the_middle_counts_until_it_was_last_read() -> None:
    meter = open_virtual(",lost=2")
    window = EnergyWindow(meter)
    meter.stepped(128)
    window.sample()
    seen_j = [gpu.energy_j() for gpu in meter.gpus]
    meter.stepped(128)
    used = window.end()
    assert used.parts[1].energy_j == seen_j[1] > 0
    assert used.parts[0].energy_j == pytest.approx(2 * seen_j[0])
    assert len(used.lost) == 1
    assert "GPU 1" in used.lost[0]
    meter.close()


def test_a_gpu_that_was_never_read_is_unmetered() -> None:
    meter = open_virtual(",lost=0")
    used = EnergyWindow(meter, meter.gpus[1:]).end()
    assert (used.energy_j, used.parts[0].energy_j) == (None, None)
    assert used.lost
    meter.close()


@pytest.mark.slow
def test_two_processes_on_one_gpu_count_its_energy_once(tmp_path: Path) -> None:
    meter = open_virtual(f",state={tmp_path / 'gpus'}")
    code = (
        "import sys\n"
        "from wattline.meter import open_meter\n"
        "from wattline.meter.energy_window import EnergyWindow\n"
        f"m = open_meter({meter.gpus[0].spec!r})\n"
        "w = EnergyWindow(m, m.gpus[:1]); print('begun', flush=True)\n"
        "sys.stdin.readline(); m.stepped(128); u = w.end()\n"
        "print(u.energy_j, u.counted_j, flush=True)\n"
        "sys.stdin.readline()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "begun\n"
    mine = EnergyWindow(meter)
    other.stdin.write("\n")
    other.stdin.flush()
    theirs_j, their_count_j = map(float, other.stdout.readline().split())
    used = mine.end()
    assert [part.counted for part in used.parts] == [False, True]
    assert used.parts[0].energy_j == pytest.approx(theirs_j) == pytest.approx(their_count_j)
    assert used.counted_j == used.parts[1].energy_j
    other.kill()
    other.communicate()
    assert EnergyWindow(meter).end().parts[0].counted, "a dead process holds no claim"
    meter.close()


@pytest.mark.slow
def test_after_the_last_window_other_processes_may_count(tmp_path: Path) -> None:
    meter = open_virtual(f",state={tmp_path / 'gpus'}")
    code = (
        "from wattline.meter import open_meter\n"
        "from wattline.meter.energy_window import EnergyWindow\n"
        f"print([p.counted for p in EnergyWindow(open_meter({meter.gpus[0].spec!r})).end().parts])"
    )

    def other() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    first, second = EnergyWindow(meter), EnergyWindow(meter)
    first.end()
    first.end()
    assert other() == "[False, False]\n"
    second.end()
    assert other() == "[True, True]\n"
    meter.close()


def test_power_is_integrated_by_trapezoids_on_the_given_clock() -> None:
    moments = iter([(0.0, 100.0), (1.0, 300.0), (1.0, 300.0), (3.0, 100.0)])
    now: list[tuple[float, float]] = []

    def power_w() -> float:
        now.append(next(moments))
        return now[-1][1]

    integrator = PowerIntegrator(power_w, lambda: now[-1][0], period_s=None)
    assert [integrator.energy_j() for _ in range(3)] == [200, 200, 600]


def test_clock_changes_do_not_affect_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day is not used, and a clock that goes back does not reduce the energy."""
    meter = open_meter("simulated:1xv100,model=resnet50,batch=64")
    window = EnergyWindow(meter)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    meter.stepped(1)
    used = window.end()
    assert 0 < used.seconds < 60
    meter.close()
    back = iter([10.0, 5.0, 6.0])
    integrator = PowerIntegrator(lambda: 100.0, lambda: next(back), period_s=None)
    assert [integrator.energy_j(), integrator.energy_j()] == [0, 100]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("nvlm", "nvml"), ("Simulated:1xv100", "simulated"), ("zeus", "zeusd"), ("non", "none")],
)
def test_an_unknown_meter_is_refused_with_the_nearest_name(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match="unknown meter") as caught:
        open_meter(text)
    assert caught.value.hint == f"did you mean {nearest}?"


def test_the_environment_sets_the_meter_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_METER", "simulated:1xa40")
    assert open_meter().name == "simulated"
    assert open_meter("none").name == "none"
    with pytest.raises(ConfigError, match="takes no options"):
        open_meter("none:really")
    with pytest.raises(MeterError):
        open_meter("nvml")
