"""Checkpoints of the members of an array: one folder per member, all written at the same step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wattline.errors import ConfigError, InputError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.optim.schedule import Schedule
from wattline.fusion.rng_state import RngState
from wattline.meter.caps.record import fsync_path
from wattline.train.checkpoint import STATE_FILE, USER_STATE, Checkpoints, TrainingPosition

if TYPE_CHECKING:
    from wattline.fusion.member import Member


class MemberStates:
    """The state of single members across all *parts* of a training run; the array is the first part.

    Arrays, optimisers, schedules and scalers are split by member. Any other object with `state_dict` and
    `load_state_dict` is saved whole with every member.
    """

    def __init__(self, parts: Sequence[Any], rng: RngState) -> None:
        for part in parts:
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise ConfigError(
                    f"{part!r} cannot be checkpointed, expected methods state_dict and load_state_dict"
                )
        optimisers = [part for part in parts if isinstance(part, ArrayOptimizer)]
        self._array = parts[0]
        self._optimiser = optimisers[0] if optimisers else None
        self._others = [part for part in parts[1:] if part is not self._optimiser]
        self._rng = rng

    def member_state(self, member: int) -> dict[str, Any]:
        """Return the state of one member."""
        return {
            "model": self._array.member_state_dict(member),
            "optimiser": None if self._optimiser is None else self._optimiser.member_state_dict(member),
            "extra": {
                "parts": [_state(part, member) for part in self._others],
                "chance": self._rng.state(),
            },
        }

    def load(self, member: int, path: Path, is_leader: bool) -> None:
        """Load one member's state from a file; parts that are not split by member come from the leader."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=False)
            model, optimiser, extra = state["model"], state["optimiser"], state["extra"]
            saved, rng = extra["parts"], extra["chance"]
        except Exception as error:
            raise InputError(
                f"{path}: not the state of a member ({error!r}), expected a file of fusion.Session"
            ) from None
        kinds = [type(part).__name__ for part in self._others]
        if len(saved) != len(kinds) or (optimiser is None) != (self._optimiser is None):
            raise ConfigError(f"{path}: was saved with other parts than the session has now: {kinds}")
        self._array.load_member(member, model)
        if self._optimiser is not None:
            self._optimiser.load_member(member, optimiser)
        for part, own in zip(self._others, saved, strict=True):
            _load(part, member, own, is_leader)
        if is_leader:
            self._rng.load(rng)


class MemberCheckpoints(Checkpoints):
    """The checkpoints of one member, in the format of `train.checkpoint`.

    They are written in three phases, and all members finish a phase before any starts the next: a process
    killed in between leaves a step of which all members have a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, None)
        self.resume_from: Path | None = None  # the checkpoint to resume from
        self._new = self.folder / f".new-{os.getpid()}"
        self._old: list[Path] = []

    def prepare(self, position: TrainingPosition, state: dict[str, Any]) -> None:
        """Write a checkpoint that is not valid yet."""
        for leftover in self.folder.glob(".new-*"):  # of a process that was killed while writing
            shutil.rmtree(leftover, ignore_errors=True)
        self._new.mkdir()
        torch.save(state, self._new / USER_STATE)
        (self._new / STATE_FILE).write_text(json.dumps(asdict(position)), encoding="utf-8")
        for path in (*self._new.iterdir(), self._new):
            fsync_path(path)

    def commit(self) -> None:
        """Make the prepared checkpoint valid."""
        self._old = self._list_checkpoints()
        last = int(self._old[-1].name) if self._old else 0
        self._new.rename(self.folder / f"{1 + last:08d}")
        fsync_path(self.folder)

    def remove_old(self) -> None:
        """Remove the checkpoints before the newest one."""
        for path in self._old:
            shutil.rmtree(path, ignore_errors=True)

    def read_all(self) -> dict[tuple[int, int], tuple[TrainingPosition, Path]]:
        """Return the existing checkpoints by epoch and step, the newest last."""
        checkpoints: dict[tuple[int, int], tuple[TrainingPosition, Path]] = {}
        for path in self._list_checkpoints():
            try:
                values = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
                position = TrainingPosition.from_values(values)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path / STATE_FILE}: not a checkpoint ({error!r}), expected a file written by wattline",
                    hint=f"remove {path} to start from an older one, or from the beginning",
                ) from None
            checkpoints.pop((position.epoch, position.step), None)
            checkpoints[position.epoch, position.step] = position, path
        return checkpoints


class ArrayCheckpoints:
    """The checkpoints of all *members*, with the interface of `train.checkpoint.Checkpoints`.

    *positions* returns the current position of each member. With *restart_finished*, members that have ended
    start again from the beginning.
    """

    def __init__(
        self,
        members: list[Member],
        folders: Mapping[str, Path],
        states: MemberStates,
        positions: Callable[[], list[TrainingPosition]],
        restart_finished: bool,
    ) -> None:
        self._members, self._states, self._positions, self._restart_finished = (
            members,
            states,
            positions,
            restart_finished,
        )
        self._folders = {member: MemberCheckpoints(folder) for member, folder in folders.items()}

    @property
    def has_state(self) -> bool:
        """True: the checkpoint of a member always contains its weights and its optimiser."""
        return True

    def claim(self, wait_s: float = 0.0) -> None:
        """Lock the folders for this process; wait up to *wait_s* for another one to leave each."""
        try:
            for folder in self._folders.values():
                folder.claim(wait_s)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the folders."""
        for folder in self._folders.values():
            folder.release()

    def write(self, position: TrainingPosition) -> None:
        """Write checkpoints of all members, or of none."""
        self.write_members(self._members)

    def write_members(self, members: Sequence[Member]) -> None:
        """Write checkpoints of *members*."""
        positions = self._positions()
        for index, (member, position) in enumerate(zip(self._members, positions, strict=True)):
            if member in members:
                self._folders[member.id].prepare(position, self._states.member_state(index))
        written = [self._folders[member.id] for member in members]
        for folder in written:
            folder.commit()
        for folder in written:
            folder.remove_old()

    def read(self) -> TrainingPosition | None:
        """Return the newest position of which all members have a checkpoint; None if there are none.

        Raise `NotFusible` if the members are at different steps. Members that have reached their target may
        be at another step.
        """
        checkpoints = [self._folders[member.id].read_all() for member in self._members]
        if self._restart_finished:
            checkpoints = [
                {} if any(position.over for position, _ in own.values()) else own for own in checkpoints
            ]
        reached = [bool(own) and list(own.values())[-1][0].reached for own in checkpoints]
        unfinished = [set(own) for own, over in zip(checkpoints, reached, strict=True) if not over]
        if not any(checkpoints):
            return None
        common = set.intersection(*unfinished) if unfinished else set()
        if not common and any(unfinished):
            raise NotFusible(
                f"members at different steps cannot resume as one array: {self._list_positions(checkpoints)}",
                "run them one by one, or remove the checkpoints of members that shall start again",
            )
        for member, own, over in zip(self._members, checkpoints, reached, strict=True):
            if not over and not common:
                continue  # it starts from the beginning; only other members have finished
            position, path = list(own.values())[-1] if over else own[max(common)]
            self._folders[member.id].resume_from = path
            member.resume(position)
        return self._common_position(all_reached=not unfinished)

    def _common_position(self, all_reached: bool) -> TrainingPosition:
        positions = [member.base for member in self._members if all_reached or not member.reached]
        joules = [member.joules for member in self._members if member.joules is not None]
        first = positions[0]
        return TrainingPosition(
            epoch=first.epoch,
            step=first.step,
            steps=first.steps,
            samples=first.samples,
            seconds=max(position.seconds for position in positions),
            joules=sum(joules) if joules else None,
            reached=all_reached,
            over=all(position.over for position in positions),
            batch=first.batch,
        )

    def load(self) -> None:
        """Load the state of every member from its checkpoint."""
        leader = next((m for m in self._members if not m.reached), self._members[0])
        for index, member in enumerate(self._members):
            if (path := self._folders[member.id].resume_from) is not None:
                self._states.load(index, path / USER_STATE, is_leader=member is leader)

    def release_members(self, members: Sequence[Member]) -> None:
        """Unlock the folders of members that have left."""
        for member in members:
            self._folders[member.id].release()

    def _list_positions(self, checkpoints: Sequence[dict[tuple[int, int], Any]]) -> str:
        def last_position(own: dict[tuple[int, int], Any]) -> str:
            return "at the beginning" if not own else "at epoch {}, step {}".format(*list(own)[-1])

        listed = [
            f"{member.id} {last_position(own)}"
            for member, own in zip(self._members, checkpoints, strict=True)
        ]
        return ", ".join(listed[:6]) + (", …" if len(listed) > 6 else "")


def _state(part: Any, member: int) -> Any:
    if isinstance(part, FusedArray | ArrayOptimizer):
        return part.member_state_dict(member)
    if isinstance(part, Schedule):
        return part.state_dict()["members"][member]
    if isinstance(part, Scaler):
        return {name: row[member].clone() for name, row in part.state_dict().items()}
    return part.state_dict()


def _load(part: Any, member: int, own: Any, is_leader: bool) -> None:
    if isinstance(part, FusedArray | ArrayOptimizer):
        part.load_member(member, own)
    elif isinstance(part, Schedule):
        members = part.state_dict()["members"]
        part.load_state_dict({"members": [*members[:member], own, *members[member + 1 :]]})
    elif isinstance(part, Scaler):
        rows = {name: row.clone() for name, row in part.state_dict().items()}
        for name, row in rows.items():
            row[member] = own[name]
        part.load_state_dict(rows)
    elif is_leader:
        part.load_state_dict(own)
