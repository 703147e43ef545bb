"""Sessions that stop and resume from the checkpoints of their members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.array_jobs import (  # noqa: E402
    RATES,
    PreparedArray,
    Stop,
    assert_checkpoint,
    interrupt,
    net,
    train,
    train_alone,
)
from support.fusion_equality import (  # noqa: E402
    assert_same_state,
    build_members,
    integer_tensor,
    normal_tensor,
)
from wattline import fusion  # noqa: E402
from wattline.errors import InputError, NotFusible  # noqa: E402
from wattline.train.checkpoint import Checkpoints, TrainingPosition  # noqa: E402


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
                    interrupt(stop)(run, run.process.position.steps + 1)
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
    checkpoint_folder.write(TrainingPosition(epoch=1))
    checkpoint_folder.release()
    with pytest.raises(InputError, match="not the state of a member"):
        train(1, checkpoints=tmp_path / "kept")
