"""Calls of NVML through NVIDIA's bindings, against a stub; no real GPU is involved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.nvml_stub import UUIDS, NvmlStub
from wattline.errors import MeterError
from wattline.measurement.devices import DEVICES
from wattline.measurement.gpu_names import FAMILIES, find_gpu_kind
from wattline.meter import open_meter
from wattline.meter.drivers.nvml import NvmlGpu
from wattline.meter.visible_devices import select_visible_devices

LIST_GPUS = (
    "m = open_meter('nvml')\nimport json\nprint(json.dumps([[g.index, g.uuid, g.method] for g in m.gpus]))"
)


def test_a_gpu_is_read(stub: NvmlStub) -> None:
    stub["draw_mw", 0] = 123_000
    output = stub.run(
        "import json\n"
        "g = open_meter('nvml').gpus[0]\n"
        "print(json.dumps([g.uuid, g.name, g.kind, g.method, g.power_w(), g.cap_w(), g.cap_range_w(),"
        " g.temperature_c()]))"
    )
    name, method = "NVIDIA A100-SXM4-80GB", "nvml energy counter"
    assert json.loads(output) == [UUIDS[0], name, "a100", method, 123, 400, [100, 400], 41]


MEASURE = (
    "import time\n"
    "m = open_meter('nvml'); g = m.gpus[0]\n"
    "t = [m.now_s()]; before = g.energy_j(); t.append(m.now_s())\n"
    "time.sleep(0.3)\n"
    "t.append(m.now_s()); after = g.energy_j(); t.append(m.now_s())\n"
    "print(g.method, after - before, t[2] - t[1], t[3] - t[0], sep='|')\n"
    "m.close()"
)


def test_energy_is_the_driver_s_counter(stub: NvmlStub) -> None:
    method, joules, least_s, most_s = stub.run(MEASURE).split("|")
    assert method == "nvml energy counter"
    assert 200 * float(least_s) - 0.01 <= float(joules) <= 200 * float(most_s) + 0.01


def test_a_cap_limits_the_power_draw(stub: NvmlStub) -> None:
    stub.run("g = open_meter('nvml').gpus[1]; g.set_cap(120.5); assert g.power_w() == 120.5, g.power_w()")
    assert (stub["cap_mw", 0], stub["cap_mw", 1]) == (400_000, 120_500)


def test_without_a_counter_power_is_integrated_by_a_thread(stub: NvmlStub) -> None:
    stub["counterless", 0] = 1
    method, joules, least_s, most_s = stub.run(MEASURE).split("|")
    assert method == "nvml power, integrated"
    assert 200 * float(least_s) - 0.01 <= float(joules) <= 200 * float(most_s) + 0.01


def test_energy_continues_after_the_counter_is_reset(stub: NvmlStub) -> None:
    stub["energy_mj", 0] = 5_000_000.0
    output = stub.run(
        "import mmap, os, struct\n"
        "g = open_meter('nvml').gpus[0]\n"
        "before = g.energy_j()\n"
        "box = mmap.mmap(os.open(os.environ['STUB_FILE'], os.O_RDWR), 0)\n"
        "struct.pack_into('d', box, 8 + 192 + 32, 0.0)\n"
        "print(before, g.energy_j() - before)"
    )
    before, increase = map(float, output.split())
    assert before >= 5000
    assert 0 <= increase < 5000


def test_two_threads_that_read_at_once_do_not_look_like_a_reset() -> None:
    readings = iter((1_000, 1_000, 2_000, 3_000))
    others: list[threading.Thread] = []

    def read_counter(_: object) -> int:
        value = next(readings)
        if value == 2_000:  # another thread reads before this reading has returned
            others.append(threading.Thread(target=gpu.energy_j))
            others[0].start()
            others[0].join(0.2)
        return value

    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetName=lambda _: "Tesla V100",
        nvmlDeviceGetTotalEnergyConsumption=read_counter,
    )
    gpu = NvmlGpu(nvml, None, 0, "GPU-1", False)
    assert gpu.energy_j() == 1.0
    assert gpu.energy_j() == 2.0
    others[0].join()
    assert gpu._offset_j == 0.0


@pytest.mark.slow
def test_clocks_are_locked_and_unlocked(stub: NvmlStub) -> None:
    stub.run("open_meter('nvml').gpus[0].lock_clock(1005.4)")
    assert stub["clock_mhz", 0] == 1005
    stub.run("open_meter('nvml').gpus[0].lock_clock(None)")
    assert stub["clock_mhz", 0] == 0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("1,-1,0", [1]),
        ("0,7", [0]),
        (f"{UUIDS[1]},{UUIDS[0]}", [1, 0]),
        ("GPU-1111", [1]),
        ("GPU-nothing", []),
        ("NoDevFiles", []),
    ],
)
def test_only_visible_gpus_are_listed_in_cuda_order(stub: NvmlStub, visible: str, indices: list[int]) -> None:
    listed = json.loads(stub.run(LIST_GPUS, CUDA_VISIBLE_DEVICES=visible))
    assert [uuid for _, uuid, _ in listed] == [UUIDS[index] for index in indices]
    assert [index for index, _, _ in listed] == list(range(len(indices)))


@pytest.mark.parametrize(
    "visible", ["MIG-part-of-1", f"MIG-{UUIDS[1]}/1/0", f"MIG-{UUIDS[1]}/1/0,MIG-{UUIDS[1]}/2/0"]
)
def test_mig_instances_are_metered_as_the_whole_gpu_once(stub: NvmlStub, visible: str) -> None:
    stub["mig", 1] = b"MIG-part-of-1"
    ((index, uuid, method),) = json.loads(stub.run(LIST_GPUS, CUDA_VISIBLE_DEVICES=visible))
    assert (index, uuid) == (0, UUIDS[1])
    assert method == "nvml energy counter, of the whole GPU (MIG)"


def test_a_gpu_is_opened_by_uuid_although_it_is_not_visible(stub: NvmlStub) -> None:
    code = f"print([g.uuid for g in open_meter('nvml:{UUIDS[0]}').gpus])"
    assert stub.run(code, CUDA_VISIBLE_DEVICES="1") == f"['{UUIDS[0]}']"


def test_without_permission_an_error_is_raised_and_nothing_is_set(stub: NvmlStub) -> None:
    stub["denied", 0] = 1
    output = stub.run(
        "from wattline.errors import NotPermitted\n"
        "g = open_meter('nvml').gpus[0]\n"
        "for call in (lambda: g.set_cap(200), lambda: g.lock_clock(1000)):\n"
        "    try: call()\n"
        "    except NotPermitted as error: print(error.message, '|', error.hint)"
    )
    assert output.count("needs administrator rights") == 2
    assert "zeusd" in output
    assert stub["sets", 0] == 0


def test_a_lost_gpu_is_an_error_and_not_0_watts(stub: NvmlStub) -> None:
    stub.run(
        "import mmap, os, struct\n"
        "from wattline.errors import MeterError\n"
        "g = open_meter('nvml').gpus[0]\n"
        "g.energy_j()\n"
        "box = mmap.mmap(os.open(os.environ['STUB_FILE'], os.O_RDWR), 0)\n"
        "struct.pack_into('I', box, 8 + 192 + 20, 1)\n"
        "for call in (g.energy_j, g.power_w, g.cap_w, g.temperature_c):\n"
        "    try: call()\n"
        "    except MeterError as error: assert 'lost' in error.message, error.message\n"
        "    else: raise SystemExit('read something')"
    )
    assert stub["lost", 0] == 1


@pytest.mark.slow
def test_auto_finds_nvml_where_it_works(stub: NvmlStub) -> None:
    assert stub.run("print(open_meter().name)") == "nvml"
    assert stub.run("print(open_meter().name)", CUDA_VISIBLE_DEVICES="") in ("none", "rapl")


def test_importing_meters_loads_neither_nvml_nor_numpy(stub: NvmlStub) -> None:
    output = stub.run(
        "import sys, wattline.meter.caps.guard, wattline.meter.energy_window\n"
        "import wattline.meter.drivers.simulated\n"
        "print(sorted({'pynvml', 'numpy', 'numba'} & set(sys.modules)))"
    )
    assert output == "[]"


def test_without_a_driver_opening_nvml_is_an_error() -> None:
    with pytest.raises(MeterError, match="NVML cannot be initialised"):
        open_meter("nvml")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA RTX 6000 Ada Generation", ""),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA H100", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", ""),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", ""),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", ""),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", ""),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A800-SXM4-80GB", ""),
        ("NVIDIA RTX A6000", ""),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", ""),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", ""),
        ("GRID T4-16Q", ""),
        ("NVIDIA A40-48Q", ""),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""),
        ("Tesla T4", "t4"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", ""),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ""),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", ""),
        ("", ""),
    ],
)
def test_the_kind_is_derived_from_the_product_name(name: str, kind: str) -> None:
    assert find_gpu_kind(name) == kind


def test_without_cuda_visible_devices_all_gpus_are_visible() -> None:
    assert select_visible_devices(None, ["GPU-a", "GPU-b"], lambda instance: None) == (0, 1)
    assert select_visible_devices("GPU-", ["GPU-a", "GPU-b"], lambda instance: None) == (), (
        "the prefix is ambiguous"
    )


def test_every_kind_has_limits_of_its_own_and_a_source_or_a_measurement() -> None:
    assert set(DEVICES) == set(FAMILIES)
    added = [device for device in DEVICES.values() if device.source]
    assert len(added) == 10
    assert all(device.idle_w < device.busy_w <= device.max_w for device in added)
    assert all(device.min_cap_w < device.max_w and not device.measured for device in added)


@pytest.mark.slow
def test_a_gpu_with_mig_instances_is_measured_and_its_cap_never_changed(stub: NvmlStub) -> None:
    stub["mig_mode", 0] = 1  # CUDA_VISIBLE_DEVICES=0 is then its first instance
    code = (
        "from wattline.errors import NotPermitted\n"
        "from wattline.meter.caps.guard import guard_caps\n"
        "m = open_meter('nvml'); g = m.gpus[0]\n"
        "for change in (lambda: g.set_cap(200), lambda: g.lock_clock(1000), lambda: g.lock_clock(None)):\n"
        "    try: change()\n"
        "    except NotPermitted as error: print(error.message)\n"
        "with guard_caps(m.gpus[:1]) as guard: print(guard.set_cap(200))\n"
        "print(g.method, g.energy_j() >= 0)"
    )
    lines = stub.run(code, WATTLINE_STATE=str(stub.path.parent / "state")).splitlines()
    assert all("split into MIG instances" in line for line in lines[:3])
    assert lines[3:] == ["False", "nvml energy counter, of the whole GPU (MIG) True"]
    assert stub["sets", 0] == 0
    assert stub["clock_mhz", 0] == 0


@pytest.mark.slow
def test_processes_slowdowns_and_memory_are_read(stub: NvmlStub) -> None:
    stub["pid", 0], stub["other_pid", 0] = os.getpid(), 1
    stub["reasons", 1] = 0x40 | 0x4
    code = (
        "from wattline.meter.neighbours import find_disturbance\n"
        "m = open_meter('nvml')\n"
        "print(m.gpus[0].other_processes(), m.gpus[1].other_processes(), m.gpus[0].memory_gib())\n"
        "print(find_disturbance(m.gpus[1:])); print(find_disturbance(m.gpus))"
    )
    first, hot, shared = stub.run(code).splitlines()
    assert first == f"({os.getpid()}, 1) () 80.0"
    assert hot == "GPU 1 was too hot and slowed down"
    assert shared == f"process {os.getpid()} used GPU 0 too"
    stub["reasons", 1] = 0x4  # its own cap is no disturbance
    assert stub.run(code).splitlines()[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"mig_mode": 1}, "GPU 0 is split into MIG instances"),
        ({"capless": 1}, "reading its power cap is not supported by this GPU or driver: no cap is set"),
        ({"denied": 1}, "setting a power cap needs administrator rights"),
        ({"other_pid": 1}, "GPU 0 is used by another process too (1): its joules are those of the whole GPU"),
    ],
)
def test_a_session_says_in_one_line_what_is_not_measured_or_set(
    stub: NvmlStub, fields: dict[str, int], line: str
) -> None:
    for name, value in fields.items():
        stub[name, 0] = value
    code = (
        "import wattline\n"
        "with wattline.Session(aim='energy') as run:\n"
        "    for _ in run.epochs(2):\n"
        "        for _ in run.steps([0] * 20): pass\n"
    )
    env = stub.env(WATTLINE_STATE=str(stub.path.parent / "state"), CUDA_VISIBLE_DEVICES="0")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (printed,) = done.stderr.splitlines()
    assert line in printed


@pytest.mark.slow
def test_an_unlisted_gpu_takes_its_watts_from_the_driver_and_not_from_another_kind(
    tmp_path: Path, library: Path
) -> None:
    stub = NvmlStub(tmp_path / "nvml.bin", library, 1, "NVIDIA RTX A6000")
    stub["draw_mw", 0], stub["most_mw", 0], stub["cap_mw", 0] = 23_000, 300_000, 300_000
    code = (
        "import logging; logging.basicConfig()\n"
        "from pathlib import Path\n"
        "from wattline.backend.engine.local.machine import Machine\n"
        "n = Machine.open('auto', Path('.')).nodes; print(n.kind.names, n.idle_w, n.busy_w)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}"], env=stub.env(), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "('rtx-a6000',) [23.] [300.]", done.stderr
    assert "idle 23 W (measured), limits 100 to 300 W, 80 GiB, by its driver" in done.stderr


def test_the_period_of_the_counter_is_measured(stub: NvmlStub) -> None:
    stub["renewed_ms", 0], stub["renewed_ms", 1] = 100, 20
    code = (
        "from wattline.meter.counter_renewal import measure_counter_periods\n"
        "import json; print(json.dumps(measure_counter_periods(open_meter('nvml'))))"
    )
    periods = json.loads(stub.run(code))
    assert periods[UUIDS[0]] == pytest.approx(0.1, abs=0.05)
    assert periods[UUIDS[1]] == pytest.approx(0.02, abs=0.02)
