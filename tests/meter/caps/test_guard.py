"""Caps are put back, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.nvml_stub import UUIDS, NvmlStub
from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter.caps.guard import hold, reap
from wattline.meter.caps.process_identity import myself
from wattline.meter.caps.record import Record, record_path, records, write

PATIENCE_S = 60.0


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"simulated:2xv100,time=virtual,state={tmp_path / 'gpus'}"


@pytest.fixture
def meter(spec: str) -> Iterator[Meter]:
    opened = open_meter(spec)
    yield opened
    opened.close()


def caps(meter: Meter) -> list[float]:
    return [gpu.cap_w() for gpu in meter.gpus]


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition; a time-out is a failure."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)


children: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    yield
    while children:
        with children.pop() as child:
            child.kill()


class Child:
    """A process that holds a cap of 150 W on all GPUs of *spec*, and then waits, or does what *then* says."""

    def __init__(self, spec: str, env: dict[str, str] | None = None, then: str = "time.sleep(600)") -> None:
        code = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever nohup has done\n"
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
            "from wattline.meter import open_meter\n"
            "from wattline.meter.caps.guard import hold\n"
            f"with hold(open_meter({spec!r}).gpus) as held:\n"
            "    held.set_cap(150)\n"
            "    print(held._watcher.pid if held._watcher else 0, flush=True)\n"
            f"    {then}\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        children.append(self.process)
        assert self.process.stdout is not None
        self.watcher = int(self.process.stdout.readline() or "0")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.ended()[0]

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


def test_a_cap_is_restored_at_the_end(meter: Meter, state: Path) -> None:
    with hold(meter.gpus, 150) as held:
        assert caps(meter) == [150, 150]
        assert len(records(state)) == 2
        assert held.set_cap(200, meter.gpus[1])
        assert caps(meter) == [150, 200]
    assert caps(meter) == [300, 300]
    assert records(state) == []


def test_the_cap_of_one_gpu_is_put_back_before_the_end_and_can_be_set_again(
    meter: Meter, state: Path
) -> None:
    with hold(meter.gpus, 150) as held:
        held.release(meter.gpus[0])
        assert caps(meter) == [300, 150]
        assert len(records(state)) == 1
        held.set_cap(200, meter.gpus[0])
        assert caps(meter) == [200, 150]
    assert caps(meter) == [300, 300]


def test_who_finds_its_cap_set_by_whoever_started_it_says_nothing(meter: Meter, state: Path) -> None:
    said: list[str] = []
    child = Child(meter.gpus[0].spec)
    with hold(meter.gpus, tell=said.append) as held:
        held.set_cap(150)
        assert said == []
        held.set_cap(200)
        assert "holds its cap" in said[0]
    child.kill()


def test_what_was_there_is_restored_not_the_default(meter: Meter) -> None:
    meter.gpus[0].set_cap(222)
    with hold(meter.gpus, 150):
        pass
    assert caps(meter) == [222, 300]


def test_a_cap_is_restored_after_an_exception(meter: Meter) -> None:
    with pytest.raises(ZeroDivisionError), hold(meter.gpus, 150):
        _ = 1 / 0
    assert caps(meter) == [300, 300]


def test_what_somebody_else_set_meanwhile_is_left_alone(meter: Meter, state: Path) -> None:
    with hold(meter.gpus, 150):
        meter.gpus[0].set_cap(180)
    assert caps(meter) == [180, 300]
    assert records(state) == []


def test_a_cap_out_of_range_changes_nothing(meter: Meter, state: Path) -> None:
    with hold(meter.gpus) as held, pytest.raises(ConfigError, match=r"50 W is outside .* 100 to 300 W"):
        held.set_cap(50)
    assert caps(meter) == [300, 300]
    with pytest.raises(ConfigError, match="outside"), hold(meter.gpus, 1000):
        pass
    assert records(state) == []


def test_the_old_cap_is_on_disk_before_the_first_change(meter: Meter, state: Path) -> None:
    seen: list[list[Record]] = []
    gpu = meter.gpus[0]
    really = gpu.set_cap
    gpu.set_cap = lambda watts: (seen.append(records(state)), really(watts))[1]  # type: ignore[method-assign]
    with hold([gpu], 150):
        (record,) = seen[0]
        assert (record.before_w, record.uuid, record.owner) == (300, gpu.uuid, myself())
        assert record.ours(150)


def test_who_may_not_set_caps_is_told_once_and_observes(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = open_meter(f"{spec},denied=yes")
    for _ in range(2):
        with hold(meter.gpus[:1]) as held:
            assert not held.set_cap(150)
            assert not held.set_cap(160)
            assert meter.gpus[0].uuid in held.observing
    assert capsys.readouterr().err.count("observed only") == 1
    assert caps(meter) == [300, 300]
    meter.close()


def test_who_cannot_remember_a_cap_does_not_set_it(meter: Meter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    with hold(meter.gpus[:1], 150, state=tmp_path / "file", tell=told.append):
        assert caps(meter) == [300, 300]
    assert "cannot be remembered" in told[0]


def test_the_second_owner_of_a_gpu_observes(spec: str, meter: Meter) -> None:
    child = Child(spec)
    told: list[str] = []
    with hold(meter.gpus, 200, tell=told.append) as held:
        assert set(held.observing) == {gpu.uuid for gpu in meter.gpus}
        assert caps(meter) == [150, 150]
    assert caps(meter) == [150, 150]
    assert f"process {child.process.pid}" in told[0]
    child.kill(signal.SIGTERM)
    assert caps(meter) == [300, 300]


def test_a_hold_within_a_hold_observes(meter: Meter) -> None:
    with hold(meter.gpus, 150):
        with hold(meter.gpus, 200, tell=lambda text: None) as inner:
            assert len(inner.observing) == 2
        assert caps(meter) == [150, 150]
    assert caps(meter) == [300, 300]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_restores_and_then_does_what_it_does(
    spec: str, meter: Meter, number: signal.Signals
) -> None:
    child = Child(spec)
    assert caps(meter) == [150, 150]
    assert child.kill(number) == -number
    assert caps(meter) == [300, 300]


def test_a_handler_that_was_there_before_is_called(meter: Meter) -> None:
    seen: list[tuple[int, list[float]]] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, caps(meter))))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        with hold(meter.gpus, 150) as held:
            signal.raise_signal(signal.SIGTERM)
            assert seen == [(signal.SIGTERM, [300, 300])]
            assert not held.set_cap(150), "what was restored for good is not set again"
        assert signal.getsignal(signal.SIGTERM) == mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_in_the_middle_of_a_change_leaves_nothing_behind(meter: Meter, state: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    gpu = meter.gpus[0]
    really = gpu.set_cap

    def interrupted(watts: float) -> None:
        gpu.set_cap = really  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGTERM)
        really(watts)

    gpu.set_cap = interrupted  # type: ignore[method-assign]
    try:
        with hold([gpu]) as held:
            assert not held.set_cap(150)
            assert gpu.cap_w() == 300
    finally:
        signal.signal(signal.SIGTERM, before)
    assert records(state) == []


def test_the_end_of_the_interpreter_restores(spec: str, meter: Meter) -> None:
    assert Child(spec, then="sys.exit(3)").ended()[0] == 3
    code = (
        "from wattline.meter import open_meter\n"
        "from wattline.meter.caps.guard import hold\n"
        f"held = hold(open_meter({spec!r}).gpus, 150).__enter__()\n"
        "print(held.gpus[0].cap_w())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "150.0\n"
    assert caps(meter) == [300, 300]


def test_what_is_forked_from_an_owner_is_no_owner(spec: str, meter: Meter) -> None:
    """A loader's worker that ends, or is ended, must not lift the cap of the training that goes on."""
    then = (
        "pid = os.fork(); signal.raise_signal(15) if pid == 0 else os.waitpid(pid, 0);"
        " print('on', flush=True); time.sleep(600)"
    )
    child = Child(spec, then=then)
    assert child.process.stdout is not None
    assert child.process.stdout.readline() == "on\n"
    assert caps(meter) == [150, 150]
    child.kill()
    until(lambda: caps(meter) == [300, 300])


def test_after_kill_9_the_watcher_restores(spec: str, meter: Meter, state: Path) -> None:
    child = Child(spec)
    assert caps(meter) == [150, 150]
    assert child.kill() == -signal.SIGKILL
    until(lambda: caps(meter) == [300, 300] and not records(state))


def test_the_watcher_does_not_wait_for_what_the_owner_forked(spec: str, meter: Meter) -> None:
    then = "pid = os.fork(); pid and sys.stdout.write(f'{pid}\\n') and sys.stdout.flush(); time.sleep(600)"
    child = Child(spec, then=then)
    assert child.process.stdout is not None
    worker = int(child.process.stdout.readline())
    try:
        child.process.kill()
        until(lambda: caps(meter) == [300, 300])
    finally:
        os.kill(worker, signal.SIGKILL)
    child.ended()


def test_the_watcher_survives_what_ends_the_others(spec: str, meter: Meter) -> None:
    child = Child(spec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child.watcher, number)
    child.kill()
    until(lambda: caps(meter) == [300, 300])


def test_the_watcher_leaves_alone_what_somebody_else_set(spec: str, meter: Meter, state: Path) -> None:
    child = Child(spec)
    meter.gpus[0].set_cap(180)
    child.kill()
    until(lambda: not records(state))
    assert caps(meter) == [180, 300]


def test_when_the_watcher_is_killed_too_a_reaper_restores(spec: str, meter: Meter, state: Path) -> None:
    child = Child(spec)
    os.kill(child.watcher, signal.SIGKILL)
    child.kill()
    assert caps(meter) == [150, 150]
    reaped = reap()
    assert [r.restored for r in reaped] == [True, True]
    assert caps(meter) == [300, 300]
    assert records(state) == []
    assert reap() == []


def test_the_next_who_holds_the_gpu_restores_first(spec: str, meter: Meter) -> None:
    child = Child(spec)
    os.kill(child.watcher, signal.SIGKILL)
    child.kill()
    with hold(meter.gpus, 200):
        assert caps(meter) == [200, 200]
    assert caps(meter) == [300, 300]


def test_an_owner_with_the_same_number_but_another_start_is_dead(
    meter: Meter, spec: str, state: Path
) -> None:
    me = myself()
    dead = type(me)(me.pid, me.started - 1, me.boot, me.pids, me.host)
    meter.gpus[0].set_cap(150)
    state.mkdir()
    write(state, Record(meter.gpus[0].uuid, spec, 300, (150,), dead), safely=True)
    assert [r.restored for r in reap()] == [True]


def test_an_owner_of_whom_nothing_can_be_told_is_left_alone(meter: Meter, spec: str, state: Path) -> None:
    me = myself()
    meter.gpus[0].set_cap(150)
    state.mkdir()
    for owner in (
        type(me)(me.pid, 1, me.boot, "pid:[1]", me.host),
        type(me)(me.pid, 1, "other boot", me.pids, "other host"),
    ):
        write(state, Record(meter.gpus[0].uuid, spec, 300, (150,), owner), safely=True)
        assert reap() == []
        with hold(meter.gpus[:1], 200, tell=lambda text: None) as held:
            assert "may be dead" in held.observing[meter.gpus[0].uuid]
    assert caps(meter) == [150, 300]


def test_a_gpu_that_cannot_be_reached_is_told_and_remembered(meter: Meter, state: Path) -> None:
    me = myself()
    state.mkdir()
    dead = type(me)(me.pid, 1, me.boot, me.pids, me.host)
    write(state, Record("GPU-gone", "nvml:GPU-gone", 300, (150,), dead), safely=True)
    (reaped,) = reap()
    assert not reaped.restored
    assert "cannot be opened" in reaped.problem
    assert len(records(state)) == 1


def test_a_broken_record_is_no_record(meter: Meter, state: Path) -> None:
    state.mkdir()
    for text in ("", "{", "[]", json.dumps({"uuid": "x"})):
        record_path(state, meter.gpus[0].uuid).write_text(text)
        assert reap() == []
        with hold(meter.gpus, 150):
            assert caps(meter) == [150, 150]


def test_a_gpu_that_is_lost_does_not_keep_the_others_from_being_restored(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:2xv100,model=resnet50,time=virtual,lost=1,state={tmp_path / 'gpus'}")
    told: list[str] = []
    with hold(meter.gpus, 150, tell=told.append) as held:
        meter.stepped(64)
        with pytest.raises(MeterError, match="lost"):
            held.set_cap(160)
    assert meter.gpus[0].cap_w() == 300
    assert "could not be put back" in told[0]
    meter.close()


def test_a_meter_that_was_closed_too_early_is_opened_again(tmp_path: Path, meter: Meter, spec: str) -> None:
    closed = open_meter(spec)
    with hold(closed.gpus, 150, tell=pytest.fail):
        closed.close()
    assert caps(meter) == [300, 300]


def test_what_has_no_caps_is_observed(tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text("at_s,gpu,power_w,cap_w\n0,0,100,200\n600,0,100,200\n")
    told: list[str] = []
    with hold(open_meter(f"replay:{tmp_path / 'readings.csv'}").gpus, 200, tell=told.append) as held:
        assert len(held.observing) == 1
    assert "recording" in told[0]


def test_on_nvml_a_cap_is_restored_after_kill_9(stub: NvmlStub, state: Path) -> None:
    child = Child("nvml", stub.env())
    assert [stub["cap_mw", gpu] for gpu in (0, 1)] == [150_000, 150_000]
    child.kill()
    until(lambda: [stub["cap_mw", gpu] for gpu in (0, 1)] == [400_000, 400_000])
    until(lambda: not records(state))


def test_on_nvml_a_reaper_finds_gpus_that_it_does_not_see_itself(stub: NvmlStub) -> None:
    child = Child("nvml", stub.env())
    os.kill(child.watcher, signal.SIGKILL)
    child.kill()
    said = stub.run(
        "from wattline.meter.caps.guard import reap\nprint([r.restored for r in reap()])",
        CUDA_VISIBLE_DEVICES=UUIDS[1],
    )
    assert said == "[True, True]"
    assert [stub["cap_mw", gpu] for gpu in (0, 1)] == [400_000, 400_000]


def test_on_nvml_without_permission_caps_are_observed(stub: NvmlStub) -> None:
    stub["denied", 0] = 1
    child = Child("nvml", stub.env(), then="pass")
    code, err = child.ended()
    assert code == 0
    assert "GPU 0 is observed only" in err
    assert "administrator" in err
    assert [stub["sets", gpu] for gpu in (0, 1)] == [0, 2]
