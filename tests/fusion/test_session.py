"""Sessions of arrays: each member is a job of its own, independent of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    build_members,
    integer_tensor,
    normal_tensor,
)
from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError, InputError, NotFusible  # noqa: E402
from wattline.train.checkpoint import Checkpoints, Where  # noqa: E402

RATES = [0.01, 0.02, 0.03, 0.04]
STEPS = 4  # of an epoch


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of a surrounding job and use a separate state folder."""
    for name in [name for name in os.environ if name.startswith("WATTLINE_") and name != "WATTLINE_DATA"]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTLINE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("wattline.meter.caps.guard._told", set())
    monkeypatch.setattr(
        "wattline.fusion.session._CANCEL_POLL_S", 0.0
    )  # cancelled members leave at the next step


def net() -> nn.Module:
    # A bias before a batch norm has only a rounding error as gradient, which Adam scales to full steps.
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data(epoch: int) -> list[tuple[Tensor, Tensor]]:
    return [
        (normal_tensor(6, 4, seed=9 * epoch + n), integer_tensor(3, 6, seed=9 * epoch + n))
        for n in range(STEPS)
    ]


class PreparedArray:
    """The files and variables that the service prepares for an array, and the files after its run."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, attempt: int = 1) -> None:
        self.root, self.names = tmp_path, [f"job-{index}" for index in range(count)]
        self.attempt = attempt
        for name in self.names:
            self.folder(name).mkdir(parents=True)
        members = [
            {
                "id": name,
                "name": "",
                "folder": str(self.folder(name)),
                "checkpoint": str(self.checkpoint_folder(name)),
                "config": {"lr": lr},
            }
            for name, lr in zip(self.names, RATES, strict=False)
        ]
        lead = self.folder(self.names[0])
        (lead / "members.json").write_text(json.dumps(members))
        self.environment = {
            "WATTLINE_MEMBERS": str(lead / "members.json"),
            "WATTLINE_JOB_ID": self.names[0],
            "WATTLINE_EVENTS": str(lead / "events.jsonl"),
            "WATTLINE_CHECKPOINT_DIR": str(self.checkpoint_folder(self.names[0])),
        }
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    def folder(self, name: str) -> Path:
        return self.root / "jobs" / name / str(self.attempt)

    def checkpoint_folder(self, name: str) -> Path:
        return self.root / "jobs" / name / "checkpoint"

    def position(self, name: str) -> Where | None:
        return Checkpoints(self.checkpoint_folder(name), None, None).read()

    def events(self, name: str) -> list[dict[str, Any]]:
        return lines(self.folder(name) / "events.jsonl")

    def event_names(self, name: str) -> list[str]:
        return [line["event"] for line in self.events(name)]

    def log(self, name: str) -> str:
        return (self.folder(name) / "rank0.log").read_text()

    def cancel(self, name: str) -> None:
        (self.folder(name) / "cancel").touch()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedArray:
    return PreparedArray(tmp_path, monkeypatch, 3)


class Stop(BaseException):
    """Stands for a kill of the process."""


def train(
    count: int = 3,
    epochs: int = 3,
    after_step: Callable[[Any, int], None] = lambda run, step: None,
    rates: list[float] | None = None,
    scheduled: bool = True,
    **options: Any,
) -> tuple[Any, Any]:
    """Train an array as a script would; *after_step* is called with the number of each step."""
    rates = RATES[:count] if rates is None else rates
    chosen = [RATES.index(rate) for rate in rates]
    models = build_members(net, 4)
    array = fusion.fuse([models[index] for index in chosen])
    configs = [{"lr": rate} for rate in rates]
    optimiser = fusion.Adam(array, lr=rates)
    kind = torch.optim.lr_scheduler.StepLR
    parts = [fusion.Schedule(optimiser, kind, step_size=1, gamma=0.7)] if scheduled else []
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False, clip_norm=1.0)
    with fusion.Session(array, configs, optimiser, *parts, **options) as run:
        for epoch in run.epochs(epochs):
            for x, y in run.steps(data(epoch)):
                losses = step(x, y)
                after_step(run, run.process.where.steps + 1)
            run.report(loss=losses)
            for schedule in parts:
                schedule.step()
    return run, array


def train_alone(index: int, steps: int, scheduled: bool = True) -> nn.Module:
    """Train one member by itself with plain PyTorch."""
    model = build_members(net, 4)[index]
    optimiser = torch.optim.Adam(model.parameters(), lr=RATES[index])
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.7 if scheduled else 1.0)
    for number in range(steps):
        x, y = data(number // STEPS)[number % STEPS]
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if number % STEPS == STEPS - 1:
            schedule.step()
    return model


def assert_checkpoint(folder: Path, model: nn.Module) -> None:
    """Assert that the newest checkpoint has the weights of *model*."""
    state = torch.load(max(folder.glob("0*")) / "user", weights_only=False)
    for name, tensor in model.state_dict().items():
        assert_same(state["model"][name], tensor, name)


def interrupt(number: int) -> Callable[[Any, int], None]:
    def after_step(run: Any, step: int) -> None:
        if step == number:
            os.kill(os.getpid(), signal.SIGTERM)

    return after_step


# -- leaving


def test_a_cancelled_member_leaves_before_the_next_step_without_effect_on_the_others(
    three: PreparedArray,
) -> None:
    def after_step(run: Any, step: int) -> None:
        if step == 6:
            three.cancel("job-1")

    run, array = train(after_step=after_step)
    assert run.ids == ["job-0", "job-2"]
    assert [config["lr"] for config in run.configs] == [RATES[0], RATES[2]]
    assert_same_state(array, [train_alone(0, 12), train_alone(2, 12)])
    assert_checkpoint(three.checkpoint_folder("job-1"), train_alone(1, 6))
    last = three.events("job-1")[-1]
    assert (last["event"], last["how"], last["job"], last["steps"]) == ("ended", "cancelled", "job-1", 6)
    position = three.position("job-1")
    assert position is not None
    assert (position.epoch, position.step, position.over) == (1, 2, False)
    assert [three.events(name)[-1]["how"] for name in run.ids] == ["ended", "ended"]


def test_the_leading_member_can_be_cancelled_too(three: PreparedArray) -> None:
    run, array = train(after_step=lambda run, step: three.cancel("job-0") if step == 6 else None)
    assert run.ids == ["job-1", "job-2"]
    assert_same_state(array, [train_alone(1, 12), train_alone(2, 12)])
    assert three.event_names("job-0").count("ended") == 1
    assert three.event_names("job-0")[-1] == "ended"  # no event and no checkpoint after that
    assert_checkpoint(three.checkpoint_folder("job-0"), train_alone(0, 6))
    assert_checkpoint(three.checkpoint_folder("job-1"), train_alone(1, 12))


def test_the_process_exits_with_0_when_all_members_are_cancelled(three: PreparedArray) -> None:
    def after_step(run: Any, step: int) -> None:
        for name in three.names:
            three.cancel(name)

    with pytest.raises(SystemExit) as ended:
        train(after_step=after_step)
    assert ended.value.code == 0
    assert [three.events(name)[-1]["how"] for name in three.names] == ["cancelled"] * 3
    assert_checkpoint(three.checkpoint_folder("job-2"), train_alone(2, 1))


def test_a_finished_member_leaves_with_a_checkpoint(three: PreparedArray) -> None:
    run, array = train(after_step=lambda run, step: run.finish(0) if step == 5 else None)
    assert run.ids == ["job-1", "job-2"]
    assert_same_state(array, [train_alone(1, 12), train_alone(2, 12)])
    assert_checkpoint(three.checkpoint_folder("job-0"), train_alone(0, 5))
    position = three.position("job-0")
    assert position is not None
    assert position.over
    assert three.events("job-0")[-1]["how"] == "reached"


def test_members_at_the_target_leave_after_the_epoch_with_their_schedule(
    three: PreparedArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTLINE_TARGET", "accuracy>=0.6")
    models = build_members(net)
    array = fusion.fuse(models)
    optimiser = fusion.SGD(array, lr=0.1)
    reached = []
    with fusion.Session(array, [{}] * 3, optimiser) as run:
        for epoch in run.epochs(9):
            for _ in run.steps(data(epoch)):
                pass
            good = {"job-0": 0.1, "job-1": 0.2, "job-2": 0.05}
            reached.append(run.report(accuracy=[good[name] * (epoch + 1) for name in run.ids]))
    assert reached[1:3] == [[False, False, False], [False, True, False]]
    assert reached[5] == [True, False]
    assert reached[-1] == [False]  # in the last epoch the accuracy is 0.45
    assert [three.events(name)[-1]["how"] for name in three.names] == ["reached", "reached", "ended"]
    positions = [three.position(name) for name in three.names]
    assert [position.epoch for position in positions if position] == [6, 3, 9]
    assert [position.reached for position in positions if position] == [True, True, False]


def test_the_loop_ends_when_all_members_are_finished() -> None:
    run, _ = train(
        after_step=lambda run, step: [run.finish(0), run.finish(1), run.finish(2)] if step == 6 else None
    )
    assert run.process.where.steps == 6
    assert run.process.reached


def test_a_member_with_nan_loss_continues_without_effect_on_the_others(three: PreparedArray) -> None:
    models = build_members(net, 4)
    with torch.no_grad():
        models[1][0].weight.fill_(float("nan"))
    array = fusion.fuse(models[:3])
    optimiser = fusion.Adam(array, lr=RATES[:3])
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False, clip_norm=1.0)
    with fusion.Session(array, [{}] * 3, optimiser) as run:
        for epoch in run.epochs(3):
            for x, y in run.steps(data(epoch)):
                losses = step(x, y)
            run.report(loss=losses)
    assert len(array) == 3
    assert three.log("job-1").count("loss is nan") == 1
    assert "nan" not in three.log("job-2")
    for index in (0, 2):
        state = array.member_state_dict(index)
        for name, tensor in train_alone(index, 12, scheduled=False).state_dict().items():
            assert_same(state[name], tensor, name)


@pytest.mark.slow
def test_a_compiled_step_a_scaler_and_means_survive_a_member_that_leaves(three: PreparedArray) -> None:
    array = fusion.fuse(build_members(net))
    optimiser, scaler = fusion.Adam(array, lr=RATES[:3]), fusion.Scaler(3, init_scale=[2.0, 4.0, 8.0])
    step = fusion.train_step(array, F.cross_entropy, optimiser, clip_norm=1.0, scaler=scaler)
    with fusion.Session(array, [{}] * 3, optimiser, scaler) as run:
        for epoch in run.epochs(3):
            for x, y in run.steps(data(epoch)):
                run.add(loss=step(x, y))
                if run.process.where.steps == 5:
                    three.cancel("job-0")
            run.report()
    assert run.ids == ["job-1", "job-2"]
    assert scaler.scales.tolist() == [4.0, 8.0]
    assert_same_state(array, [train_alone(index, 12, scheduled=False) for index in (1, 2)], 1e-8)
    assert [len(line["metrics"]) for line in three.events("job-1") if line["event"] == "report"] == [1] * 3


# -- events and logs


def test_each_member_has_its_own_events_and_log(
    three: PreparedArray, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = f"simulated:1xv100,model=resnet50,batch=64,time=virtual,state={three.root / 'gpus'}"
    run, _ = train(meter=meter, aim="none", after_step=lambda run, step: run.finish(0) if step == 8 else None)
    for index, name in enumerate(three.names):
        events = three.events(name)
        assert {line["job"] for line in events} == {name}
        assert events[0]["event"] == "began"
        reports = [line for line in events if line["event"] == "report"]
        assert [line["epoch"] for line in reports] == ([0, 1] if index == 0 else [0, 1, 2])
        assert all(isinstance(line["metrics"]["loss"], float) for line in reports)
        assert 0 < reports[0]["fraction"] <= 1 / 3
    losses = {
        three.events(name)[1]["metrics"]["loss"] for name in three.names if len(three.event_names(name)) > 1
    }
    assert len(losses) == 3
    used = [three.events(name)[-1]["joules"] for name in three.names]
    assert used[1] == pytest.approx(used[2])
    assert used[0] == pytest.approx(run.process.energy_j * 8 / 12 / 3, rel=0.05)  # a third of eight steps
    assert sum(used) == pytest.approx(run.process.energy_j)
    assert "epoch 2  loss 0." in three.log("job-1") or "epoch 2  loss 1." in three.log("job-1")
    assert three.log("job-1").startswith("starts, member 1 of 3\n")
    assert "ended at epoch 3, step 0" in three.log("job-1")
    assert not (
        three.folder("job-0") / "rank0.log"
    ).exists()  # the engine captures the output of the process there
    out = capsys.readouterr().out
    assert out.count("epoch ") >= 2
    assert "reached its target at epoch 2, step 0" in out


def test_a_failing_script_writes_failed_events_of_all_unfinished_members(three: PreparedArray) -> None:
    def after_step(run: Any, step: int) -> None:
        if step == 3:
            run.finish(1)
        if step == 6:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(after_step=after_step)
    assert three.events("job-1")[-1]["how"] == "reached"
    for name in ("job-0", "job-2"):
        last = three.events(name)[-1]
        assert (last["event"], last["how"]) == ("failed", "failed")
    assert "failed at epoch 1, step 2" in three.log("job-2")


def test_training_continues_without_a_log_that_cannot_be_written(
    three: PreparedArray, capsys: pytest.CaptureFixture[str]
) -> None:
    (three.folder("job-1") / "rank0.log").mkdir()
    train(epochs=1)
    assert capsys.readouterr().err.count("cannot write the log of a member") == 1


# -- resuming


def test_a_stopped_array_resumes_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PreparedArray(tmp_path, monkeypatch, 3)
    with pytest.raises(SystemExit) as ended:
        train(after_step=interrupt(6))
    assert ended.value.code == 75
    assert [first.event_names(name)[-1] for name in first.names] == ["yielded"] * 3
    second = PreparedArray(tmp_path, monkeypatch, 3, attempt=2)
    run, array = train()
    assert run.resumed
    assert_same_state(array, [train_alone(index, 12) for index in range(3)])
    assert second.log("job-1").startswith("resumes at epoch 1, step 2, member 1 of 3\n")
    assert second.events("job-1")[-1]["steps"] == 12


def test_a_member_resumes_alone_from_the_checkpoint_of_an_array_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedArray(tmp_path, monkeypatch, 3)
    with pytest.raises(SystemExit):
        train(after_step=interrupt(3))
    for name in prepared.environment:
        monkeypatch.delenv(name)
    for index, name in enumerate(prepared.names):
        monkeypatch.setenv("WATTLINE_CHECKPOINT_DIR", str(prepared.checkpoint_folder(name)))
        with pytest.raises(SystemExit):
            train(rates=[RATES[index]], after_step=interrupt(7))
        assert_checkpoint(prepared.checkpoint_folder(name), train_alone(index, 7))
    PreparedArray(tmp_path, monkeypatch, 3, attempt=2)
    _, array = train()
    assert_same_state(array, [train_alone(index, 12) for index in range(3)])


def test_an_ordinary_optimiser_loads_the_checkpoint_of_a_member(three: PreparedArray) -> None:
    train(epochs=1)
    state = torch.load(max(three.checkpoint_folder("job-1").glob("0*")) / "user", weights_only=False)
    model = net().double()
    model.load_state_dict(state["model"])
    torch.optim.Adam(model.parameters()).load_state_dict(state["optimiser"])


def test_members_at_different_steps_cannot_resume_as_one_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedArray(tmp_path, monkeypatch, 2)
    for name in prepared.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WATTLINE_CHECKPOINT_DIR", str(prepared.checkpoint_folder("job-1")))
    with pytest.raises(SystemExit):
        train(rates=[RATES[1]], after_step=interrupt(6))
    PreparedArray(tmp_path, monkeypatch, 2, attempt=2)
    with pytest.raises(NotFusible, match="job-0 at the beginning, job-1 at epoch 1, step 2"):
        train(2)
    assert prepared.position("job-1") is not None  # the checkpoint is unchanged


def test_finished_members_may_be_at_another_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PreparedArray(tmp_path, monkeypatch, 3)

    def after_step(run: Any, step: int) -> None:
        if step == 3:
            run.finish(0)
        interrupt(6)(run, step)

    with pytest.raises(SystemExit):
        train(after_step=after_step)
    again = PreparedArray(tmp_path, monkeypatch, 3, attempt=2)
    run, array = train()
    assert run.ids == ["job-1", "job-2"]
    assert again.event_names("job-0") == ["began", "ended"]
    assert_same_state(array, [train_alone(1, 12), train_alone(2, 12)])
    assert_checkpoint(again.checkpoint_folder("job-0"), train_alone(0, 3))


def test_an_array_killed_while_saving_resumes_from_the_last_common_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PreparedArray(tmp_path, monkeypatch, 3)
    commit, commits = fusion.checkpoints.MemberCheckpoints.commit, [0]

    def commit_or_stop(folder: Any) -> None:
        commits[0] += 1
        if commits[0] == 5:  # the second member at the second save
            raise Stop
        commit(folder)

    monkeypatch.setattr(fusion.checkpoints.MemberCheckpoints, "commit", commit_or_stop)
    with pytest.raises(Stop):
        train()
    monkeypatch.setattr(fusion.checkpoints.MemberCheckpoints, "commit", commit)
    again = PreparedArray(tmp_path, monkeypatch, 3, attempt=2)
    _, array = train()
    assert again.log("job-1").startswith("resumes at epoch 1, step 0")
    assert_same_state(array, [train_alone(index, 12) for index in range(3)])


def test_random_numbers_and_the_order_of_a_loader_are_resumed(tmp_path: Path) -> None:
    xs, ys = normal_tensor(24, 4), integer_tensor(3, 24)

    def weights(folder: str, stop: int) -> Tensor:
        torch.manual_seed(3)
        array = fusion.fuse(
            build_members(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), 2)
        )
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(xs, ys), 4, shuffle=True)
        optimiser = fusion.SGD(array, lr=0.1, momentum=0.9)
        torch.manual_seed(4)
        with fusion.Session(array, [{}, {}], optimiser, checkpoints=tmp_path / folder) as run:
            for _ in run.epochs(3):
                for x, y in run.steps(loader):
                    optimiser.zero_grad()
                    array.loss(F.cross_entropy, array(x), y).sum().backward()
                    optimiser.step()
                    interrupt(stop)(run, run.process.where.steps + 1)
        return torch.cat([tensor.flatten() for tensor in array.stacked.values()]).detach()

    whole_way = weights("a", 0)
    for stop in (9, 12):
        with pytest.raises(SystemExit):
            weights(f"b{stop}", stop)
        torch.rand(17)
        assert torch.equal(weights(f"b{stop}", 0), whole_way)


@pytest.mark.parametrize("bad", [b"", b"nonsense"])
def test_a_checkpoint_that_is_not_of_a_member_is_refused_with_its_path(tmp_path: Path, bad: bytes) -> None:
    checkpoint_folder = Checkpoints(tmp_path / "kept", lambda path: path.write_bytes(bad), None)
    checkpoint_folder.claim()
    checkpoint_folder.write(Where(epoch=1))
    checkpoint_folder.release()
    with pytest.raises(InputError, match="not the state of a member"):
        train(1, checkpoints=tmp_path / "kept")


# -- without a service


def test_without_a_service_members_are_numbered_and_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run, array = train()
    assert run.ids == ["0", "1", "2"]
    assert_same_state(array, [train_alone(index, 12) for index in range(3)])
    assert list((tmp_path / "here").iterdir()) == []
    assert capsys.readouterr().out == ""


def test_one_member_is_an_ordinary_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTLINE_JOB_ID", "sweep-7")
    monkeypatch.setenv("WATTLINE_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("WATTLINE_CHECKPOINT_DIR", str(tmp_path / "kept"))
    _, array = train(1)
    assert_same_state(array, [train_alone(0, 12)])
    events = lines(tmp_path / "events.jsonl")
    assert {line["job"] for line in events} == {"sweep-7"}
    assert events[-1]["how"] == "ended"
    assert set(events[1]["metrics"]) == {"loss"}
    assert "epoch 2  loss " in capsys.readouterr().out
    position = Checkpoints(tmp_path / "kept", None, None).read()
    assert position is not None
    assert (position.epoch, position.over) == (3, True)


def test_several_members_of_one_job_share_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_EVENTS", str(tmp_path / "events.jsonl"))
    train(2, checkpoints=tmp_path / "kept", after_step=lambda run, step: run.finish(0) if step == 5 else None)
    events = [line["event"] for line in lines(tmp_path / "events.jsonl") if line["event"] != "progress"]
    assert events == ["began", "report", "left", "report", "report", "ended"]
    metrics = [line["metrics"] for line in lines(tmp_path / "events.jsonl") if line["event"] == "report"]
    assert [list(each) for each in metrics] == [["loss.0", "loss.1"], ["loss.1"], ["loss.1"]]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["member0", "member1"]


def test_several_arrays_are_saved_and_shrink_together(tmp_path: Path) -> None:
    def gan(stop: int) -> tuple[Any, Any]:
        one, two = fusion.fuse(build_members(net)), fusion.fuse(build_members(lambda: nn.Linear(3, 3)))
        first, second = fusion.Adam(one, lr=RATES[:3]), fusion.SGD(two, lr=RATES[:3])
        with fusion.Session(one, [{}] * 3, first, two, second, checkpoints=tmp_path) as run:
            for epoch in run.epochs(2):
                for x, y in run.steps(data(epoch)):
                    out = two(one(x), members=True)
                    first.zero_grad()
                    second.zero_grad()
                    two.loss(F.cross_entropy, out, y).sum().backward()
                    first.step()
                    second.step()
                    interrupt(stop)(run, run.process.where.steps + 1)
                    if run.process.where.steps == 6:
                        run.finish(0)
        return one, two

    with pytest.raises(SystemExit):
        gan(5)
    ours = gan(0)
    assert [len(array) for array in ours] == [2, 2]
    heads = build_members(lambda: nn.Linear(3, 3))
    models = [nn.Sequential(body, head) for body, head in zip(build_members(net), heads, strict=True)]
    for index in (1, 2):
        model = models[index]
        made = [
            torch.optim.Adam(model[0].parameters(), lr=RATES[index]),
            torch.optim.SGD(model[1].parameters(), lr=RATES[index]),
        ]
        for number in range(2 * STEPS):
            x, y = data(number // STEPS)[number % STEPS]
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for optimiser in made:
                optimiser.step()
        for part, array in zip(model, ours, strict=True):
            for name, tensor in part.state_dict().items():
                assert_same(array.member_state_dict(index - 1)[name], tensor, name)


def test_wrong_use_is_refused_with_the_reason(
    three: PreparedArray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    array = fusion.fuse(build_members(net))
    with pytest.raises(ConfigError, match="got 2 configs, expected 3"):
        fusion.Session(array, [{}, {}])
    with pytest.raises(ConfigError, match="save is not supported for arrays"):
        fusion.Session(array, [{}] * 3, save=print)
    with pytest.raises(ConfigError, match="cannot be checkpointed"):
        fusion.Session(array, [{}] * 3, object())
    with fusion.Session(array, [{}] * 3) as run:
        with pytest.raises(ConfigError, match=r"loss has the shape \[2\], expected one value or 3"):
            run.report(loss=[1.0, 2.0])
        with pytest.raises(NotFusible, match="no member 3"):
            run.finish(3)
    with pytest.raises(ConfigError, match="names 3 members, the array has 2"):
        fusion.Session(fusion.fuse(build_members(net, 2)), [{}] * 2)
    (tmp_path / "bad.json").write_text('{"a": 1}')
    monkeypatch.setenv("WATTLINE_MEMBERS", str(tmp_path / "bad.json"))
    with pytest.raises(ConfigError, match="not a list of members"):
        fusion.Session(array, [{}] * 3)


# -- real processes

SCRIPT = """
import sys, time
import torch
import torch.nn.functional as F
from torch import nn
from wattline import fusion

def build(config):
    torch.manual_seed(config["seed"])
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

def batches(epoch):
    g = torch.Generator().manual_seed(epoch)
    return [
        (torch.randn(6, 4, generator=g, dtype=torch.float64), torch.randint(3, (6,), generator=g))
        for _ in range(20)
    ]

def train(array, configs):
    optimiser = fusion.Adam(array, lr=[c["lr"] for c in configs])
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
    with fusion.Session(array, configs, optimiser) as run:
        for epoch in run.epochs(3):
            for x, y in run.steps(batches(epoch)):
                losses = step(x, y)
                print("stepped", flush=True)
                time.sleep(PAUSE)
            run.report(loss=losses)

fusion.main(build, train)
"""


def start(prepared: PreparedArray, pause_s: float, *arguments: str, **more: str) -> subprocess.Popen[str]:
    script = prepared.root / "train.py"
    script.write_text(SCRIPT.replace("PAUSE", str(pause_s)))
    keep = {name: value for name, value in os.environ.items() if not name.startswith("WATTLINE_")}
    job_environment = more or prepared.environment
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={
            **keep,
            **job_environment,
            "WATTLINE_STATE": str(prepared.root / "state"),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_exit(job: subprocess.Popen[str]) -> int:
    job.communicate(timeout=120)
    return job.returncode


def wait_for_line(lines: Iterable[str] | None, word: str) -> None:
    assert lines is not None
    assert any(line.startswith(word) for line in lines)


def saved_models(prepared: PreparedArray) -> list[dict[str, Tensor]]:
    newest = [max(prepared.checkpoint_folder(name).glob("0*")) / "user" for name in prepared.names]
    return [torch.load(path, weights_only=False)["model"] for path in newest]


@pytest.mark.slow
def test_stopped_and_restarted_processes_end_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["lr=0.01,0.02", "seed=1"]
    undisturbed = PreparedArray(tmp_path / "whole", monkeypatch, 2)
    assert wait_for_exit(start(undisturbed, 0.0, *arguments)) == 0
    prepared = PreparedArray(tmp_path / "stopped", monkeypatch, 2)
    job = start(prepared, 0.05, *arguments)
    wait_for_line(job.stdout, "stepped")
    job.terminate()
    assert wait_for_exit(job) == 75
    assert [prepared.event_names(name)[-1] for name in prepared.names] == ["yielded"] * 2
    second = PreparedArray(tmp_path / "stopped", monkeypatch, 2, attempt=2)
    assert wait_for_exit(start(second, 0.0, *arguments)) == 0
    for ours, theirs in zip(saved_models(second), saved_models(undisturbed), strict=True):
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), name


@pytest.mark.slow
def test_one_member_is_cancelled_from_outside_and_the_other_resumes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedArray(tmp_path, monkeypatch, 2)
    job = start(prepared, 0.1, "lr=0.01,0.02", "seed=1")
    wait_for_line(job.stdout, "stepped")
    prepared.cancel("job-0")  # the leading member
    for _ in range(600):
        if prepared.event_names("job-0")[-1:] == ["ended"]:
            break
        time.sleep(0.05)
    assert prepared.events("job-0")[-1]["how"] == "cancelled"
    job.terminate()
    assert wait_for_exit(job) == 75
    assert prepared.event_names("job-1")[-1] == "yielded"
    alone = {"WATTLINE_CHECKPOINT_DIR": str(prepared.checkpoint_folder("job-1"))}
    assert wait_for_exit(start(prepared, 0.0, "lr=0.02", "seed=1", **alone)) == 0
    whole = {"WATTLINE_CHECKPOINT_DIR": str(tmp_path / "whole")}
    assert wait_for_exit(start(prepared, 0.0, "lr=0.02", "seed=1", **whole)) == 0
    theirs = torch.load(max((tmp_path / "whole").glob("0*")) / "user", weights_only=False)["model"]
    for name, tensor in theirs.items():
        assert_same(saved_models(prepared)[1][name], tensor, name)
