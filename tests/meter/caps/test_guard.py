"""Caps are restored however a process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.nvml_stub import UUIDS, NvmlStub
from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter.caps import guard
from wattline.meter.caps.guard import guard_caps
from wattline.meter.caps.process_identity import identify_current_process, read_start_ticks
from wattline.meter.caps.record import CapRecord, read_records, record_path, write_record
from wattline.meter.caps.restore import restore_orphaned_caps

TIMEOUT_S = 60.0


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return f"simulated:2xv100,time=virtual,state={tmp_path / 'gpus'}"


@pytest.fixture
def meter(spec: str) -> Iterator[Meter]:
    opened = open_meter(spec)
    yield opened
    opened.close()


def read_caps(meter: Meter) -> list[float]:
    return [gpu.cap_w() for gpu in meter.gpus]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; a time-out is a failure."""
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "the condition did not become true"
        time.sleep(0.01)


children: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_other_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the guard of a service that tests of another folder share in this process."""
    monkeypatch.setattr(guard, "_active_guards", [])
    monkeypatch.setattr(guard, "_handlers", {})


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    yield
    while children:
        with children.pop() as child:
            child.kill()


class Child:
    """A process that holds a cap of 150 W on all GPUs of *spec*, and then runs the statement *then*."""

    def __init__(self, spec: str, env: dict[str, str] | None = None, then: str = "time.sleep(600)") -> None:
        code = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup may have changed it\n"
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
            "from wattline.meter import open_meter\n"
            "from wattline.meter.caps.guard import guard_caps\n"
            f"with guard_caps(open_meter({spec!r}).gpus) as guard:\n"
            "    guard.set_cap(150)\n"
            "    print(guard._watchdog.pid if guard._watchdog else 0, flush=True)\n"
            f"    {then}\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        children.append(self.process)
        assert self.process.stdout is not None
        self.watchdog_pid = int(self.process.stdout.readline() or "0")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.wait()[0]

    def wait(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, err


def test_a_cap_is_restored_at_the_end(meter: Meter, state: Path) -> None:
    with guard_caps(meter.gpus, 150) as guard:
        assert read_caps(meter) == [150, 150]
        assert len(read_records(state)) == 2
        assert guard.set_cap(200, meter.gpus[1])
        assert read_caps(meter) == [150, 200]
    assert read_caps(meter) == [300, 300]
    assert read_records(state) == []


def test_the_cap_of_one_gpu_is_restored_early_and_can_be_set_again(meter: Meter, state: Path) -> None:
    with guard_caps(meter.gpus, 150) as guard:
        guard.release(meter.gpus[0])
        assert read_caps(meter) == [300, 150]
        assert len(read_records(state)) == 1
        guard.set_cap(200, meter.gpus[0])
        assert read_caps(meter) == [200, 150]
    assert read_caps(meter) == [300, 300]


def test_a_cap_that_the_parent_process_has_set_gives_no_warning(meter: Meter, state: Path) -> None:
    warnings: list[str] = []
    child = Child(meter.gpus[0].spec)
    with guard_caps(meter.gpus, warn=warnings.append) as guard:
        guard.set_cap(150)
        assert warnings == []
        guard.set_cap(200)
        assert "holds its cap" in warnings[0]
    child.kill()


def test_the_previous_cap_is_restored_not_the_default(meter: Meter) -> None:
    meter.gpus[0].set_cap(222)
    with guard_caps(meter.gpus, 150):
        pass
    assert read_caps(meter) == [222, 300]


def test_a_cap_is_restored_after_an_exception(meter: Meter) -> None:
    with pytest.raises(ZeroDivisionError), guard_caps(meter.gpus, 150):
        _ = 1 / 0
    assert read_caps(meter) == [300, 300]


def test_a_cap_that_another_program_set_meanwhile_is_left_alone(meter: Meter, state: Path) -> None:
    with guard_caps(meter.gpus, 150):
        meter.gpus[0].set_cap(180)
    assert read_caps(meter) == [180, 300]
    assert read_records(state) == []


def test_a_cap_out_of_range_changes_nothing(meter: Meter, state: Path) -> None:
    with (
        guard_caps(meter.gpus) as guard,
        pytest.raises(ConfigError, match=r"50 W is outside .* 100 to 300 W"),
    ):
        guard.set_cap(50)
    assert read_caps(meter) == [300, 300]
    with pytest.raises(ConfigError, match="outside"), guard_caps(meter.gpus, 1000):
        pass
    assert read_records(state) == []


def test_the_old_cap_is_on_disk_before_the_first_change(meter: Meter, state: Path) -> None:
    seen: list[list[CapRecord]] = []
    gpu = meter.gpus[0]
    original = gpu.set_cap
    gpu.set_cap = lambda watts: (seen.append(read_records(state)), original(watts))[1]  # type: ignore[method-assign]
    with guard_caps([gpu], 150):
        (record,) = seen[0]
        assert (record.before_w, record.uuid, record.owner) == (300, gpu.uuid, identify_current_process())
        assert record.has_set(150)


def test_without_permission_one_warning_is_given_and_gpus_are_observed(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = open_meter(f"{spec},denied=yes")
    for _ in range(2):
        with guard_caps(meter.gpus[:1]) as guard:
            assert not guard.set_cap(150)
            assert not guard.set_cap(160)
            assert meter.gpus[0].uuid in guard.observing
    assert capsys.readouterr().err.count("observed only") == 1
    assert read_caps(meter) == [300, 300]
    meter.close()


def test_a_cap_that_cannot_be_recorded_is_not_set(meter: Meter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    with guard_caps(meter.gpus[:1], 150, state=tmp_path / "file", warn=warnings.append):
        assert read_caps(meter) == [300, 300]
    assert "cannot be recorded" in warnings[0]


@pytest.mark.slow
def test_the_second_owner_of_a_gpu_observes(spec: str, meter: Meter) -> None:
    child = Child(spec)
    warnings: list[str] = []
    with guard_caps(meter.gpus, 200, warn=warnings.append) as guard:
        assert set(guard.observing) == {gpu.uuid for gpu in meter.gpus}
        assert read_caps(meter) == [150, 150]
    assert read_caps(meter) == [150, 150]
    assert f"process {child.process.pid}" in warnings[0]
    child.kill(signal.SIGTERM)
    assert read_caps(meter) == [300, 300]


def test_a_guard_within_a_guard_observes(meter: Meter) -> None:
    with guard_caps(meter.gpus, 150):
        with guard_caps(meter.gpus, 200, warn=lambda text: None) as inner:
            assert len(inner.observing) == 2
        assert read_caps(meter) == [150, 150]
    assert read_caps(meter) == [300, 300]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_restores_caps_and_then_has_its_usual_effect(
    spec: str, meter: Meter, number: signal.Signals
) -> None:
    child = Child(spec)
    assert read_caps(meter) == [150, 150]
    assert child.kill(number) == -number
    assert read_caps(meter) == [300, 300]


def test_the_previous_signal_handler_is_called(meter: Meter) -> None:
    seen: list[tuple[int, list[float]]] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, read_caps(meter))))
    try:
        handler = signal.getsignal(signal.SIGTERM)
        with guard_caps(meter.gpus, 150) as guard:
            signal.raise_signal(signal.SIGTERM)
            assert seen == [(signal.SIGTERM, [300, 300])]
            assert not guard.set_cap(150), "after restore() no cap can be set"
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_caps_are_restored_after_a_library_replaced_the_handler(meter: Meter) -> None:
    seen: list[list[float]] = []
    previous = signal.getsignal(signal.SIGTERM)
    try:
        with guard_caps(meter.gpus, 150):
            signal.signal(signal.SIGTERM, lambda number, frame: seen.append(read_caps(meter)))
        with guard_caps(meter.gpus, 150):
            signal.raise_signal(signal.SIGTERM)
        assert seen == [[300, 300]]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_signal_while_a_cap_is_changed_leaves_no_record_and_no_cap(meter: Meter, state: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    gpu = meter.gpus[0]
    original = gpu.set_cap

    def interrupted(watts: float) -> None:
        gpu.set_cap = original  # type: ignore[method-assign]
        signal.raise_signal(signal.SIGTERM)
        original(watts)

    gpu.set_cap = interrupted  # type: ignore[method-assign]
    try:
        with guard_caps([gpu]) as guard:
            assert not guard.set_cap(150)
            assert gpu.cap_w() == 300
    finally:
        signal.signal(signal.SIGTERM, before)
    assert read_records(state) == []


@pytest.mark.slow
def test_caps_are_restored_at_interpreter_exit(spec: str, meter: Meter) -> None:
    assert Child(spec, then="sys.exit(3)").wait()[0] == 3
    code = (
        "from wattline.meter import open_meter\n"
        "from wattline.meter.caps.guard import guard_caps\n"
        f"guard = guard_caps(open_meter({spec!r}).gpus, 150).__enter__()\n"
        "print(guard.gpus[0].cap_w())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "150.0\n"
    assert read_caps(meter) == [300, 300]


def test_a_forked_child_of_the_owner_does_not_restore_caps(spec: str, meter: Meter) -> None:
    """A data loader worker that ends or is killed must not restore the cap while training continues."""
    then = (
        "pid = os.fork(); signal.raise_signal(15) if pid == 0 else os.waitpid(pid, 0);"
        " print('on', flush=True); time.sleep(600)"
    )
    child = Child(spec, then=then)
    assert child.process.stdout is not None
    assert child.process.stdout.readline() == "on\n"
    assert read_caps(meter) == [150, 150]
    child.kill()
    wait_until(lambda: read_caps(meter) == [300, 300])


def test_after_kill_9_the_watchdog_restores_caps(spec: str, meter: Meter, state: Path) -> None:
    child = Child(spec)
    assert read_caps(meter) == [150, 150]
    assert child.kill() == -signal.SIGKILL
    wait_until(lambda: read_caps(meter) == [300, 300] and not read_records(state))


def test_the_watchdog_does_not_wait_for_children_of_the_owner(spec: str, meter: Meter) -> None:
    then = "pid = os.fork(); pid and sys.stdout.write(f'{pid}\\n') and sys.stdout.flush(); time.sleep(600)"
    child = Child(spec, then=then)
    assert child.process.stdout is not None
    worker = int(child.process.stdout.readline())
    try:
        child.process.kill()
        wait_until(lambda: read_caps(meter) == [300, 300])
    finally:
        os.kill(worker, signal.SIGKILL)
    child.wait()


def test_the_watchdog_ignores_signals(spec: str, meter: Meter) -> None:
    child = Child(spec)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child.watchdog_pid, number)
    child.kill()
    wait_until(lambda: read_caps(meter) == [300, 300])


def test_the_watchdog_leaves_alone_a_cap_that_another_program_set(
    spec: str, meter: Meter, state: Path
) -> None:
    child = Child(spec)
    meter.gpus[0].set_cap(180)
    child.kill()
    wait_until(lambda: not read_records(state))
    assert read_caps(meter) == [180, 300]


def test_if_the_watchdog_is_killed_too_the_next_call_restores_caps(
    spec: str, meter: Meter, state: Path
) -> None:
    child = Child(spec)
    os.kill(child.watchdog_pid, signal.SIGKILL)
    child.kill()
    assert read_caps(meter) == [150, 150]
    results = restore_orphaned_caps()
    assert [r.restored for r in results] == [True, True]
    assert read_caps(meter) == [300, 300]
    assert read_records(state) == []
    assert restore_orphaned_caps() == []


@pytest.mark.slow
def test_the_next_owner_of_the_gpu_restores_its_cap_first(spec: str, meter: Meter) -> None:
    child = Child(spec)
    os.kill(child.watchdog_pid, signal.SIGKILL)
    child.kill()
    with guard_caps(meter.gpus, 200):
        assert read_caps(meter) == [200, 200]
    assert read_caps(meter) == [300, 300]


def test_an_owner_with_the_same_process_id_but_another_start_time_is_dead(
    meter: Meter, spec: str, state: Path
) -> None:
    me = identify_current_process()
    dead = type(me)(me.pid, me.started - 1, me.boot, me.pids, me.host)
    meter.gpus[0].set_cap(150)
    state.mkdir()
    write_record(state, CapRecord(meter.gpus[0].uuid, spec, 300, (150,), dead), durable=True)
    assert [r.restored for r in restore_orphaned_caps()] == [True]


def test_the_cap_of_an_owner_of_unknown_state_is_left_alone(meter: Meter, spec: str, state: Path) -> None:
    me = identify_current_process()
    meter.gpus[0].set_cap(150)
    state.mkdir()
    for owner in (
        type(me)(me.pid, 1, me.boot, "pid:[1]", me.host),
        type(me)(me.pid, 1, "other boot", me.pids, "other host"),
    ):
        write_record(state, CapRecord(meter.gpus[0].uuid, spec, 300, (150,), owner), durable=True)
        assert restore_orphaned_caps() == []
        with guard_caps(meter.gpus[:1], 200, warn=lambda text: None) as guard:
            assert "may be dead" in guard.observing[meter.gpus[0].uuid]
    assert read_caps(meter) == [150, 300]


def test_the_record_of_a_gpu_that_cannot_be_opened_is_kept_with_a_problem(meter: Meter, state: Path) -> None:
    me = identify_current_process()
    state.mkdir()
    dead = type(me)(me.pid, 1, me.boot, me.pids, me.host)
    write_record(state, CapRecord("GPU-gone", "nvml:GPU-gone", 300, (150,), dead), durable=True)
    (result,) = restore_orphaned_caps()
    assert not result.restored
    assert "cannot be opened" in result.problem
    assert len(read_records(state)) == 1


@pytest.mark.slow
def test_a_broken_record_is_ignored(meter: Meter, state: Path) -> None:
    state.mkdir()
    for text in ("", "{", "[]", json.dumps({"uuid": "x"})):
        record_path(state, meter.gpus[0].uuid).write_text(text)
        assert restore_orphaned_caps() == []
        with guard_caps(meter.gpus, 150):
            assert read_caps(meter) == [150, 150]


def test_a_lost_gpu_does_not_keep_others_from_being_restored(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:2xv100,model=resnet50,time=virtual,lost=1,state={tmp_path / 'gpus'}")
    warnings: list[str] = []
    with guard_caps(meter.gpus, 150, warn=warnings.append) as guard:
        meter.stepped(64)
        with pytest.raises(MeterError, match="lost"):
            guard.set_cap(160)
    assert meter.gpus[0].cap_w() == 300
    assert "could not be restored" in warnings[0]
    meter.close()


def test_caps_are_restored_although_the_meter_is_already_closed(
    tmp_path: Path, meter: Meter, spec: str
) -> None:
    closed = open_meter(spec)
    with guard_caps(closed.gpus, 150, warn=pytest.fail):
        closed.close()
    assert read_caps(meter) == [300, 300]


def test_a_gpu_without_caps_is_observed(tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text("at_s,gpu,power_w,cap_w\n0,0,100,200\n600,0,100,200\n")
    warnings: list[str] = []
    with guard_caps(
        open_meter(f"replay:{tmp_path / 'readings.csv'}").gpus, 200, warn=warnings.append
    ) as guard:
        assert len(guard.observing) == 1
    assert "recording" in warnings[0]


@pytest.mark.slow
def test_on_nvml_a_cap_is_restored_after_kill_9(stub: NvmlStub, state: Path) -> None:
    child = Child("nvml", stub.env())
    assert [stub["cap_mw", gpu] for gpu in (0, 1)] == [150_000, 150_000]
    child.kill()
    wait_until(lambda: [stub["cap_mw", gpu] for gpu in (0, 1)] == [400_000, 400_000])
    wait_until(lambda: not read_records(state))


@pytest.mark.slow
def test_on_nvml_orphaned_caps_of_invisible_gpus_are_restored(stub: NvmlStub) -> None:
    child = Child("nvml", stub.env())
    os.kill(child.watchdog_pid, signal.SIGKILL)
    child.kill()
    output = stub.run(
        "from wattline.meter.caps.restore import restore_orphaned_caps as restore\n"
        "print([r.restored for r in restore()])",
        CUDA_VISIBLE_DEVICES=UUIDS[1],
    )
    assert output == "[True, True]"
    assert [stub["cap_mw", gpu] for gpu in (0, 1)] == [400_000, 400_000]


@pytest.mark.slow
def test_on_nvml_without_permission_gpus_are_observed(stub: NvmlStub) -> None:
    stub["denied", 0] = 1
    child = Child("nvml", stub.env(), then="pass")
    code, err = child.wait()
    assert code == 0
    assert "GPU 0 is observed only" in err
    assert "administrator" in err
    assert [stub["sets", gpu] for gpu in (0, 1)] == [0, 2]


@pytest.mark.slow
def test_a_scheduler_takes_over_the_cap_of_a_job_which_observes_from_then_on(
    spec: str, meter: Meter, state: Path
) -> None:
    job = Child(spec)
    assert read_caps(meter) == [150, 150]
    with guard_caps(meter.gpus, state=state, take_over=True) as scheduler:
        assert scheduler.set_cap(120, meter.gpus[0])
        assert read_caps(meter) == [120, 150]
        job.kill(signal.SIGTERM)
        assert read_caps(meter) == [120, 300], "the job restores only what it still holds"
    assert read_caps(meter) == [300, 300]


def test_a_guard_that_was_taken_over_cannot_set_the_cap_again(meter: Meter, state: Path) -> None:
    job = guard_caps(meter.gpus, 150, state, warn=lambda text: None)
    with job:
        record = read_records(state)[0]
        parent = os.getppid()
        owner = replace(record.owner, pid=parent, started=read_start_ticks(parent))
        other = replace(record, set_w=(150.0, 120.0), owner=owner)
        write_record(state, other, durable=False)  # as another process does
        meter.gpus[0].set_cap(120)
        assert not job.set_cap(200, meter.gpus[0])
        assert meter.gpus[0].cap_w() == 120
