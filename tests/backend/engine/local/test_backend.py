from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.job_request import JOB_REQUEST
from wattline.backend.engine.job_record import Life
from wattline.backend.engine.job_spec import Work, attempts
from wattline.backend.engine.local import backend as module
from wattline.backend.engine.local.attempt import Attempt
from wattline.backend.engine.local.backend import Local
from wattline.core.actions import ACTION_COLUMNS, RETUNE, START, STOP
from wattline.core.events import ARRIVED, FAILED, FINISHED, LOST, RAN, STOPPED, Event, each
from wattline.testing import BackendContract


def life(name: str, *words: str, asks: dict[str, Any] | None = None, **more: Any) -> Life:
    """A job that runs a command, or a line of a shell."""
    command = words if len(words) > 1 else ("sh", "-c", *words)
    fuse = more.pop("fuse", "")
    return Life(Work(name, command, **more), {**JOB_REQUEST, **(asks or {})}, time.time(), fuse)


class Machine:
    """A backend, what it said, and who was told what."""

    def __init__(self, folder: Path, gpus: str = "simulated:2xa100", adopt: list[Life] | None = None) -> None:
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        self.seen: list[Event] = []
        self.local = Local(folder, gpus, hear=lambda *what: self.heard.append(what), stays=True)
        if adopt:
            self.local.adopt(adopt)

    def submit(self, *lives: Life) -> None:
        self.local.submit(lives)
        for one in lives:
            self.until(ARRIVED, one.id)

    def do(self, verb: int, name: str, gpus: int = 0, group: str = "", cap_w: int = 0) -> None:
        row = self.local.lives[name].row
        lead = self.local.lives[group].row if group else row
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
                if event.verb == verb and self.local._rows.ids[event.job] == name:
                    self.seen.remove(event)
                    return event
            self.seen += each(self.local.wait(time.time() + 0.5)[1])
        raise AssertionError(f"{verb} of {name} never came: {self.seen}, {self.heard}")

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [what for said, _, what in self.heard if said == kind]


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
        for run in one.local._runs:
            if run.attempt is not None:
                run.attempt.kill()
                run.attempt.wait(30)
        one.local.close()


def path_of(tmp_path: Path, job: str, name: str = "rank0.log", attempt: int = -1) -> Path:
    return attempts(tmp_path, job)[attempt] / name


class TestLocal(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.made = 0

    def make(self) -> Local:
        self.made += 1
        backend = Local(self.folder / str(self.made), "simulated:1xa100")
        backend.submit([life("0", "sleep 0.3"), life("1", "true")])
        return backend


def test_a_job_finds_torchruns_words_and_its_gpus(machine: Machine, tmp_path: Path) -> None:
    machine.submit(life("1", "env"))
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


def test_torchrun_starts_its_own_ranks(machine: Machine, tmp_path: Path) -> None:
    fake = tmp_path / "torchrun"
    fake.write_text("#!/bin/sh\nenv\n")
    fake.chmod(0o755)
    machine.submit(life("1", str(fake), "train.py"))
    machine.do(START, "1", gpus=2)
    machine.until(FINISHED, "1")
    assert "WORLD_SIZE=1" in path_of(tmp_path, "1").read_text()
    assert not path_of(tmp_path, "1", "rank1.log").exists()


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [("exit 0", "SUCCEEDED", 0), ("exit 7", "FAILED", 7), ("no-such-program", "FAILED", 127)],
)
def test_exit_codes_become_slurms_words(machine: Machine, script: str, state: str, code: int) -> None:
    machine.submit(life("1", script))
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED if code == 0 else FAILED, "1")
    (ended,) = machine.told("ended")
    assert (ended["state"], ended["code"]) == (state, code)
    assert ended["method"] == "simulated"
    assert ended["energy_j"] > 0


def test_a_time_limit_ends_a_job_as_a_timeout(machine: Machine) -> None:
    machine.submit(life("1", "sleep 60", time_limit_s=0.2))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert machine.told("ended")[0]["state"] == "TIMEOUT"


def test_gpus_are_given_on_only_when_who_had_them_is_gone(machine: Machine, tmp_path: Path) -> None:
    stubborn = 'trap "sleep 0.4; date +%s.%N; exit 1" TERM; echo up; while :; do sleep 0.05; done'
    machine.submit(life("1", stubborn), life("2", "date +%s.%N"))
    machine.do(START, "1", gpus=2)
    machine.until(RAN, "1")
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.lives[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    assert not attempts(tmp_path, "2")
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
print('did', run.where.steps)
"""


@pytest.mark.slow
def test_a_job_with_a_session_is_stopped_and_goes_on_where_it_was(machine: Machine, tmp_path: Path) -> None:
    body = "import time; time.sleep(0.001)"
    machine.submit(life("1", sys.executable, "-c", SESSION.format(body=body), batch=8))
    machine.do(START, "1", gpus=1)
    while machine.until(RAN, "1").steps < 1.0:
        pass
    machine.do(STOP, "1")
    stopped = machine.until(STOPPED, "1")
    assert 0 < stopped.steps < 60
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED, "1")
    assert path_of(tmp_path, "1").read_text().split()[-2:] == ["did", "160"]
    assert machine.told("stopped")[0]["done"] == pytest.approx(stopped.steps / 60)
    assert [started["attempt"] for started in machine.told("started")] == [1, 2]


def test_a_job_that_is_killed_is_tried_again_after_a_while_and_not_for_ever(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACK_OFF_S", (0.05,))
    machine.submit(life("1", "kill -9 $$", retries=2))
    for tried in range(3):
        machine.do(START, "1", gpus=1)
        machine.until(FAILED, "1")
        if tried < 2:
            machine.until(ARRIVED, "1")
    assert [retry["kills"] for retry in machine.told("retry")] == [1, 2]
    (ended,) = machine.told("ended")
    assert (ended["state"], ended["signal"]) == ("FAILED", "SIGKILL")
    assert "tried 3 times" in ended["message"]


def test_a_job_that_cannot_be_started_is_tried_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "start", full)
    machine.submit(life("1", "true"))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert "No space left on device" in machine.told("retry")[0]["message"]


def test_a_cancelled_job_ends_and_one_that_waits_never_starts(machine: Machine, tmp_path: Path) -> None:
    machine.submit(life("1", "sleep 60"), life("2", "true"))
    machine.do(START, "1", gpus=1)
    machine.until(RAN, "1")
    machine.local.cancel("1")
    machine.local.cancel("2")
    machine.until(FAILED, "1")
    machine.until(FAILED, "2")
    assert {ended["state"] for ended in machine.told("ended")} == {"CANCELLED"}
    assert not attempts(tmp_path, "2")


def test_who_is_withdrawn_leaves_the_queue_and_comes_back(machine: Machine) -> None:
    one = life("1", "true")
    machine.submit(one)
    machine.local.withdraw("1")
    machine.until(FAILED, "1")
    assert "1" not in machine.local.lives
    machine.submit(one)
    assert machine.local.jobs.id.tolist() == ["1", "1~2"]
    machine.do(START, "1", gpus=1)
    machine.until(FINISHED, "1")


def test_caps_are_set_retuned_and_put_back(machine: Machine) -> None:
    gpus = machine.local.machine.meter.gpus
    machine.submit(life("1", "sleep 60"))
    machine.do(START, "1", gpus=1, cap_w=200)
    machine.until(RAN, "1")
    assert [gpu.cap_w() for gpu in gpus] == [200, 400]
    machine.do(RETUNE, "1", cap_w=150)
    assert [gpu.cap_w() for gpu in gpus] == [150, 400]
    machine.local.cancel("1")
    machine.until(FAILED, "1")
    assert [gpu.cap_w() for gpu in gpus] == [400, 400]


def test_two_jobs_on_one_gpu_share_its_energy(machine: Machine) -> None:
    machine.submit(life("1", "sleep 0.3"), life("2", "sleep 0.3"))
    one, two = (machine.local.lives[name].row for name in ("1", "2"))
    machine.apply([START, one, one, 0, 1], [START, two, one, 0, 1])
    for name in ("1", "2"):
        machine.until(FINISHED, name)
    first, second = (ended["energy_j"] for ended in machine.told("ended"))
    gpu = machine.local.machine.meter.gpus[0]
    assert first + second <= gpu.energy_j()
    assert second < 2 * first


def test_a_job_ends_when_its_own_budget_is_used(machine: Machine) -> None:
    script = SESSION.format(body="import time; time.sleep(0.001)")
    machine.submit(life("1", sys.executable, "-c", script, max_joules=1.0))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert machine.told("ended")[0]["message"] == "It has used all of its own energy budget."


# -- another process goes on


def test_who_opens_the_folder_again_finds_what_runs_and_what_ended(tmp_path: Path) -> None:
    runs, over, new = life("1", "sleep 60"), life("2", "exit 3"), life("3", "true")
    first = Machine(tmp_path)
    first.submit(runs, over, new)
    first.do(START, "1", gpus=1, cap_w=200)
    first.do(START, "2", gpus=1)
    wait_for(lambda: Attempt(attempts(tmp_path, "2")[-1]).state() == "ended")
    first.local.close()
    again = [life("1", "sleep 60"), life("2", "exit 3"), life("3", "true")]
    with opened(tmp_path, adopt=again) as second:
        begins = second.local.begins()
        assert len(begins.queue) == 3
        assert begins.leases.job.tolist() == [0, 1]
        assert begins.leases.cap_w.tolist() == [200, 0]
        assert begins.free.tolist() == [0]
        second.until(FAILED, "2")
        assert second.told("ended")[0]["code"] == 3
        second.local.cancel("1")
        second.until(FAILED, "1")
        assert len(attempts(tmp_path, "1")) == 1
        assert second.told("ended")[1]["energy_j"] > 0


def test_a_job_whose_shim_was_killed_is_tried_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(life("1", "sleep 60"))
    first.do(START, "1", gpus=1)
    folder = attempts(tmp_path, "1")[-1]
    os.kill(json.loads((folder / "claim.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: Attempt(folder).state() == "vanished")
    first.local.close()
    with opened(tmp_path, adopt=[life("1", "sleep 60")]) as second:
        second.local.begins()
        second.until(FAILED, "1")
        (retry,) = second.told("retry")
        assert (retry["kills"], retry["message"]) == (1, "Its processes vanished.")


def test_a_reboot_is_not_the_jobs_fault(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(life("1", "sleep 60"))
    first.do(START, "1", gpus=1)
    folder = attempts(tmp_path, "1")[-1]
    Attempt(folder).kill()
    Attempt(folder).wait(30)
    first.local.close()
    (folder / "exit.json").unlink()
    claim = json.loads((folder / "claim.json").read_text())
    (folder / "claim.json").write_text(json.dumps({**claim, "boot_id": "before"}))
    with opened(tmp_path, adopt=[life("1", "sleep 60")]) as second:
        second.local.begins()
        second.until(FAILED, "1")
        assert second.told("retry")[0]["kills"] == 0


def test_an_attempt_that_nobody_claimed_is_void_and_the_job_waits(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(life("1", "true"))
    first.do(START, "1", gpus=1)
    folder = attempts(tmp_path, "1")[-1]
    Attempt(folder).wait(30)
    first.local.close()
    for name in ("claim.json", "exit.json"):
        (folder / name).unlink()
    with opened(tmp_path, adopt=[life("1", "true")]) as second:
        begins = second.local.begins()
        assert (len(begins.queue), len(begins.leases)) == (1, 0)
        assert Attempt(folder).state() == "void"
        second.do(START, "1", gpus=1)
        second.until(FINISHED, "1")
    assert LOST not in [event.verb for event in second.seen]


# -- things that happen at the same time


STUBBORN = 'trap "sleep 0.5; exit 75" TERM; echo up; while :; do sleep 0.02; done'


def test_who_is_cancelled_while_it_is_stopped_ends_and_others_go_on(machine: Machine, tmp_path: Path) -> None:
    machine.submit(life("1", STUBBORN), life("2", "true"))
    machine.do(START, "1", gpus=2)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.lives[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    machine.local.cancel("1")
    machine.until(FAILED, "1")
    machine.until(FINISHED, "2")
    assert [ended["state"] for ended in machine.told("ended")] == ["CANCELLED", "SUCCEEDED"]


def test_who_ends_well_while_it_is_resized_is_over(machine: Machine, tmp_path: Path) -> None:
    machine.submit(life("1", STUBBORN.replace("exit 75", "exit 0")), life("2", "true"))
    machine.do(START, "1", gpus=1)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.lives[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, one, one, 0, 2])
    machine.until(FINISHED, "1")
    machine.apply([START, two, two, 0, 2])
    machine.until(FINISHED, "2")
    assert len(attempts(tmp_path, "1")) == 1


@pytest.mark.parametrize("what", ["withdraw", "prioritise", "cancel"])
def test_who_waits_for_its_gpus_can_still_be_called_back(machine: Machine, tmp_path: Path, what: str) -> None:
    machine.submit(life("1", STUBBORN), life("2", "true"))
    machine.do(START, "1", gpus=2)
    wait_for(lambda: "up" in path_of(tmp_path, "1").read_text())
    one, two = (machine.local.lives[name].row for name in ("1", "2"))
    machine.apply([STOP, one, one, -1], [START, two, two, 0, 2])
    if what == "prioritise":
        machine.local.prioritise("2", 5.0)
        machine.until(FAILED, "2")
        machine.until(ARRIVED, "2")
        assert machine.local.jobs.priority[machine.local.lives["2"].row] == 5
    else:
        getattr(machine.local, what)("2")
        machine.until(FAILED, "2")
    machine.until(STOPPED, "1")
    assert not attempts(tmp_path, "2")


def test_nobody_is_there_twice(machine: Machine) -> None:
    machine.submit(life("1", "sleep 0.2"))
    machine.do(START, "1", gpus=1)
    machine.local.submit([life("1", "sleep 0.2")])
    machine.until(FINISHED, "1")
    assert len(machine.told("started")) == 1


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
def test_a_job_may_write_what_it_wants_where_it_should_tell_of_itself(
    machine: Machine, tmp_path: Path, lines: list[str]
) -> None:
    text = tmp_path / "lines"
    text.write_text("".join(line.replace("NOW", str(int(time.time()))) + "\n" for line in lines))
    script = f'cat {text} >> "$WATTLINE_EVENTS"; sleep 1.5'
    machine.submit(life("1", script, group="nightly"))
    machine.do(START, "1", gpus=1)
    event = machine.until(FINISHED, "1")
    assert math.isfinite(event.energy_j)
    assert all(math.isfinite(value) for seen in machine.seen for value in seen[2:])
    json.dumps(machine.told("ended"), allow_nan=False).encode()


def test_an_attempt_that_is_accounted_for_is_not_counted_again(tmp_path: Path) -> None:
    first = Machine(tmp_path)
    first.submit(life("1", "kill -9 $$"))
    first.do(START, "1", gpus=1)
    first.until(FAILED, "1")
    first.local.close()
    for _ in range(2):
        known = life("1", "kill -9 $$")
        known.kills = known.starts = known.closed = 1
        known.due_s = time.time() + 60
        with opened(tmp_path, adopt=[known]) as again:
            again.local.begins()
            again.local.wait(time.time() + 0.2)
            assert again.heard == []


def test_jobs_on_gpus_that_are_gone_start_again(tmp_path: Path) -> None:
    first = Machine(tmp_path, "simulated:4xa100")
    first.submit(life("1", "sleep 60"))
    first.do(START, "1", gpus=4)
    first.local.close()
    (tmp_path / "gpus" / "gpus.bin").unlink()
    with opened(tmp_path, "simulated:2xa100", adopt=[life("1", "sleep 60")]) as second:
        begins = second.local.begins()
        assert (len(begins.queue), len(begins.leases)) == (1, 0)
        assert second.told("stopped")[0]["message"] == "Its GPUs are gone."
        assert Attempt(attempts(tmp_path, "1")[0]).state() == "ended"


def test_who_asks_to_be_started_again_at_once_waits_a_while(machine: Machine) -> None:
    machine.submit(life("1", "exit 75"))
    machine.do(START, "1", gpus=1)
    machine.until(FAILED, "1")
    assert machine.told("retry")[0]["due_s"] > time.time()
    assert machine.told("retry")[0]["kills"] == 0
