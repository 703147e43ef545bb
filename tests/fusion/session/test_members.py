"""Members of a session: leaving, events, logs, and runs without a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from support.array_jobs import (  # noqa: E402
    RATES,
    STEPS,
    PreparedArray,
    assert_checkpoint,
    data,
    interrupt,
    lines,
    net,
    train,
    train_alone,
)
from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    build_members,
)
from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError, NotFusible  # noqa: E402
from wattline.train.checkpoint import Checkpoints  # noqa: E402

# -- leaving


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_loop_ends_when_all_members_are_finished() -> None:
    run, _ = train(
        after_step=lambda run, step: [run.finish(0), run.finish(1), run.finish(2)] if step == 6 else None
    )
    assert run.process.position.steps == 6
    assert run.process.reached


@pytest.mark.slow
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
                if run.process.position.steps == 5:
                    three.cancel("job-0")
            run.report()
    assert run.ids == ["job-1", "job-2"]
    assert scaler.scales.tolist() == [4.0, 8.0]
    assert_same_state(array, [train_alone(index, 12, scheduled=False) for index in (1, 2)], 1e-8)
    assert [len(line["metrics"]) for line in three.events("job-1") if line["event"] == "report"] == [1] * 3


# -- events and logs


@pytest.mark.slow
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


# -- without a service


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_several_members_of_one_job_share_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_EVENTS", str(tmp_path / "events.jsonl"))
    train(2, checkpoints=tmp_path / "kept", after_step=lambda run, step: run.finish(0) if step == 5 else None)
    events = [line["event"] for line in lines(tmp_path / "events.jsonl") if line["event"] != "progress"]
    assert events == ["began", "report", "saved", "left", "report", "saved", "report", "saved", "ended"]
    metrics = [line["metrics"] for line in lines(tmp_path / "events.jsonl") if line["event"] == "report"]
    assert [list(each) for each in metrics] == [["loss.0", "loss.1"], ["loss.1"], ["loss.1"]]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["member0", "member1"]


@pytest.mark.slow
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
                    interrupt(stop)(run, run.process.position.steps + 1)
                    if run.process.position.steps == 6:
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
