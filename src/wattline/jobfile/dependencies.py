"""Dependencies of a job: the jobs and sweeps that have to end before it may start.

`12` and `train` name a job, `sweep:12` all jobs of a sweep. `:success` (the default) waits until they have
SUCCEEDED, `:end` until they have ended in any state. `{job: 12, when: end}` is the same as `12:end`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattline.jobfile.errors import FieldError

if TYPE_CHECKING:
    from wattline.jobfile.schema import DependencySection, JobFile

SUCCESS, END = "success", "end"


@dataclass(frozen=True)
class Dependency:
    """A job, by id or name, or a sweep that has to end; *when* is success or end."""

    job: str = ""
    sweep: str = ""
    when: str = SUCCESS


def list_dependencies(job: JobFile) -> tuple[Dependency, ...]:
    """Return the dependencies of a job file."""
    entries = job.depends_on if isinstance(job.depends_on, tuple) else (job.depends_on,)
    return tuple(dict.fromkeys(_parse(entry) for entry in entries))


def check_dependencies(job: JobFile) -> None:
    """Raise `FieldError` where a dependency names no job or two, or max_parallel limits no sweep."""
    for one in list_dependencies(job):
        if bool(one.job) == bool(one.sweep):
            raise FieldError(
                ("depends_on",), "depends_on has neither or both of job and sweep, expected one of them"
            )
    if job.max_parallel is not None and not job.matrix:
        raise FieldError(
            ("max_parallel",),
            f"max_parallel is {job.max_parallel}, but there is no matrix that it could limit",
        )


def _parse(entry: int | str | DependencySection) -> Dependency:
    if isinstance(entry, int):
        return Dependency(job=str(entry))
    if not isinstance(entry, str):
        job, sweep = ("" if one is None else str(one) for one in (entry.job, entry.sweep))
        return Dependency(job, sweep, entry.when)
    name, when = entry, SUCCESS
    for suffix in (SUCCESS, END):
        if entry.endswith(f":{suffix}"):
            name, when = entry.removesuffix(f":{suffix}"), suffix
    if name.startswith("sweep:"):
        return Dependency(sweep=name.removeprefix("sweep:"), when=when)
    return Dependency(job=name, when=when)
