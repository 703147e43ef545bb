"""Measuring windows: `wattline.window` and its functional form."""

from __future__ import annotations

import asyncio
import csv
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import wattline
from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter import window as module
from wattline.meter.sources import use_meter


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce again what earlier tests have announced, outside any distributed job."""
    monkeypatch.setattr(module, "_announced", set())
    monkeypatch.setattr("wattline.meter.sources._open_meters", {})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def meter(tmp_path: Path) -> Meter:
    return open_meter(f"simulated:2xv100,model=resnet50,batch=64,time=virtual,state={tmp_path / 'gpus'}")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Return a folder with the layout of the kernel's counters: a package and its memory."""
    for folder, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram")):
        zone = tmp_path / "powercap" / folder
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text("5000000\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
    return tmp_path / "powercap"


def read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_windows_are_nested_and_each_measures_its_own_time_and_energy(meter: Meter) -> None:
    before_j, start_s = [gpu.energy_j() for gpu in meter.gpus], meter.now_s()
    with wattline.window("epoch", meter=meter) as epoch:
        meter.stepped(64)
        with wattline.window("step", meter=meter) as step:
            meter.stepped(64)
        so_far = epoch.read()
        meter.stepped(64)
    assert epoch.time_s == pytest.approx(meter.now_s() - start_s)
    assert epoch.gpu_j == {
        gpu.index: pytest.approx(gpu.energy_j() - before)
        for gpu, before in zip(meter.gpus, before_j, strict=True)
    }
    assert epoch.energy_j == pytest.approx(3 * step.energy_j)
    assert so_far.energy_j == pytest.approx(2 * step.energy_j)
    assert epoch.power_w == pytest.approx(epoch.energy_j / epoch.time_s)
    assert (epoch.error_j, epoch.approximate) == (0.0, False)  # simulated counters are exact


def test_windows_may_overlap_in_the_functional_form(meter: Meter) -> None:
    wattline.begin_window("a", meter=meter)
    meter.stepped(64)
    wattline.begin_window("b", meter=meter)
    meter.stepped(64)
    a = wattline.end_window("a")
    meter.stepped(64)
    b = wattline.end_window("b")
    assert a.energy_j == pytest.approx(b.energy_j)
    with pytest.raises(ConfigError, match=r"window 'a' is not open, open windows: none"):
        wattline.end_window("a")


def test_a_name_is_open_once(meter: Meter) -> None:
    with wattline.window("epoch", meter=meter):
        with (
            pytest.raises(ConfigError, match=r"window 'epoch' is already open"),
            wattline.window("epoch", meter=meter),
        ):
            pass
        meter.stepped(64)
    with wattline.window("epoch", meter=meter):  # the second one has not closed the first
        pass


def test_an_exception_closes_the_window_and_its_energy_is_logged(meter: Meter, tmp_path: Path) -> None:
    def fail() -> None:
        meter.stepped(64)
        raise ValueError("in training")

    with pytest.raises(ValueError, match="in training"), wattline.window("epoch", meter=meter) as w:
        fail()
    assert w.energy_j is not None
    with wattline.window("epoch", meter=meter):
        pass


def test_values_are_known_when_the_window_has_ended(meter: Meter) -> None:
    w = wattline.window("epoch", meter=meter)
    with w, pytest.raises(AttributeError, match=r"energy_j of window 'epoch' is known when it has ended"):
        _ = w.energy_j
    with pytest.raises(ConfigError, match="is not open"):
        w.read()


def test_what_cannot_be_read_is_none_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with wattline.window("epoch", meter="none", cpu=f"rapl:{tmp_path}") as w:
        pass
    assert (w.energy_j, w.gpu_j, w.cpu_j, w.dram_j, w.error_j, w.power_w) == (
        None,
        {},
        None,
        None,
        None,
        None,
    )
    assert w.time_s > 0
    assert "gpu: unmetered" in w.method
    assert "cpu and dram: unmetered (no RAPL counters" in w.method


def test_cpu_and_memory_are_read_along_with_the_gpus(powercap: Path) -> None:
    meter = open_meter("simulated:1xv100,model=resnet50,batch=64,time=real")
    with wattline.window("epoch", meter=meter, cpu=f"rapl:{powercap}") as w:
        meter.stepped(1)
        (powercap / "intel-rapl:0" / "energy_uj").write_text("7000000")
        (powercap / "intel-rapl:0:0" / "energy_uj").write_text("5500000")
    assert w.cpu_j == pytest.approx(2.0)
    assert w.dram_j == pytest.approx(0.5)
    assert w.energy_j == pytest.approx(w.gpu_j[0] + 2.5)
    assert w.method == "gpu: simulated; cpu and dram: rapl energy counter (CPU, not GPU)"
    with wattline.window("gpu only", meter=meter, cpu=False) as w:
        pass
    assert w.cpu_j is None
    meter.close()


def test_a_window_is_right_when_the_counter_wraps(powercap: Path) -> None:
    meter = open_meter(f"rapl:{powercap}")
    with wattline.window("long", meter=meter) as w:
        for microjoules in (9_000_000, 1_000_000, 8_000_000, 2_000_000):  # the range is 10 J
            (powercap / "intel-rapl:0" / "energy_uj").write_text(str(microjoules))
            meter._read_zones()  # type: ignore[attr-defined]  # as its thread does
    assert w.cpu_j == pytest.approx(17.0)
    assert w.gpu_j == {}
    meter.close()


class SlowCounter:
    """A GPU with a counter that is renewed every second, on a clock that the test moves."""

    index, uuid, name, kind, method, counter_s = 0, "SLOW-0", "slow GPU", "", "slow counter", 1.0

    def __init__(self) -> None:
        self.at_s = 0.0
        self.is_lost = False

    def energy_j(self) -> float:
        if self.is_lost:
            raise MeterError("GPU 0 is lost")
        return 100.0 * int(self.at_s)

    def power_w(self) -> float:
        return 90.0


def slow_meter() -> tuple[SlowCounter, SimpleNamespace]:
    gpu = SlowCounter()
    return gpu, SimpleNamespace(name="slow", gpus=(gpu,), now_s=lambda: gpu.at_s, is_virtual=True)


def test_a_window_shorter_than_the_counters_period_is_approximate_and_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpu, meter = slow_meter()
    for _ in range(2):
        with wattline.window("short", meter=meter) as w:
            gpu.at_s += 0.25
    assert w.energy_j == pytest.approx(90.0 * 0.25)
    assert w.approximate
    assert w.error_j == w.energy_j
    assert "power x time, shorter than the 1 s of the slow counter" in w.method
    assert capsys.readouterr().err.count("its energy is power x time") == 1
    with wattline.window("long", meter=meter) as w:
        gpu.at_s += 20.0
    assert w.energy_j == pytest.approx(2000.0)
    assert w.error_j == pytest.approx(100.0)  # one period at the mean power
    assert not w.approximate


def test_a_window_on_a_clock_that_stands_still_is_unmetered_and_not_zero(meter: Meter) -> None:
    with wattline.window("epoch", meter=meter) as w:
        pass
    assert w.energy_j is None
    assert "no time has passed" in w.method


def test_a_lost_gpu_is_unmetered_or_counted_until_it_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    gpu, meter = slow_meter()
    with wattline.window("epoch", meter=meter) as w:
        gpu.at_s, gpu.is_lost = 5.0, True
    assert w.gpu_j == {0: None}
    assert "GPU 0 is lost" in w.method
    gpu.is_lost = False
    with wattline.window("epoch", meter=meter) as w:
        gpu.at_s = 8.0
        w.read()
        gpu.at_s, gpu.is_lost = 11.0, True
    assert w.gpu_j == {0: 300.0}
    assert "until it was lost" in w.method
    assert "counted until it was lost" in capsys.readouterr().err


def test_the_gpus_are_chosen_by_index_or_by_rank(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(gpus: int | list[int] | None) -> list[int]:
        with wattline.window("w", meter=meter, gpus=gpus) as w:
            meter.stepped(64)
        return list(w.gpu_j)

    assert [measure(None), measure(1), measure([1, 0])] == [[0, 1], [1], [1, 0]]
    with pytest.raises(ConfigError, match=r"gpus has 2, expected each once of 0, 1"):
        measure([2])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert measure(None) == [1]


def test_only_the_first_rank_of_a_machine_reads_the_cpus(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with wattline.window("w", meter="none", cpu=f"rapl:{powercap}") as w:
        pass
    assert w.cpu_j is None
    assert "read by local rank 0" in w.method


def test_a_window_inside_a_session_uses_its_meter(meter: Meter) -> None:
    with use_meter(meter), wattline.window("epoch") as w:
        meter.stepped(64)
    assert w.method.startswith("gpu: simulated")
    assert w.energy_j is not None


def test_each_call_of_a_decorated_function_is_a_window(meter: Meter, tmp_path: Path) -> None:
    @wattline.window("step", meter=meter, csv=tmp_path / "energy.csv")
    def step(samples: int) -> int:
        meter.stepped(samples)
        return samples

    @wattline.window("wait", meter=meter)
    async def wait() -> None:
        await asyncio.sleep(0)
        meter.stepped(64)

    assert [step(64), step(32)] == [64, 32]
    assert step.window.energy_j is not None  # type: ignore[attr-defined]
    assert [row["window_name"] for row in read_rows(tmp_path / "energy.csv")] == ["step", "step"]
    asyncio.run(wait())
    assert wait.window.energy_j is not None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is a generator"):

        @wattline.window("batches", meter=meter)
        def batches():  # type: ignore[no-untyped-def]
            yield 1


def test_the_log_has_the_columns_of_zeus_and_empty_cells_for_what_is_unmetered(
    meter: Meter, tmp_path: Path
) -> None:
    path = tmp_path / "energy.csv"
    for name in ("one", 'two, "quoted"'):
        with wattline.window(name, meter=meter, csv=path) as w:
            meter.stepped(64)
    header = path.read_text().splitlines()[0]
    assert header.startswith("start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy,")
    rows = read_rows(path)
    assert [row["window_name"] for row in rows] == ["one", 'two, "quoted"']
    assert float(rows[1]["gpu1_energy"]) == pytest.approx(w.gpu_j[1], abs=1e-5)
    assert float(rows[1]["elapsed_time"]) == pytest.approx(w.time_s, abs=1e-5)
    assert (rows[1]["cpu_energy"], rows[1]["dram_energy"]) == ("", "")


def test_a_log_with_other_columns_is_refused_before_anything_is_measured(
    meter: Meter, tmp_path: Path
) -> None:
    path = tmp_path / "other.csv"
    path.write_text("name,value\na,1\n")
    with (
        pytest.raises(ConfigError, match=r"other.csv: line 1 has no column start_time"),
        wattline.window("w", meter=meter, csv=path),
    ):
        pass
    assert path.read_text() == "name,value\na,1\n"
    with (
        pytest.raises(ConfigError, match=r"windows cannot be written: No such file"),
        wattline.window("w", meter=meter, csv=tmp_path / "no" / "energy.csv"),
    ):
        pass
    with wattline.window("w", meter=meter, gpus=[0, 1], csv=tmp_path / "wide.csv"):
        meter.stepped(64)
    with wattline.window("w", meter=meter, gpus=0, csv=tmp_path / "wide.csv"):  # fewer GPUs fit
        meter.stepped(64)
    assert read_rows(tmp_path / "wide.csv")[1]["gpu1_energy"] == ""


def test_a_row_that_was_cut_off_does_not_swallow_the_next(meter: Meter, tmp_path: Path) -> None:
    path = tmp_path / "energy.csv"
    for _ in range(2):
        with wattline.window("w", meter=meter, csv=path):
            meter.stepped(64)
        path.write_text(path.read_text().rstrip("\n")[:-3])
    with wattline.window("last", meter=meter, csv=path):
        meter.stepped(64)
    assert read_rows(path)[-1]["window_name"] == "last"


@pytest.mark.slow
def test_threads_and_processes_append_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "energy.csv"
    script = (
        "import sys, threading, wattline\n"
        "def work(number):\n"
        "    for k in range(20):\n"
        "        with wattline.window(f'{number} {k}', meter='none', csv=sys.argv[1]): pass\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    rows = read_rows(path)
    assert len(rows) == 120
    assert all(None not in row and None not in row.values() for row in rows)


def test_threads_have_windows_of_their_own(meter: Meter) -> None:
    found: dict[str, float | None] = {}
    ready = threading.Barrier(3)

    def work(name: str) -> None:
        with wattline.window(name, meter=meter) as w:
            ready.wait()
            ready.wait()
        found[name] = w.energy_j

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    ready.wait()
    meter.stepped(64)
    ready.wait()
    for thread in threads:
        thread.join()
    assert found["a"] == pytest.approx(found["b"])
    assert found["a"] is not None


def test_a_forked_process_leaves_the_parents_window_alone(meter: Meter, tmp_path: Path) -> None:
    with wattline.window("epoch", meter=meter, csv=tmp_path / "energy.csv") as w:
        pid = os.fork()
        if pid == 0:
            w.end()  # writes no row
            with wattline.window("epoch", meter="none"):  # the name is free in the child
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        meter.stepped(64)
    assert w.energy_j is not None
    assert len(read_rows(tmp_path / "energy.csv")) == 1


def test_a_process_forked_inside_a_session_may_leave_it(meter: Meter) -> None:
    with use_meter(meter):
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    if not pid:
        os._exit(0)


def test_queued_work_is_waited_for_on_the_gpus_in_use(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 1,
        device_count=lambda: 4,
        memory_reserved=lambda index: 1024 if index == 3 else 0,
        synchronize=waited.append,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with wattline.window("w", meter=meter):
        assert waited == [1, 3]
    assert waited == [1, 3, 1, 3]
    with wattline.window("w", meter=meter, sync=False):
        pass
    assert waited == [1, 3, 1, 3]
    with wattline.window("w", meter=meter, sync=lambda: waited.append(7)):
        pass
    assert waited[4:] == [7, 7]


@pytest.mark.parametrize("name", ["", "two\nlines", 3])
def test_a_name_is_one_line_of_text(name: object) -> None:
    with pytest.raises(ConfigError, match="the name of a window is"):
        wattline.window(name)  # type: ignore[arg-type]


def test_windows_need_neither_numpy_nor_the_scheduler() -> None:
    script = (
        "import sys, wattline\n"
        "with wattline.window('w', meter='none') as w: pass\n"
        "bad = {'numpy', 'numba', 'torch', 'fastapi', 'wattline.policy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(bad)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
