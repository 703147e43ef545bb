"""Simulated GPUs follow the models of the library."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wattline.errors import ConfigError, MeterError, NotFitted, NotPermitted, OutOfRange
from wattline.measurement.settings import Settings
from wattline.meter import Meter, open_meter
from wattline.models.library import library


def open_virtual(text: str = "1xv100,model=resnet50,batch=64") -> Meter:
    return open_meter(f"simulated:{text},time=virtual")


@pytest.mark.parametrize("cap_w", [100, 175, 250])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_step_has_the_time_and_power_of_the_library(cap_w: float, gpus: int) -> None:
    meter = open_virtual(f"{gpus}xv100,model=resnet50,batch={64 * gpus}")
    known = library().find("resnet50", "v100")
    samples_s, watts = known.predict(Settings.of(gpus=gpus, batch=64 * gpus, cap_w=cap_w))
    for gpu in meter.gpus:
        gpu.set_cap(cap_w)
    meter.stepped(6400)
    assert meter.now_s() == pytest.approx(6400 / samples_s[0])
    used_j = sum(gpu.energy_j() for gpu in meter.gpus)
    assert used_j == pytest.approx(watts[0] * 6400 / samples_s[0])
    assert sum(gpu.power_w() for gpu in meter.gpus) == pytest.approx(watts[0])
    meter.close()


def test_only_steps_advance_virtual_time() -> None:
    meter = open_virtual()
    assert (meter.now_s(), meter.gpus[0].energy_j()) == (0, 0)
    time.sleep(0.01)
    assert (meter.now_s(), meter.gpus[0].energy_j()) == (0, 0)
    meter.close()


def test_faster_gpus_wait_for_the_slowest() -> None:
    meter = open_virtual("2xv100,model=resnet50,batch=128")
    meter.stepped(128)
    fast_s, fast_j = meter.now_s(), meter.gpus[1].energy_j()
    meter.gpus[0].set_cap(100)
    meter.stepped(128)
    slow_s, slow_j = meter.now_s() - fast_s, meter.gpus[1].energy_j() - fast_j
    assert slow_s > 1.2 * fast_s
    assert fast_j < slow_j < fast_j * slow_s / fast_s, "a waiting GPU draws less than a busy one"
    meter.close()


def test_a_locked_clock_reduces_speed_and_power() -> None:
    meter = open_virtual()
    meter.stepped(64)
    free_s, free_w = meter.now_s(), meter.gpus[0].power_w()
    meter.gpus[0].lock_clock(800)
    meter.stepped(64)
    assert meter.now_s() - free_s > free_s
    assert meter.gpus[0].power_w() < free_w
    meter.gpus[0].lock_clock(None)
    meter.stepped(64)
    assert meter.gpus[0].power_w() == pytest.approx(free_w)
    with pytest.raises(ConfigError, match="135 to 1530 MHz"):
        meter.gpus[0].lock_clock(3000)
    meter.close()


@pytest.mark.slow
def test_caps_and_counters_are_shared_between_processes(tmp_path: Path) -> None:
    text = f"simulated:1xv100,model=resnet50,time=virtual,state={tmp_path}"
    code = (
        "from wattline.meter import open_meter\n"
        f"m = open_meter({text!r}); m.gpus[0].set_cap(125); m.stepped(64); print(m.gpus[0].uuid)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    meter = open_meter(text)
    assert meter.gpus[0].uuid == done.stdout.strip()
    assert meter.gpus[0].cap_w() == 125
    assert meter.gpus[0].energy_j() > 0
    assert meter.now_s() > 0
    meter.close()


def test_each_of_two_processes_steps_its_own_gpu(tmp_path: Path) -> None:
    single = open_virtual("2xv100,model=resnet50,batch=128")
    single.stepped(128)
    text = f"2xv100,model=resnet50,batch=128,state={tmp_path}"
    ranks = [open_virtual(f"{text},gpu={rank}") for rank in (0, 1)]
    for rank in ranks:
        rank.stepped(64)
    everything = open_virtual(text)
    assert everything.now_s() == ranks[0].now_s() == ranks[1].now_s() == single.now_s()
    assert [g.energy_j() for g in everything.gpus] == [g.energy_j() for g in single.gpus]
    assert ranks[1].gpus[0].uuid == everything.gpus[1].uuid
    for meter in (single, everything, *ranks):
        meter.close()


def test_a_job_on_some_of_the_gpus_steps_only_those(tmp_path: Path) -> None:
    pair = open_virtual("2xv100,model=resnet50,batch=128")
    pair.stepped(128)
    some = open_virtual(f"4xv100,model=resnet50,batch=128,state={tmp_path},gpus=1/3")
    some.stepped(128)
    every = open_virtual(f"4xv100,model=resnet50,batch=128,state={tmp_path}")
    assert some.now_s() == pair.now_s()
    assert [gpu.uuid for gpu in some.gpus] == [every.gpus[n].uuid for n in (1, 3)]
    assert [gpu.energy_j() for gpu in some.gpus] == [gpu.energy_j() for gpu in pair.gpus]
    assert every.gpus[0].energy_j() < every.gpus[1].energy_j()
    for meter in (pair, some, every):
        meter.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2xv100,gpus=0/2", "gpus of the simulated meter has 2"),
        ("2xv100,gpus=1/1", "expected each index once"),
        ("2xv100,gpus=1,gpu=0", "expected one of gpus=1"),
    ],
)
def test_gpus_that_do_not_exist_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_virtual(text)


def test_two_sessions_on_one_gpu_see_one_counter(tmp_path: Path) -> None:
    first, second = (open_virtual(f"1xv100,model=resnet50,state={tmp_path}") for _ in range(2))
    first.stepped(64)
    assert second.gpus[0].energy_j() == first.gpus[0].energy_j() > 0
    second.stepped(64)
    assert second.gpus[0].energy_j() == first.gpus[0].energy_j()
    assert second.now_s() == first.now_s(), "they take turns"
    first.close()
    second.close()


def test_in_real_time_a_step_includes_the_time_of_the_work() -> None:
    meter = open_meter("simulated:1xv100,model=resnet50,batch=64")
    known = library().find("resnet50", "v100")
    step_s = 64 / float(known.predict(Settings.of(batch=64, cap_w=300)).samples_s[0])
    began_s = meter.now_s()
    meter.stepped(64)
    middle_s = meter.now_s()
    assert middle_s - began_s >= 0.9 * step_s - 0.05
    time.sleep(step_s / 2)
    meter.stepped(64)
    assert meter.now_s() - middle_s >= step_s
    before_j = meter.gpus[0].energy_j()
    time.sleep(0.02)
    idle_j = meter.gpus[0].energy_j() - before_j
    assert idle_j >= 0.02 * 40
    meter.close()


def test_a_gpu_can_be_lost_and_a_cap_denied() -> None:
    meter = open_virtual("2xv100,model=resnet50,lost=2,denied=yes")
    with pytest.raises(NotPermitted, match="refuses a power cap"):
        meter.gpus[0].set_cap(200)
    with pytest.raises(NotPermitted, match="refuses a clock"):
        meter.gpus[0].lock_clock(1000)
    meter.stepped(64)
    meter.stepped(64)
    assert meter.gpus[0].energy_j() > 0
    with pytest.raises(MeterError, match=r"GPU 1 .* is lost"):
        meter.gpus[1].energy_j()
    with pytest.raises(MeterError, match="lost"):
        meter.stepped(64)
    meter.close()


def test_without_a_state_folder_no_file_is_left_behind() -> None:
    meter = open_virtual()
    folder = Path(meter.gpus[0].spec.rpartition("state=")[2])
    assert folder.is_dir()
    meter.close()
    assert not folder.exists()


def test_a_state_of_other_gpus_is_refused(tmp_path: Path) -> None:
    open_meter(f"simulated:2xv100,state={tmp_path}").close()
    with pytest.raises(ConfigError, match="holds 2xv100, expected 1xa40"):
        open_meter(f"simulated:1xa40,state={tmp_path}")
    (tmp_path / "gpus.bin").write_bytes(b"something else, and longer than the header of a state")
    with pytest.raises(ConfigError, match="is not a state file"):
        open_meter(f"simulated:2xv100,state={tmp_path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected count and kind of GPU"),
        ("0xv100", "expected count and kind of GPU"),
        ("2xv1000", "unknown GPU kind"),
        ("1xv100,modle=resnet50", "does not know 'modle=resnet50'"),
        ("1xv100,batch=", "does not know 'batch='"),
        ("1xv100,batch=0", "expected a whole number from 1 up"),
        ("1xv100,batch=many", "expected a whole number from 1 up"),
        ("1xv100,time=fast", "expected one of virtual, real"),
        ("1xv100,gpu=1", "expected less than 1"),
    ],
)
def test_invalid_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_meter(f"simulated:{text}")


def test_a_model_without_measurements_is_refused_on_opening() -> None:
    with pytest.raises(NotFitted, match="nothing was measured of 'resnet5000'"):
        open_meter("simulated:1xv100,model=resnet5000")


def test_a_batch_far_from_all_measurements_is_refused() -> None:
    meter = open_virtual("1xv100,model=resnet50,batch=1000000")
    with pytest.raises(OutOfRange):
        meter.stepped(64)
    meter.close()


def test_a_step_without_samples_is_refused() -> None:
    meter = open_virtual()
    with pytest.raises(ConfigError, match="expected more than 0"):
        meter.stepped(0)
    meter.close()


def test_a_stepped_counter_shows_the_energy_of_its_last_renewal(tmp_path: Path) -> None:
    exact, stepped = (
        open_meter(f"simulated:1xv100,model=resnet50,time=virtual,state={tmp_path / name}{more}")
        for name, more in (("exact", ""), ("stepped", ",counter=100"))
    )
    seen: dict[int, set[float]] = {}
    for _ in range(400):  # steps of 3 ms
        exact.stepped(1)
        stepped.stepped(1)
        period, counter_j = int(stepped.now_s() / 0.1), stepped.gpus[0].energy_j()
        seen.setdefault(period, set()).add(counter_j)
        share = 0.1 * period / exact.now_s()  # the power is constant
        assert counter_j == pytest.approx(share * exact.gpus[0].energy_j(), rel=1e-9)
    assert len(seen) > 8
    assert all(len(values) == 1 for values in seen.values())
    assert "counter=100" in stepped.gpus[0].spec


def test_a_state_file_of_the_previous_version_is_upgraded(tmp_path: Path) -> None:
    header = struct.pack("<8s16sq", b"wattsim1", b"v100", 2)
    rows = [struct.pack("<7d", 200.0 + n, 0.0, 1000.0, 5.0, 0.0, 0.0, 3.0) for n in range(2)]
    (tmp_path / "gpus.bin").write_bytes(header + b"".join(rows))
    for _ in range(2):
        meter = open_meter(f"simulated:2xv100,time=virtual,state={tmp_path}")
        assert [gpu.cap_w() for gpu in meter.gpus] == [200.0, 201.0]
        assert [gpu.energy_j() for gpu in meter.gpus] == [1000.0, 1000.0]
        meter.close()


@pytest.mark.parametrize("name", ["gpt3-175b-stage", "bloom-stage", "resnet50"])
def test_the_power_is_never_above_the_cap(name: str) -> None:
    meter = open_virtual(f"1xa100,model={name}")
    (gpu,) = meter.gpus
    for cap_w in (100, 143, 400):
        gpu.set_cap(cap_w)
        before_s, before_j = meter.now_s(), gpu.energy_j()
        meter.stepped(64)
        assert gpu.power_w() <= cap_w
        assert gpu.energy_j() - before_j <= cap_w * (meter.now_s() - before_s) * (1 + 1e-9)
    gpu.set_cap(143)  # the last step drew more
    assert gpu.power_w() <= 143
    meter.close()


def test_a_cap_that_is_set_during_a_long_step_slows_the_rest_of_it(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:1xa100,model=resnet50,state={tmp_path}")
    (gpu,) = meter.gpus
    samples_s, _ = library().find("resnet50", "a100").predict(Settings.of(gpus=1, cap_w=400))
    thread = threading.Thread(target=meter.stepped, args=(2.0 * samples_s[0],))
    start_s = time.monotonic()
    thread.start()
    while thread.is_alive() and gpu.power_w() < 300:
        time.sleep(0.01)
    other = open_meter(f"simulated:1xa100,state={tmp_path}")
    other.gpus[0].set_cap(100)
    end_s, seen = time.monotonic() + 0.6, []
    while time.monotonic() < end_s:
        seen.append(gpu.power_w())
        time.sleep(0.02)
    assert max(seen) <= 100
    thread.join()
    assert time.monotonic() - start_s > 2.2, "without a lower cap it takes 2 s"
    meter.close()
    other.close()
