"""The checkpoints of the members of an array: each has its own, and they are all of the same step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wattline.errors import ConfigError, InputError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.optim.schedule import Schedule
from wattline.fusion.rng_state import Chance
from wattline.meter.caps.record import sync
from wattline.train.checkpoint import _STATE, _USER, Checkpoints, Where

if TYPE_CHECKING:
    from wattline.fusion.member import Member


class States:
    """What belongs to one member, of everything that is trained with: the array is the first of *parts*.

    Of arrays, optimisers, schedules and scalers a member has its part; anything else with `state_dict` and
    `load_state_dict` is kept whole with every member.
    """

    def __init__(self, parts: Sequence[Any], chance: Chance) -> None:
        for part in parts:
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise ConfigError(f"{part!r} cannot be kept, expected state_dict and load_state_dict")
        optimisers = [part for part in parts if isinstance(part, ArrayOptimizer)]
        self._array = parts[0]
        self._optimiser = optimisers[0] if optimisers else None
        self._others = [part for part in parts[1:] if part is not self._optimiser]
        self._chance = chance

    def of(self, member: int) -> dict[str, Any]:
        """The state of one member."""
        return {
            "model": self._array.member_state_dict(member),
            "optimiser": None if self._optimiser is None else self._optimiser.member_state_dict(member),
            "extra": {
                "parts": [_state(part, member) for part in self._others],
                "chance": self._chance.state(),
            },
        }

    def load(self, member: int, path: Path, leads: bool) -> None:
        """Give a member what `of` gave, from a file; what is not of members is from the one who *leads*."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=False)
            model, optimiser, extra = state["model"], state["optimiser"], state["extra"]
            saved, chance = extra["parts"], extra["chance"]
        except Exception as error:
            raise InputError(
                f"{path}: is not the state of a member ({error!r}), expected what fusion.Session keeps"
            ) from None
        kinds = [type(part).__name__ for part in self._others]
        if len(saved) != len(kinds) or (optimiser is None) != (self._optimiser is None):
            raise ConfigError(f"{path}: was kept with other things than the session has now: {kinds}")
        self._array.load_member(member, model)
        if self._optimiser is not None:
            self._optimiser.load_member(member, optimiser)
        for part, own in zip(self._others, saved, strict=True):
            _load(part, member, own, leads)
        if leads:
            self._chance.load(chance)


class Folder(Checkpoints):
    """The checkpoints of one member, in the format of `train.checkpoint`.

    They are written in three moves, so that all members can make each of them before any makes the next:
    whoever is killed in between leaves a step of which all have a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, None)
        self.chosen: Path | None = None  # to go on from
        self._new = self.folder / f".new-{os.getpid()}"
        self._old: list[Path] = []

    def prepare(self, where: Where, state: dict[str, Any]) -> None:
        """Write a checkpoint that does not count yet."""
        for left in self.folder.glob(".new-*"):  # of who was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        self._new.mkdir()
        torch.save(state, self._new / _USER)
        (self._new / _STATE).write_text(json.dumps(asdict(where)), encoding="utf-8")
        for path in (*self._new.iterdir(), self._new):
            sync(path)

    def commit(self) -> None:
        """Let it count."""
        self._old = self._all()
        last = int(self._old[-1].name) if self._old else 0
        self._new.rename(self.folder / f"{1 + last:08d}")
        sync(self.folder)

    def tidy(self) -> None:
        """Remove those before it."""
        for path in self._old:
            shutil.rmtree(path, ignore_errors=True)

    def found(self) -> dict[tuple[int, int], tuple[Where, Path]]:
        """The checkpoints that are there by epoch and step, the newest last."""
        known: dict[tuple[int, int], tuple[Where, Path]] = {}
        for path in self._all():
            try:
                words = json.loads((path / _STATE).read_text(encoding="utf-8"))
                where = Where(**{field.name: words[field.name] for field in fields(Where)})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path / _STATE}: is no checkpoint ({error!r}), expected what wattline wrote",
                    hint=f"remove {path} to start from an older one, or from the beginning",
                ) from None
            known.pop((where.epoch, where.step), None)
            known[where.epoch, where.step] = where, path
        return known


class Kept:
    """The checkpoints of all *members*, as one for the session of the process.

    *now* says where each of them is. With *recurs*, who has ended begins anew.
    """

    def __init__(
        self,
        members: list[Member],
        folders: Mapping[str, Path],
        states: States,
        now: Callable[[], list[Where]],
        recurs: bool,
    ) -> None:
        self._members, self._states, self._now, self._recurs = members, states, now, recurs
        self._folders = {member: Folder(folder) for member, folder in folders.items()}

    def claim(self) -> None:
        """Be the only one that writes to the folders."""
        try:
            for folder in self._folders.values():
                folder.claim()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others write there."""
        for folder in self._folders.values():
            folder.release()

    def write(self, where: Where) -> None:
        """Keep all members, or none."""
        self.write_of(self._members)

    def write_of(self, members: Sequence[Member]) -> None:
        """Keep some of them."""
        wheres = self._now()
        for index, (member, where) in enumerate(zip(self._members, wheres, strict=True)):
            if member in members:
                self._folders[member.id].prepare(where, self._states.of(index))
        written = [self._folders[member.id] for member in members]
        for folder in written:
            folder.commit()
        for folder in written:
            folder.tidy()

    def read(self) -> Where | None:
        """Where all members are, by the newest step of which all have a checkpoint; None: nobody has any.

        Members that have come to different steps cannot be one array: `NotFusible`. Who has reached its
        target need not be at the same step.
        """
        found = [self._folders[member.id].found() for member in self._members]
        if self._recurs:
            found = [{} if any(where.over for where, _ in own.values()) else own for own in found]
        done = [bool(own) and list(own.values())[-1][0].reached for own in found]
        going = [set(own) for own, over in zip(found, done, strict=True) if not over]
        if not any(found):
            return None
        common = set.intersection(*going) if going else set()
        if not common and any(going):
            raise NotFusible(
                f"members at different steps cannot go on as one array: {self._listed(found)}",
                "run them one by one, or remove the checkpoints of those who shall begin anew",
            )
        for member, own, over in zip(self._members, found, done, strict=True):
            if not over and not common:
                continue  # it begins, and somebody else has nothing left to do
            where, path = list(own.values())[-1] if over else own[max(common)]
            self._folders[member.id].chosen = path
            member.resume(where)
        return self._together(all_done=not going)

    def _together(self, all_done: bool) -> Where:
        going = [member.base for member in self._members if all_done or not member.reached]
        joules = [member.joules for member in self._members if member.joules is not None]
        first = going[0]
        return Where(
            epoch=first.epoch,
            step=first.step,
            steps=first.steps,
            samples=first.samples,
            seconds=max(where.seconds for where in going),
            joules=sum(joules) if joules else None,
            reached=all_done,
            over=all(where.over for where in going),
            batch=first.batch,
        )

    def load(self) -> None:
        """Give every member what belongs to its checkpoint."""
        leads = next((m for m in self._members if not m.reached), self._members[0])
        for index, member in enumerate(self._members):
            if (path := self._folders[member.id].chosen) is not None:
                self._states.load(index, path / _USER, leads=member is leads)

    def let_go(self, members: Sequence[Member]) -> None:
        """Let others write to the folders of members that have left."""
        for member in members:
            self._folders[member.id].release()

    def _listed(self, found: Sequence[dict[tuple[int, int], Any]]) -> str:
        def at(own: dict[tuple[int, int], Any]) -> str:
            return "at the beginning" if not own else "at epoch {}, step {}".format(*list(own)[-1])

        named = [f"{member.id} {at(own)}" for member, own in zip(self._members, found, strict=True)]
        return ", ".join(named[:6]) + (", …" if len(named) > 6 else "")


def _state(part: Any, member: int) -> Any:
    if isinstance(part, FusedArray | ArrayOptimizer):
        return part.member_state_dict(member)
    if isinstance(part, Schedule):
        return part.state_dict()["members"][member]
    if isinstance(part, Scaler):
        return {name: row[member].clone() for name, row in part.state_dict().items()}
    return part.state_dict()


def _load(part: Any, member: int, own: Any, leads: bool) -> None:
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
    elif leads:
        part.load_state_dict(own)
