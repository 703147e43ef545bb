"""`wattline measure` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import parse_strict_json, run_command
from wattline.cli.models.measure import SignalForwarder

STEPS = (
    "from wattline.meter import open_meter\n"
    "meter = open_meter()\n"
    "for _ in range(10): meter.stepped(128)\n"
    "print(sum(gpu.energy_j() for gpu in meter.gpus), meter.now_s())"
)
VIRTUAL = "simulated:2xv100,model=resnet50,batch=128,time=virtual"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("WATTLINE_METER", raising=False)


@pytest.mark.slow
def test_measure_prints_these_keys_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(
        capfd, "measure", "--json", "--meter", VIRTUAL, "--", sys.executable, "-c", STEPS
    )
    assert code == 0
    found = json.loads(out)
    joules, seconds = map(float, err.split())
    assert found["energy_j"] == pytest.approx(joules) == found["counted_j"]
    assert found["seconds"] == pytest.approx(seconds)
    assert found["watts"] == pytest.approx(joules / seconds)
    assert (found["meter"], found["method"], found["exit_code"]) == ("simulated", "simulated", 0)
    assert [gpu["energy_j"] for gpu in found["gpus"]] == pytest.approx([joules / 2, joules / 2])
    assert set(found["gpus"][0]) == {"index", "uuid", "name", "energy_j", "counted", "lost"}
    assert found["wall_s"] > 0


@pytest.mark.slow
def test_the_text_names_the_method(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capfd, "measure", "--meter", VIRTUAL, "--", sys.executable, "-c", STEPS)
    assert code == 0
    printed, *_, last = out.splitlines()
    assert printed.startswith(last.split()[0][:4])
    assert last.endswith("on average, by simulated")
    assert "GPU 1 (simulated v100)" in out


def test_a_command_shorter_than_the_counter_resolves_is_announced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for counter, announced in (("60", True), ("0", False)):
        meter = f"simulated:1xv100,state={tmp_path / counter},counter={counter}"
        code, _, err = run_command(capfd, "measure", "--meter", meter, "--", "sleep", "0.1")
        assert code == 0
        assert ("its counter is renewed every" in err) == announced


def test_without_a_meter_it_is_unmetered_and_not_0(capfd: pytest.CaptureFixture[str]) -> None:
    found = parse_strict_json(run_command(capfd, "measure", "--json", "--meter", "none", "--", "true")[1])
    assert (found["energy_j"], found["watts"], found["method"], found["gpus"]) == (
        None,
        None,
        "unmetered",
        [],
    )
    assert found["seconds"] >= 0
    assert "unmetered" in run_command(capfd, "measure", "--meter", "none", "--", "true")[1]


@pytest.mark.slow
def test_a_gpu_that_is_lost_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    lost = STEPS.replace("range(10)", "range(3)").split("\nprint")[0]
    words = ("measure", "--meter", f"{VIRTUAL},lost=3", "--", sys.executable, "-c", lost)
    code, out, _ = run_command(capfd, *words)
    assert code == 0
    assert "until it was lost: GPU 1 (v100) is lost" in out


@pytest.mark.parametrize(("words", "code"), [(["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)])
def test_the_exit_code_of_the_command_is_returned(
    capfd: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    assert run_command(capfd, "measure", "--meter", "none", "--", *words)[0] == code
    assert (
        json.loads(run_command(capfd, "measure", "--meter", "none", "--json", "--", *words)[1])["exit_code"]
        == code
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 42), (signal.SIGINT, 42), (signal.SIGHUP, 42)])
def test_signals_reach_the_command_and_the_result_is_still_printed(number: signal.Signals, code: int) -> None:
    child = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('up', file=sys.stderr, flush=True)\n"
        "time.sleep(600)"
    )
    words = ["measure", "--meter", "none", "--json", "--", sys.executable, "-c", child]
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; from wattline.cli import main; sys.exit(main({words!r}))"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "up\n"
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert json.loads(out)["exit_code"] == code


def test_a_signal_received_before_the_command_starts_is_forwarded_later() -> None:
    with SignalForwarder() as signals:
        signal.raise_signal(signal.SIGTERM)
        process = subprocess.Popen(["sleep", "600"])
        signals.forward_to(process)
        assert process.wait(60) == -signal.SIGTERM


def test_a_command_that_cannot_start_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(capfd, "measure")[0] == 2
    code, _, err = run_command(capfd, "measure", "--", "no-such-command-anywhere")
    assert (code, "no such command" in err) == (3, True)
    (tmp_path / "plain").write_text("")
    code, _, err = run_command(capfd, "measure", "--", str(tmp_path / "plain"))
    assert (code, "is not executable" in err) == (2, True)
    code, _, err = run_command(capfd, "measure", "--meter", "simulatd", "--", "true")
    assert (code, "did you mean simulated?" in err) == (2, True)
