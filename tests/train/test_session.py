"""Sessions in a training script, without PyTorch where it is not needed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.sessions import BATCH, SHORT, describe_gpus
from wattline import Session
from wattline.batch_size.history import OUT_OF_MEMORY, RunHistory
from wattline.errors import ConfigError, InputError
from wattline.meter import open_meter
from wattline.profiler.cap_aim import Aim, CapMeasurement, find_best
from wattline.profiler.cap_window import list_caps
from wattline.train.environment import JobEnvironment, Target


def train(run: Session, epochs: int = 1, steps: int = 200) -> None:
    for _ in run.epochs(epochs):
        for _ in run.steps([BATCH] * steps):
            pass
        run.report(loss=1.0)


def measure_exactly(tmp_path: Path) -> list[CapMeasurement]:
    """Return a step under each cap, by an exact counter."""
    meter = open_meter(describe_gpus(tmp_path / "oracle"))
    gpu, measurements = meter.gpus[0], []
    for cap_w in list_caps(*gpu.cap_range_w()):
        gpu.set_cap(cap_w)
        start = meter.now_s(), gpu.energy_j()
        meter.stepped(64)
        measurements.append(CapMeasurement(cap_w, 1, meter.now_s() - start[0], gpu.energy_j() - start[1]))
    return measurements


def measure_best_cap(tmp_path: Path, aim: Aim) -> float:
    """Return the best cap by a step under each cap."""
    measurements = measure_exactly(tmp_path)
    return find_best(measurements, aim, measurements[0].cap_w).cap_w


@pytest.mark.parametrize("aim", ["energy", "cost:0.5", "slowdown:1.1", "watts:180"])
def test_the_best_cap_is_set_within_one_epoch_and_restored_at_the_end(tmp_path: Path, aim: str) -> None:
    with Session(meter=describe_gpus(tmp_path), aim=aim, window=SHORT) as run:
        train(run)
        assert run.caps.search is not None
        assert run.caps.search.is_done
        assert run.gpus[0].cap_w() == pytest.approx(measure_best_cap(tmp_path, Aim.parse(aim)))
    meter = open_meter(describe_gpus(tmp_path))
    assert meter.gpus[0].cap_w() == meter.gpus[0].cap_range_w()[1]


@pytest.mark.slow
@pytest.mark.parametrize("phase", range(0, 36, 7))
def test_short_steps_and_a_counter_renewed_every_100_ms_do_not_mislead_the_search(
    tmp_path: Path, phase: int
) -> None:
    samples = np.zeros((1, 1))  # a step of 3 ms
    with Session(meter=describe_gpus(tmp_path, counter="100"), aim="energy") as run:
        for _ in range(phase):
            run._meter.stepped(1)
        for _ in run.epochs(1):
            for _ in run.steps([samples] * 20_000):
                if not run.caps.is_searching:
                    break
        assert run.caps.search is not None
        assert run.caps.search.period_s == pytest.approx(0.1, abs=0.005)
        assert all(one.seconds > 1.99 for one in run.caps.search.measurements)
        exact_j = {one.cap_w: one.joules for one in measure_exactly(tmp_path)}
        assert exact_j[run.gpus[0].cap_w()] <= 1.01 * min(exact_j.values())
        assert run.caps.saves == pytest.approx(1 - min(exact_j.values()) / exact_j[300.0], abs=0.01)


@pytest.mark.slow
def test_measured_caps_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    for _ in range(2):
        with Session(meter=describe_gpus(tmp_path), window=SHORT, batch_size=64) as run:
            assert run.caps.search is not None
            searches.append(
                (run.caps.search.is_done, run.caps.search.cap_w if run.caps.search.is_done else None)
            )
            train(run)
            best_w = run.gpus[0].cap_w()
    assert searches == [(False, None), (True, best_w)]
    with Session(
        meter=describe_gpus(tmp_path), window=SHORT, batch_size=128
    ) as run:  # another batch is another job
        assert run.caps.search is not None
        assert not run.caps.search.is_done


def test_with_observe_caps_are_tried_and_then_restored(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="energy", window=SHORT, observe=True) as run:
        before_w = run.caps.original_w[0]
        train(run)
        assert run.gpus[0].cap_w() == before_w
        assert run.caps.saves is not None
        assert run.caps.saves > 0.05


def test_without_permission_to_set_caps_one_warning_is_given_and_training_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(meter=describe_gpus(tmp_path, denied="yes"), window=SHORT) as run:
        train(run, epochs=2)
        assert run.caps.search is None
        assert run.energy_j is not None
        assert run.position.steps == 400
    errors = capsys.readouterr().err
    assert errors.count("observed only") == 1


def test_without_a_meter_energy_is_none_and_not_zero(tmp_path: Path) -> None:
    with Session(meter="none") as run:
        train(run)
        assert run.energy_j is None
        assert run.position.steps == 200


def test_training_continues_after_a_gpu_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Session(meter=describe_gpus(tmp_path, 2, lost="30"), window=SHORT) as run:
        train(run)
        assert run.position.steps == 200
        assert run.energy_j is not None
    assert "lost" in capsys.readouterr().err


def test_two_sessions_on_one_gpu_do_not_count_its_energy_twice(tmp_path: Path) -> None:
    meter = open_meter(describe_gpus(tmp_path))
    with Session(meter=describe_gpus(tmp_path), aim="none") as first:
        pid = os.fork()
        if pid == 0:  # another process on the same GPU
            with Session(meter=describe_gpus(tmp_path), aim="none") as second:
                train(second, steps=20)
                os._exit(0 if second.energy_j is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        train(first, steps=20)
        assert first.energy_j == pytest.approx(meter.gpus[0].energy_j(), rel=1e-6)


@pytest.mark.slow
def test_the_requested_cap_is_set_or_the_nearest_in_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for requested, set_w in (("150", 150.0), ("20", 100.0)):
        monkeypatch.setenv("WATTLINE_POWER_LIMIT_W", requested)
        with Session(meter=describe_gpus(tmp_path)) as run:
            assert run.gpus[0].cap_w() == set_w
            assert run.caps.search is None
    assert "a cap of 20 W is outside 100 to 300 W" in capsys.readouterr().err


def test_the_target_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_TARGET", "accuracy>=0.6")
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        for epoch in run.epochs(50):
            for _ in run.steps([BATCH] * 3):
                pass
            run.report(accuracy=0.1 * epoch)
        assert run.reached
        assert run.position.epoch == 7
    with (
        pytest.raises(ConfigError, match=r"report got loss, expected accuracy"),
        Session(meter="none") as run,
    ):
        run.report(loss=1.0)


def test_a_run_over_its_cost_bound_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        train(run, epochs=3)
        whole_j = run.cost_j
    monkeypatch.setenv("WATTLINE_MAX_COST_J", str(0.4 * whole_j))
    with Session(meter=describe_gpus(tmp_path / "b"), aim="none") as run:
        train(run, epochs=3)
        assert run.stopped == "cost bound"
        assert 0.4 * whole_j < run.cost_j < 0.6 * whole_j


def test_a_job_asked_to_yield_saves_and_resumes_at_the_same_step(tmp_path: Path) -> None:
    seen: list[int] = []
    state: dict[str, int] = {"at": 0}

    def save(path: Path) -> None:
        path.write_text(json.dumps(state))

    def load(path: Path) -> None:
        state.update(json.loads(path.read_text()))

    def run_until(stop_at: int) -> Session:
        with Session(
            meter=describe_gpus(tmp_path), aim="none", save=save, load=load, checkpoints=tmp_path / "c"
        ) as run:
            for _ in run.epochs(3):
                for batch in run.steps([np.full((64, 1), k) for k in range(10)]):
                    seen.append(int(batch[0, 0]))
                    state["at"] += 1
                    if state["at"] == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                run.report(loss=0.0)
        return run

    with pytest.raises(SystemExit) as ended:
        run_until(stop_at=14)
    assert ended.value.code == 75
    assert seen == [*range(10), *range(4)]
    state["at"] = -1  # a new process starts without the state
    run = run_until(stop_at=-5)
    assert run.resumed
    assert seen == [*range(10)] * 3
    assert state["at"] == 30
    assert run.position.steps == 30


def test_energy_and_time_continue_after_a_restart(tmp_path: Path) -> None:
    meter = open_meter(describe_gpus(tmp_path))
    for epochs in (1, 2):
        with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c") as run:
            train(run, epochs=epochs, steps=20)
    assert run.energy_j == pytest.approx(meter.gpus[0].energy_j(), rel=1e-6)
    assert run.seconds == pytest.approx(meter.now_s(), rel=1e-6)


def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        path.write_text("whole")
        if run.position.epoch == 2:
            raise OSError("No space left on device")

    with (
        pytest.raises(OSError, match="No space"),
        Session(meter=describe_gpus(tmp_path), aim="none", save=save, checkpoints=tmp_path / "c") as run,
    ):
        train(run, epochs=3, steps=5)
    with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c") as again:
        assert again.position.epoch == 1


def test_a_broken_checkpoint_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c") as run:
        train(run, steps=5)
    state = next((tmp_path / "c").glob("*/wattline.json"))
    state.write_text("{")
    with pytest.raises(InputError, match=r"wattline.json: not a checkpoint"):
        Session(meter=describe_gpus(tmp_path), checkpoints=tmp_path / "c").__enter__()


@pytest.mark.slow
def test_a_recurring_job_converges_to_a_cheap_batch_size(tmp_path: Path) -> None:
    epochs_needed = {16: 14, 32: 10, 64: 6, 128: 5, 256: 9, 512: 1000}  # epochs to the target
    meter, chosen = f"simulated:1xv100,model=resnet50,time=virtual,state={tmp_path / 'gpus'}", []
    for _ in range(14):
        with Session(
            meter=meter,
            group="nightly",
            batch_size=32,
            batch_sizes=tuple(epochs_needed),
            target="accuracy>=1",
            aim="none",
        ) as run:
            chosen.append(run.batch_size)
            for epoch in run.epochs(40):
                for _ in run.steps([np.zeros((run.batch_size, 1))] * (4096 // run.batch_size)):
                    pass
                run.report(accuracy=(epoch + 1) / epochs_needed[run.batch_size])
    assert chosen[0] == 32
    assert set(chosen[-4:]) <= {64, 128}
    # A batch size that does not converge is stopped early.
    with RunHistory.open() as memory:
        assert all(run.epochs < 20 for run in memory.runs("nightly", "v100") if run.batch == 512)


def test_batch_sizes_need_a_group_and_the_default_among_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_sizes are given without a group"):
        Session(meter="none", batch_sizes=(1, 2))
    with pytest.raises(ConfigError, match="batch_size is 3, expected one of batch_sizes"):
        Session(meter="none", batch_sizes=(1, 2), batch_size=3, group="g").__enter__()


@pytest.mark.slow
def test_progress_events_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("WATTLINE_JOB_ID", "j7")
    with Session(meter=describe_gpus(tmp_path), window=SHORT) as run:
        train(run)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "began"
    assert lines[0]["method"] == "simulated"
    assert {"progress", "cap", "report"} <= {line["event"] for line in lines}
    assert lines[-1]["event"] == "ended"
    assert lines[-1]["steps"] == 200
    assert {line["job"] for line in lines} == {"j7"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BATCH_SIZE", "many", "WATTLINE_BATCH_SIZE is 'many', expected a number above 0"),
        ("BATCH_SIZE", "3.5", "expected a whole number"),
        ("POWER_LIMIT_W", "-3", "WATTLINE_POWER_LIMIT_W is '-3'"),
        ("TARGET", "accuracy", "target is 'accuracy', expected METRIC>=VALUE"),
        ("OBSERVE", "perhaps", "WATTLINE_OBSERVE is 'perhaps'"),
        ("SIGNAL", "SIGKILL", "WATTLINE_SIGNAL is 'SIGKILL'"),
        ("SIGNAL", "SIGWOW", "WATTLINE_SIGNAL is 'SIGWOW'"),
    ],
)
def test_an_invalid_variable_is_an_error_that_names_it(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobEnvironment.read({f"WATTLINE_{name}": value})


def test_targets_may_be_upper_or_lower_bounds() -> None:
    assert Target.parse("wer <= 40").is_reached(39.0)
    assert not Target.parse("acc>=0.6").is_reached(0.59)
    assert Target.parse("wer<=40").select_better(41.0, 43.0) == 41.0


def test_samples_of_batches_of_any_type_are_counted(tmp_path: Path) -> None:
    shapes: list[Any] = [BATCH, (BATCH, 1), [BATCH[:10]], {"x": BATCH[:2]}, "text", ()]
    with Session(meter="none") as run:
        for _ in run.epochs(1):
            for _ in run.steps(shapes):
                pass
        assert run.position.samples == 64 + 64 + 10 + 2


def test_a_history_that_is_not_a_database_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "memory.db").write_text("this is no database, and long enough to be seen as none" * 30)
    with pytest.raises(ConfigError, match=r"memory.db: is not a run history of wattline"):
        Session(meter="none", memory=tmp_path / "memory.db").__enter__()


def stop_at(step: int, epochs: int, steps: int, **more: Any) -> Session:
    """Train, and send SIGTERM in that step."""
    with Session(aim="none", **more) as run:
        for _ in run.epochs(epochs):
            for _ in run.steps([BATCH] * steps):
                if run.position.steps + 1 == step:
                    os.kill(os.getpid(), signal.SIGTERM)
            run.report(loss=1.0)
    return run


def test_a_job_asked_to_yield_in_the_last_step_exits_between_epochs(tmp_path: Path) -> None:
    more = {"meter": describe_gpus(tmp_path), "checkpoints": tmp_path / "c"}
    with pytest.raises(SystemExit):
        stop_at(5, 3, 5, **more)
    run = stop_at(-1, 3, 5, **more)
    assert run.resumed
    assert run.position.steps == 15
    with pytest.raises(SystemExit):
        stop_at(3, 1, 5, **{**more, "checkpoints": tmp_path / "d"})
    assert stop_at(
        5, 1, 5, **{**more, "checkpoints": tmp_path / "e"}
    ).position.over  # there was no epoch left


def test_the_batch_at_which_the_user_leaves_the_loop_counts(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        for _ in run.epochs(2):
            for number, _ in enumerate(run.steps([BATCH] * 10)):
                if number == 3:
                    break
    assert run.position.steps == 8
    assert run.position.epoch == 2


def test_only_the_first_loop_of_an_epoch_counts(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="none") as run:
        for _ in run.epochs(2):
            for _ in run.steps([BATCH] * 3):
                pass
            assert len(list(run.steps([BATCH] * 7))) == 7
    assert run.position.steps == 6


def test_the_chosen_batch_size_survives_a_restart(tmp_path: Path) -> None:
    more = {
        "meter": describe_gpus(tmp_path), "checkpoints": tmp_path / "c", "group": "g",
        "batch_sizes": (32, 64, 128), "batch_size": 64,
    }  # fmt: skip
    with RunHistory.open() as memory:  # 64 needs many epochs, so that another is tried next
        memory.add_run("g", "v100", batch=64, reached=True, seconds=100.0, joules=20_000.0, epochs=40)
    with pytest.raises(SystemExit):
        stop_at(3, 2, 5, **more)
    with Session(aim="none", **more) as run:  # type: ignore[arg-type]
        chosen = run.batch_size
        train(run, epochs=2, steps=5)
    with RunHistory.open() as memory:
        assert memory.runs("g", "v100")[-1].batch == chosen
        assert memory.pending("g", "v100") == []


@pytest.mark.slow
def test_a_crash_is_not_recorded_and_a_missed_target_does_not_block_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, Any] = {
        "meter": describe_gpus(tmp_path),
        "group": "g",
        "batch_sizes": (32, 64),
        "batch_size": 64,
    }
    with pytest.raises(KeyboardInterrupt), Session(**more):
        raise KeyboardInterrupt
    with RunHistory.open() as memory:
        assert memory.runs("g", "v100") == []
        assert memory.pending("g", "v100") == []
    for _ in range(2):
        with Session(target="accuracy>=0.9", **more) as run:
            for _ in run.epochs(2):
                for _ in run.steps([BATCH] * 3):
                    pass
                run.report(accuracy=0.1)
    assert "did not reach the target yet" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_size_that_runs_out_of_memory_is_recorded_and_another_one_follows(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "meter": describe_gpus(tmp_path), "group": "g", "batch_sizes": (32, 64), "batch_size": 64,
    }  # fmt: skip
    with pytest.raises(MemoryError), Session(**more):
        raise MemoryError
    with RunHistory.open() as memory:
        (run,) = memory.runs("g", "v100")
        assert (run.batch, run.reached, run.epochs) == (64, False, OUT_OF_MEMORY)
    with Session(**more) as session:
        assert session.batch_size == 32


def test_a_reached_target_stays_reached_and_a_recurring_job_starts_again(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "meter": describe_gpus(tmp_path), "checkpoints": tmp_path / "c", "target": "loss<=1", "aim": "none",
    }  # fmt: skip
    for group, steps in (("", 3), ("g", 3)):
        for _ in range(2):
            with Session(group=group, **more) as run:
                train(run, epochs=5, steps=3)
            assert run.position.steps == steps
    assert not run.resumed
    with Session(**{**more, "target": None}) as run:
        train(run, epochs=5, steps=3)
    assert run.position.steps == 3  # the checkpoint says that the target was reached
    assert run.resumed


@pytest.mark.slow
def test_an_epoch_cut_off_by_the_cost_bound_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTLINE_MAX_COST_J", "1500")
    for bound, epoch, steps in (("1500", 0, None), ("1e9", 1, 2000)):
        monkeypatch.setenv("WATTLINE_MAX_COST_J", bound)
        with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c") as run:
            train(run, steps=2000)
        assert run.position.epoch == epoch
        assert steps is None or run.position.steps == steps


def test_a_signal_outside_a_training_loop_has_its_usual_effect(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Session(meter=describe_gpus(tmp_path), aim="none", checkpoints=tmp_path / "c"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_environment_can_disable_caps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_AIM", "none")
    with Session(meter=describe_gpus(tmp_path), aim="energy") as run:
        assert run.caps.search is None


def test_meters_without_caps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "readings.csv"
    path.write_text("at_s,gpu,power_w,energy_j\n0,0,100,0\n1000000,0,100,100000000\n")
    with Session(meter=f"replay:{path}") as run:
        train(run, steps=5)
        assert run.caps.search is None
        assert run.energy_j is not None


def test_training_continues_if_the_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "file" / "state"))
    with Session(meter=describe_gpus(tmp_path)) as run:
        train(run, steps=5)
    assert run.position.steps == 5
    assert "results of this job are not stored" in capsys.readouterr().err


def test_two_running_jobs_cannot_share_a_checkpoint_folder(tmp_path: Path) -> None:
    second = Session(meter="none", checkpoints=tmp_path / "c")
    with (
        Session(meter="none", checkpoints=tmp_path / "c"),
        pytest.raises(ConfigError, match="a running job already writes its checkpoints there"),
    ):
        second.__enter__()


@pytest.mark.slow
def test_another_aim_goes_on_from_the_known_caps_and_other_gpus_do_not(tmp_path: Path) -> None:
    with Session(meter=describe_gpus(tmp_path), aim="time", window=SHORT) as run:
        train(run)
        assert run.caps.search is not None
        measured = run.caps.search.measurements
    with Session(meter=describe_gpus(tmp_path), aim="energy", window=SHORT) as run:
        assert run.caps.search is not None
        assert run.caps.search.measurements == measured
        assert not run.caps.search.is_done
        assert run.gpus[0].cap_w() == measured[-1].cap_w - 25.0
    with Session(meter=describe_gpus(tmp_path / "two", 2), aim="time", window=SHORT) as run:
        assert run.caps.search is not None
        assert run.caps.search.measurements == []
