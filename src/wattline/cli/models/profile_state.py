"""Points and files of `wattline profile`: the table and, beside it, the state to resume from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

from wattline.cli.models.profile_dataset import DatasetSize
from wattline.cli.models.workload_data import finite_or_none
from wattline.errors import ProfileError
from wattline.measurement.points import write_profile
from wattline.models.demand import DemandModel
from wattline.profiler.core_sweep import SpeedPoint, build_profile
from wattline.profiler.run import format_command

_FORMAT = 1
_HINT = "give another --out, or --fresh to discard the points"


class ProfileHeader(TypedDict):
    """Identity of a profile: points of another one are never mixed with it."""

    command: list[str]
    model: str
    gpu: str
    gpus: int
    batch: int


@dataclass
class ProfileState:
    """Points measured so far, in the table *out* and the state file beside it."""

    out: Path
    header: ProfileHeader
    points: list[SpeedPoint] = field(default_factory=list)
    dataset: DatasetSize | None = None

    @property
    def path(self) -> Path:
        """Path of the state file."""
        return Path(f"{self.out}.state")

    @property
    def speeds(self) -> dict[float, float]:
        """Samples per second by number of cores."""
        return {p.cpus: p.samples_s for p in self.points}

    def resume(self) -> None:
        """Load the points of an earlier run with the same header; raise `ProfileError` for another one."""
        if not self.path.exists():
            if self.out.exists():
                raise ProfileError(
                    str(self.out), None, f"exists, but {self.path.name}, needed to resume it, does not", _HINT
                )
            return
        try:
            saved = json.loads(self.path.read_text("utf-8"))
            points = [
                SpeedPoint(
                    float(cpus), float(samples_s), math.inf if stderr is None else float(stderr), int(steps)
                )
                for cpus, samples_s, stderr, steps in saved.pop("points")
            ]
            version = saved.pop("format")
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
            raise ProfileError(
                str(self.path), None, f"is not a state file of wattline profile: {problem!r}", _HINT
            ) from None
        if version != _FORMAT:
            raise ProfileError(str(self.path), None, f"has format {version}, expected {_FORMAT}", _HINT)
        if saved != self.header:
            self._refuse(saved)
        self.points.extend(points)

    def _refuse(self, saved: dict[str, object]) -> None:
        header = dict(self.header)
        name = next(name for name in header if saved.get(name) != header[name])
        old, new = saved.get(name), header[name]
        if name == "command":
            old, new = (format_command(value) for value in (saved["command"], self.header["command"]))  # type: ignore[arg-type]
        raise ProfileError(
            str(self.out), None, f"holds measurements of another {name}: {old}, not {new}", _HINT
        )

    def save(self) -> None:
        """Write the state file, then the table: a table without a state file could not be resumed."""
        points, dataset, header = self.points, self.dataset, self.header
        rows = [[*p[:2], finite_or_none(p.stderr), p.steps] for p in points]
        _write_atomically(self.path, json.dumps({"format": _FORMAT, **header, "points": rows}, indent=1))
        table = build_profile(
            points,
            model=header["model"],
            gpu=header["gpu"],
            gpus=header["gpus"],
            batch=header["batch"],
            demand=derive_demand(header["gpus"], points, dataset),
            read_mib_s=dataset.storage_mib_s if dataset else math.nan,
        )
        temporary = self.out.with_name(f".{self.out.name}.{os.getpid()}")
        write_profile(table, temporary)
        columns, *table_rows = temporary.read_text("utf-8").splitlines()
        command = " ".join(format_command(header["command"]).replace('"', "'").split())
        lines = [f"# measured by wattline profile: {command}", columns, *table_rows[: len(points)]]
        if dataset is not None:
            lines += [
                f"# derived from the rows above; of {dataset.dataset_gib:.4g} GiB a cache keeps its share"
            ]
            lines += table_rows[len(points) :]
        temporary.unlink()
        _write_atomically(self.out, "\n".join((*lines, "")))


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def derive_demand(gpus: int, points: Sequence[SpeedPoint], dataset: DatasetSize | None) -> DemandModel | None:
    """Return the demand of one GPU for cores and memory; None without a data set."""
    if dataset is None:
        return None
    return DemandModel.from_core_sweep(
        np.array([p.cpus for p in points]) / gpus,
        np.array([p.samples_s for p in points]) / gpus,
        dataset_gib=dataset.dataset_gib,
        sample_kib=dataset.sample_kib,
        storage_mib_s=dataset.storage_mib_s / gpus,
    )
