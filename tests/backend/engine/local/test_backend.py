from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.job_request import JOB_REQUEST
from wattline.backend.engine import job_exits
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.local import engine as local_engine
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.backend import Local
from wattline.core.actions import ACTION_COLUMNS, RETUNE, START, STOP
from wattline.core.events import (
    ARRIVED,
    FAILED,
    FINISHED,
    LOST,
    PROTECTED,
    RAN,
    READY,
    STOPPED,
    Event,
    list_events,
)
from wattline.core.protocols import Backend
from wattline.core.snapshot import Snapshot
from wattline.testing import BackendContract, JobBehaviour


def job(name: str, *words: str, **more: Any) -> JobRecord:
    """Return a job that runs a command, or a line of a shell."""
    command = words if len(words) > 1 else ("sh", "-c", *words)
    return JobRecord(JobSpec(name, command, **more), JOB_REQUEST, time.time())


class Machine:
    """A backend, the events it returned, and those it passed to its callback."""

    def __init__(
        self, folder: Path, gpus: str = "simulated:2xa100", adopt: list[JobRecord] | None = None
    ) -> None:
        self.reported: list[tuple[str, str, dict[str, Any]]] = []
        self.seen: list[Event] = []
        self.local = Local(folder, gpus, on_event=lambda *event: self.reported.append(event), stay_open=True)
        if adopt:
            self.local.adopt(adopt)

    def submit(self, *records: JobRecord) -> None:
        self.local.submit(records)
        for one in records:
            self.until(ARRIVED, one.id)

    def do(self, verb: int, name: str, gpus: int = 0, group: str = "", cap_w: int = 0) -> None:
        row = self.local.records[name].row
        lead = self.local.records[group].row if group else row
        node = 0 if verb == START else -1
        self.apply([verb, row, lead, node, gpus, cap_w])

    def apply(self, *actions: list[int]) -> None:
        block = np.zeros((len(actions), ACTION_COLUMNS), dtype=np.int64)
        for place, action in enumerate(actions):
            block[place, : len(action)] = action
        self.local.apply(block)

    def until(self, verb: int, name: str) -> Event:
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            for event in self.seen:
                if event.verb == verb and self.local._queue.table.ids[event.job] == name:
                    self.seen.remove(event)
                    return event
            self.seen += list_events(self.local.wait(time.time() + 0.5)[1])
        raise AssertionError(f"{verb} of {name} never came: {self.seen}, {self.reported}")

    def poll(self) -> None:
        """Let the backend handle what has happened, for a tenth of a second."""
        self.seen += list_events(self.local.wait(time.time() + 0.1)[1])

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [data for event, _, data in self.reported if event == kind]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with opened(tmp_path) as one:
        yield one


@contextmanager
def opened(folder: Path, *args: Any, **more: Any) -> Iterator[Machine]:
    one = Machine(folder, *args, **more)
    try:
        yield one
    finally:
        for attempt in one.local._attempts.attempts:
            if attempt.started:
                AttemptProcesses(attempt.folder).kill()
                AttemptProcesses(attempt.folder).wait(30)
        one.local.close()


def path_of(tmp_path: Path, job: str, name: str = "rank0.log", attempt: int = -1) -> Path:
    return attempt_folders(tmp_path, job)[attempt] / name


COMMANDS = {
    "finishes": "true",
    "fails": "exit 3",
    "runs": '[ "$WATTLINE_RESTART_COUNT" != 0 ] || exec sleep 1000',
}


class TestLocal(BackendContract):
    multi_node = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.root = tmp_path
        self.opened: list[Local] = []
        yield
        for backend in self.opened:
            with suppress(OSError):  # the test may have closed it
                backend.close()
        for folder in tmp_path.glob("jobs/*/attempts/*"):
            AttemptProcesses(folder).kill()
            AttemptProcesses(folder).wait(30)

    def make(self, jobs: Sequence[JobBehaviour], nodes: int = 1, *, losing_nodes: bool = False) -> Backend:
        self.jobs = jobs
        backend = self._open()
        backend.submit(self._records())
        return backend

    def restart(self, backend: Backend, state: Snapshot) -> tuple[Backend, Snapshot]:
        self.opened.remove(backend)  # type: ignore[arg-type]
        backend.close()
        again = self._open()
        again.adopt(self._records())
        return again, again.initial_state()

    def _open(self) -> Local:
        backend = Local(self.root, "simulated:2xa100")
        self.opened.append(backend)
        return backend

    def _records(self) -> list[JobRecord]:
        return [job(str(row), COMMANDS[behaviour]) for row, behaviour in enumerate(self.jobs)]


def test_a_job_gets_the_variables_of_torchrun_and_its_gpus(machine: Machine, tmp_path: Path) -> None:
    machine.submit(job("1", "env"))
    machine.do(START, "1", gpus=2)
    machine.until(FINISHED, "1")
    for rank in (0, 1):
        lines = path_of(tmp_path, "1", f"rank{rank}.log").read_text().splitlines()
        env = dict(line.split("=", 1) for line in lines if "=" in line)
        assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert (env["WATTLINE_JOB_ID"], env["WATTLINE_GPUS"], env["WATTLINE_RESTART_COUNT"]) == (
            "1",
            "2",
            "0",
        )
        assert env["WATTLINE_METER"].endswith(f"gpus=0/1,gpu={rank}")


def test_torchrun_starts_its_ranks_itself(machine: Machine, tmp_path: Path) -> None:
    fake = tmp_path / "torchrun"
    fake.write_text("#!/bin/sh\nenv\n")
    fake.chmod(0o755)
    machine.submit(job("1", str(fake), "train.py"))
    machine.do(START, "1", gpus=2)
    machine.until(FINISHED, "1")
    assert "WORLD_SIZE=1" in path_of(tmp_path, "1").read_text()
    assert not path_of(tmp_path, "1", "rank1.log").exists()


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [("exit 0", "SUCCEEDED", 0), ("exit 7", "FAILED", 7), ("no-such-program", "FAILED", 127)],
)
def test_exit_codes_are_mapped_to_slurm_states(machine: Machine, script: str, state: str, code: int) -> None:
    machine.submit(job("1", script))
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED if code == 0 else FAILED, "1")
    (ended,) = machine.data("ended")
    assert (ended["state"], ended["exit_code"]) == (state, code)
    assert ended["energy_method"] == "simulated"
    assert ended["energy_j"] > 0


def test_a_time_limit_ends_a_job_as_a_timeout(machine: Machine) -> None:
    machine.submit(job("1", "sleep 60", time_limit_s=0.2))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert machine.data("ended")[0]["state"] == "TIMEOUT"


@pytest.mark.slow
def test_gpus_are_reused_only_after_their_processes_have_ended(machine: Machine, tmp_path: Path) -> None:
    stubborn = 'trap "sleep 0.4; date +%s.%N; exit 1" TERM; echo up; while :; do sleep 0.05; done'
    machine.submit(job("1", stubborn), job("2", "date +%s.%N"))
    machine.do(START, "1", gpus=2)
    machine.until(RAN, "1")
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.records[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    assert not attempt_folders(tmp_path, "2")
    machine.until(FINISHED, "2")
    machine.until(STOPPED, "1")
    left = float(path_of(tmp_path, "1").read_text().split()[-1])
    assert left <= float(path_of(tmp_path, "2").read_text())


def wait_for(true: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


SESSION = """
import os, wattline
with wattline.Session(save=lambda path: path.write_text('x'), load=lambda path: None, aim='none') as run:
    for epoch in run.epochs(4):
        for batch in run.steps(range(40)):
            {body}
print('did', run.position.steps)
"""


@pytest.mark.slow
def test_a_job_with_a_session_continues_after_a_stop(machine: Machine, tmp_path: Path) -> None:
    body = "import time; time.sleep(0.001)"
    machine.submit(job("1", sys.executable, "-c", SESSION.format(body=body), batch=8))
    machine.do(START, "1", gpus=1)
    while machine.until(RAN, "1").steps < 1.0:
        pass
    machine.do(STOP, "1")
    stopped = machine.until(STOPPED, "1")
    assert 0 < stopped.steps < 60
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED, "1")
    assert path_of(tmp_path, "1").read_text().split()[-2:] == ["did", "160"]
    assert machine.data("stopped")[0]["completed_fraction"] == pytest.approx(stopped.steps / 60)
    assert [started["attempt"] for started in machine.data("started")] == [1, 2]


@pytest.mark.slow
def test_the_start_up_of_every_attempt_with_a_session_is_reported_once(machine: Machine) -> None:
    slow = "import time; time.sleep(1.0)\n" + SESSION.format(body="time.sleep(0.05)")
    machine.submit(job("1", sys.executable, "-c", slow, batch=8), job("2", "sleep 60"))
    machine.do(START, "2", gpus=1)
    for _ in range(2):
        machine.do(START, "1", gpus=1)
        startup_s = machine.until(READY, "1").rate
        assert 1.0 < startup_s < 30.0
        if not machine.data("stopped"):
            machine.do(STOP, "1")
            machine.until(STOPPED, "1")
    state = machine.local.initial_state()
    assert state.queue.restart_s.tolist() == [startup_s, pytest.approx(math.nan, nan_ok=True)]
    assert READY not in {event.verb for event in machine.seen}


@pytest.mark.slow
def test_a_killed_job_is_retried_after_a_delay_until_its_retries_are_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_exits, "_RETRY_DELAYS_S", (0.05,))
    machine.submit(job("1", "kill -9 $$", retries=2))
    for tried in range(3):
        machine.do(START, "1", gpus=1)
        machine.until(FAILED, "1")
        if tried < 2:
            machine.until(ARRIVED, "1")
    assert [retry["kill_count"] for retry in machine.data("retry")] == [1, 2]
    (ended,) = machine.data("ended")
    assert (ended["state"], ended["signal"]) == ("FAILED", "SIGKILL")
    assert "tried 3 times" in ended["message"]


def test_a_job_that_cannot_be_started_is_retried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local_engine, "launch", full)
    machine.submit(job("1", "true"))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert "No space left on device" in machine.data("retry")[0]["message"]


def test_a_cancelled_running_job_ends_and_a_waiting_one_never_starts(
    machine: Machine, tmp_path: Path
) -> None:
    machine.submit(job("1", "sleep 60"), job("2", "true"))
    machine.do(START, "1", gpus=1)
    machine.until(RAN, "1")
    machine.local.cancel("1")
    machine.local.cancel("2")
    machine.until(FAILED, "1")
    machine.until(FAILED, "2")
    assert {ended["state"] for ended in machine.data("ended")} == {"CANCELLED"}
    assert not attempt_folders(tmp_path, "2")


def test_a_withdrawn_job_leaves_the_queue_and_can_be_submitted_again(machine: Machine) -> None:
    one = job("1", "true")
    machine.submit(one)
    machine.local.withdraw("1")
    machine.until(FAILED, "1")
    assert "1" not in machine.local.records
    machine.submit(one)
    assert machine.local.jobs.id.tolist() == ["1", "1~2"]
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED, "1")


@pytest.mark.slow
def test_power_limits_are_set_retuned_and_restored(machine: Machine) -> None:
    gpus = machine.local.engine.machine.meter.gpus
    machine.submit(job("1", "sleep 60"))
    machine.do(START, "1", gpus=1, cap_w=200)
    machine.until(RAN, "1")
    assert [gpu.cap_w() for gpu in gpus] == [200, 400]
    machine.do(RETUNE, "1", cap_w=150)
    assert [gpu.cap_w() for gpu in gpus] == [150, 400]
    machine.local.cancel("1")
    machine.until(FAILED, "1")
    assert [gpu.cap_w() for gpu in gpus] == [400, 400]


def test_two_jobs_on_one_gpu_share_its_energy(machine: Machine) -> None:
    machine.submit(job("1", "sleep 0.3"), job("2", "sleep 0.3"))
    one, two = (machine.local.records[name].row for name in ("1", "2"))
    machine.apply([START, one, one, 0, 1], [START, two, one, 0, 1])
    for name in ("1", "2"):
        machine.until(FINISHED, name)
    first, second = (ended["energy_j"] for ended in machine.data("ended"))
    gpu = machine.local.engine.machine.meter.gpus[0]
    assert first + second <= gpu.energy_j()
    assert second < 2 * first


def test_a_job_ends_when_its_energy_budget_is_used(machine: Machine) -> None:
    script = SESSION.format(body="import time; time.sleep(0.001)")
    machine.submit(job("1", sys.executable, "-c", script, max_joules=1.0))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    (ended,) = machine.data("ended")
    assert ended["energy_j"] > 1.0
    assert ended["message"] == (
        f"It was ended by its energy budget: used {ended['energy_j']:.4g} J (simulated), allowed 1 J."
    )


def test_the_energy_budget_of_a_job_without_a_session_is_enforced_by_the_counters(machine: Machine) -> None:
    machine.submit(job("1", "sleep 60", max_joules=30.0))
    machine.do(START, "1", gpus=1)  # an idle a100 draws 59 W
    machine.until(FAILED, "1")
    (ended,) = machine.data("ended")
    assert ended["state"] == "FAILED"
    assert ended["sent_signal"] == "SIGTERM"
    assert "allowed 30 J" in ended["message"]
    assert ended["energy_j"] < 30.0 + 59.0 * 10


def test_a_job_that_used_its_budget_while_it_was_stopped_does_not_start_again(machine: Machine) -> None:
    machine.submit(job("1", "sleep 60", max_joules=1e-3))
    machine.do(START, "1", gpus=1)
    machine.until(RAN, "1")
    machine.do(STOP, "1")
    machine.until(FAILED, "1")
    assert "energy budget" in machine.data("ended")[0]["message"]


def test_the_joules_of_a_job_do_not_fall_while_it_is_stopped(machine: Machine) -> None:
    machine.submit(job("1", "trap '' TERM; sleep 60 & wait; sleep 60", grace_s=1.0))
    machine.do(START, "1", gpus=1)
    machine.until(RAN, "1")
    while not (shown := [machine.local.describe_job("1")["energy_j"]])[0] > 0:
        machine.poll()
    machine.do(STOP, "1")
    while "stopped" not in [kind for kind, _, _ in machine.reported]:
        machine.poll()
        shown.append(machine.local.describe_job("1")["energy_j"])
    shown.append(machine.local.describe_job("1")["energy_j"])
    assert shown == sorted(shown)
    assert machine.data("stopped")[0]["energy_j"] == shown[-1] > 0


@pytest.mark.slow
def test_a_cap_that_a_session_holds_is_taken_over_by_the_scheduler(machine: Machine) -> None:
    script = (
        "import time; from wattline.meter import open_meter\n"
        "from wattline.meter.caps.guard import guard_caps\n"
        "meter = open_meter('auto'); guard = guard_caps(meter.gpus, 350); guard.__enter__()\n"
        "time.sleep(60)"
    )
    gpu = machine.local.engine.machine.meter.gpus[0]
    machine.submit(job("1", sys.executable, "-c", script))
    machine.do(START, "1", gpus=1)
    machine.until(RAN, "1")
    wait_for(lambda: gpu.cap_w() == 350)
    machine.do(RETUNE, "1", cap_w=143)
    assert gpu.cap_w() == 143
    assert machine.local.describe_job("1")["cap_w"] == machine.data("retuned")[0]["cap_w"] == 143
    machine.local.cancel("1")
    machine.until(FAILED, "1")
    assert gpu.cap_w() == 400


# -- restart of the service


@pytest.mark.slow
def test_after_a_restart_a_job_has_its_last_cap_and_the_joules_of_its_share(tmp_path: Path) -> None:
    names = ("1", "2")
    first = Machine(tmp_path)
    first.submit(*(job(name, "sleep 60") for name in names))
    one, two = (first.local.records[name].row for name in names)
    first.apply([START, one, one, 0, 1, 200], [START, two, one, 0, 1, 200])
    for name in names:
        first.until(RAN, name)
    first.local.cancel("2")
    first.until(FAILED, "2")
    first.do(RETUNE, "1", cap_w=150)
    gpu = first.local.engine.machine.meter.gpus[0]
    before_j = gpu.energy_j()
    wait_for(lambda: gpu.energy_j() > before_j + 30.0)  # all of it is of job 1
    first.local.engine.sample_energy()
    used_j = first.local.describe_job("1")["energy_j"]
    first.local.close()
    with opened(tmp_path, adopt=[job("1", "sleep 60")]) as second:
        assert second.local.engine.machine.meter.gpus[0].cap_w() == 150
        assert used_j <= second.local.describe_job("1")["energy_j"] < used_j + 59.0 * 10
        second.local.cancel("1")
        second.local.initial_state()
        second.until(FAILED, "1")


def test_the_energy_of_a_job_on_gpus_that_are_gone_is_unknown_and_not_0(tmp_path: Path) -> None:
    first = Machine(tmp_path, f"simulated:2xa100,state={tmp_path / 'two'}")
    first.submit(job("1", "sleep 60"))
    first.do(START, "1", gpus=2)
    first.until(RAN, "1")
    first.local.close()
    with opened(tmp_path, f"simulated:1xa100,state={tmp_path / 'one'}", [job("1", "sleep 60")]) as second:
        (stopped,) = second.data("stopped")
        assert (stopped["message"], stopped["energy_j"]) == ("Its GPUs are gone.", None)
        assert stopped["service_s"] > 0


def test_a_restart_finds_running_and_ended_attempts(tmp_path: Path) -> None:
    runs, over, new = job("1", "sleep 60"), job("2", "exit 3"), job("3", "true")
    first = Machine(tmp_path)
    first.submit(runs, over, new)
    first.do(START, "1", gpus=1, cap_w=200)
    first.do(START, "2", gpus=1)
    wait_for(lambda: AttemptProcesses(attempt_folders(tmp_path, "2")[-1]).state() == "ended")
    first.local.close()
    again = [job("1", "sleep 60"), job("2", "exit 3"), job("3", "true")]
    with opened(tmp_path, adopt=again) as second:
        state = second.local.initial_state()
        assert len(state.queue) == 3
        assert state.leases.job.tolist() == [0, 1]
        assert state.leases.cap_w.tolist() == [200, 0]
        assert state.free_gpus.tolist() == [0]
        second.until(FAILED, "2")
        assert second.data("ended")[0]["exit_code"] == 3
        second.local.cancel("1")
        second.until(FAILED, "1")
        assert len(attempt_folders(tmp_path, "1")) == 1
        assert second.data("ended")[1]["energy_j"] > 0


def test_a_job_is_retried_after_its_supervisor_was_killed(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(job("1", "sleep 60"))
    first.do(START, "1", gpus=1)
    folder = attempt_folders(tmp_path, "1")[-1]
    os.kill(json.loads((folder / "claim.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: AttemptProcesses(folder).state() == "vanished")
    first.local.close()
    with opened(tmp_path, adopt=[job("1", "sleep 60")]) as second:
        second.local.initial_state()
        second.until(FAILED, "1")
        (retry,) = second.data("retry")
        assert (retry["kill_count"], retry["message"]) == (1, "Its processes vanished.")


def test_a_reboot_does_not_count_as_a_kill(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(job("1", "sleep 60"))
    first.do(START, "1", gpus=1)
    folder = attempt_folders(tmp_path, "1")[-1]
    AttemptProcesses(folder).kill()
    AttemptProcesses(folder).wait(30)
    first.local.close()
    (folder / "exit.json").unlink()
    claim = json.loads((folder / "claim.json").read_text())
    (folder / "claim.json").write_text(json.dumps({**claim, "boot_id": "before"}))
    with opened(tmp_path, adopt=[job("1", "sleep 60")]) as second:
        second.local.initial_state()
        second.until(FAILED, "1")
        assert second.data("retry")[0]["kill_count"] == 0


@pytest.mark.slow
def test_an_unclaimed_attempt_becomes_void_and_its_job_waits(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(job("1", "true"))
    first.do(START, "1", gpus=1)
    folder = attempt_folders(tmp_path, "1")[-1]
    AttemptProcesses(folder).wait(30)
    first.local.close()
    for name in ("claim.json", "exit.json"):
        (folder / name).unlink()
    with opened(tmp_path, adopt=[job("1", "true")]) as second:
        state = second.local.initial_state()
        assert (len(state.queue), len(state.leases)) == (1, 0)
        assert AttemptProcesses(folder).state() == "void"
        second.do(START, "1", gpus=1)
        second.until(FINISHED, "1")
    assert LOST not in [event.verb for event in second.seen]


# -- concurrent changes


STUBBORN = 'trap "sleep 0.5; exit 75" TERM; echo up; while :; do sleep 0.02; done'


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_it_stops_ends_and_the_next_starts(
    machine: Machine, tmp_path: Path
) -> None:
    machine.submit(job("1", STUBBORN), job("2", "true"))
    machine.do(START, "1", gpus=2)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.records[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    machine.local.cancel("1")
    machine.until(FAILED, "1")
    machine.until(FINISHED, "2")
    assert [ended["state"] for ended in machine.data("ended")] == ["CANCELLED", "SUCCEEDED"]


def test_a_job_that_succeeds_while_it_is_resized_is_over(machine: Machine, tmp_path: Path) -> None:
    machine.submit(job("1", STUBBORN.replace("exit 75", "exit 0")), job("2", "true"))
    machine.do(START, "1", gpus=1)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.records[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, one, one, 0, 2])
    machine.until(FINISHED, "1")
    machine.apply([START, two, two, 0, 2])
    machine.until(FINISHED, "2")
    assert len(attempt_folders(tmp_path, "1")) == 1


@pytest.mark.parametrize("what", ["withdraw", "prioritise", "cancel"])
def test_a_job_that_waits_for_its_gpus_can_be_withdrawn(machine: Machine, tmp_path: Path, what: str) -> None:
    machine.submit(job("1", STUBBORN), job("2", "true"))
    machine.do(START, "1", gpus=2)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.records[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    if what == "prioritise":
        machine.local.prioritise(5.0, "2")
        machine.until(FAILED, "2")
        machine.until(ARRIVED, "2")
        assert machine.local.jobs.priority[machine.local.records["2"].row] == 5
    else:
        getattr(machine.local, what)("2")
        machine.until(FAILED, "2")
    machine.until(STOPPED, "1")
    assert not attempt_folders(tmp_path, "2")


def test_a_job_that_is_submitted_twice_runs_once(machine: Machine) -> None:
    machine.submit(job("1", "sleep 0.2"))
    machine.do(START, "1", gpus=1)
    machine.local.submit([job("1", "sleep 0.2")])
    machine.until(FINISHED, "1")
    assert len(machine.data("started")) == 1


@pytest.mark.parametrize(
    "lines",
    [
        ['{"event": "x", "at": 0, "fraction": 0}', '{"event": "x", "at": 5e-324, "fraction": 0.5}'],
        ['{"event": "x", "at": 1' + "0" * 400 + "}"],
        ['{"event": "report", "at": NOW, "metrics": {"\\ud800": 1, "x": NaN}}'],
        ['{"event": "began", "at": NOW, "kind": "a100", "batch": 1e30, "epoch": 1e30}'],
        ['{"event": "x", "at": NOW, "fraction": 0}', '{"event": "x", "at": NOW.000001, "fraction": 1}'],
        ["[" * 100_000, "\x00\x01", '"just text"', "{}", '{"event": 1, "at": "soon"}'],
    ],
)
def test_a_job_may_write_any_bytes_to_its_events_file(
    machine: Machine, tmp_path: Path, lines: list[str]
) -> None:
    text = tmp_path / "lines"
    text.write_text("".join(line.replace("NOW", str(int(time.time()))) + "\n" for line in lines))
    script = f'cat {text} >> "$WATTLINE_EVENTS"; sleep 1.5'
    machine.submit(job("1", script, group="nightly"))
    machine.do(START, "1", gpus=1)
    event = machine.until(FINISHED, "1")
    assert math.isfinite(event.energy_j)
    numbers = [value for seen in machine.seen if seen.verb != PROTECTED for value in seen[2:]]
    assert all(map(math.isfinite, numbers))  # a job without checkpoints is protected until inf
    json.dumps(machine.data("ended"), allow_nan=False).encode()


def test_an_attempt_with_a_recorded_end_is_not_adopted(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(job("1", "kill -9 $$"))
    first.do(START, "1", gpus=1)
    first.until(FAILED, "1")
    first.local.close()
    for _ in range(2):
        known = job("1", "kill -9 $$")
        known.kill_count = known.starts = known.last_closed_attempt = 1
        known.retry_at_s = time.time() + 60
        with opened(tmp_path, adopt=[known]) as again:
            again.local.initial_state()
            again.local.wait(time.time() + 0.2)
            assert again.reported == []


def test_a_job_on_gpus_that_are_gone_starts_again(tmp_path: Path) -> None:
    first = Machine(tmp_path, "simulated:4xa100")
    first.submit(job("1", "sleep 60"))
    first.do(START, "1", gpus=4)
    first.local.close()
    (tmp_path / "gpus" / "gpus.bin").unlink()
    with opened(tmp_path, "simulated:2xa100", adopt=[job("1", "sleep 60")]) as second:
        state = second.local.initial_state()
        assert (len(state.queue), len(state.leases)) == (1, 0)
        assert second.data("stopped")[0]["message"] == "Its GPUs are gone."
        assert AttemptProcesses(attempt_folders(tmp_path, "1")[0]).state() == "ended"


def test_a_requeue_request_without_progress_is_delayed(machine: Machine) -> None:
    machine.submit(job("1", "exit 75"))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert machine.data("retry")[0]["retry_at_s"] > time.time()
    assert machine.data("retry")[0]["kill_count"] == 0
