"""Text of `wattline doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wattline.cli.models.machine_checks import GpuStatus, MeterStatus
from wattline.cli.output import print_table
from wattline.meter.caps.record import CapRecord, record_path, state_folder
from wattline.meter.caps.restore import RestoreResult

if TYPE_CHECKING:
    from wattline.backend.engine.slurm.node_probe import SlurmFinding

_GPU_COLUMNS = ("gpu", "name", "kind", "draws", "cap", "range", "energy", "caps", "clocks")


def print_findings(
    meter: str,
    meters: Sequence[MeterStatus],
    gpus: Sequence[GpuStatus],
    restored: Sequence[RestoreResult],
    held: Sequence[CapRecord],
    tools: dict[str, Any],
) -> None:
    """Print all findings; *meter* is the name of the meter in use."""
    rows = [(status.name, _yes_or_no(status.works), _add_hint(status.says, status.hint)) for status in meters]
    print_table(("meter", "works", ""), rows)
    print()
    _print_gpus(meter, gpus)
    print()
    if restored or held:
        print("\n".join([*map(_describe_restored, restored), *map(_describe_held, held)]), end="\n\n")
    print_table((), _tool_rows(tools))


def print_slurm(findings: Sequence[SlurmFinding]) -> None:
    """Print the checks of a Slurm cluster, if there are any."""
    if findings:
        print()
        rows = [(finding.name, _yes_or_no(finding.works), finding.says) for finding in findings]
        print_table(("slurm", "works", ""), rows)


def _print_gpus(meter: str, gpus: Sequence[GpuStatus]) -> None:
    if not gpus:
        print(f"meter in use: {meter}; no GPU can be read: energy is unmetered")
        return
    print(f"meter in use: {meter}")
    print_table(_GPU_COLUMNS, [_gpu_row(status) for status in gpus])
    for reason in dict.fromkeys(_add_hint(status.why, status.hint) for status in gpus if status.why):
        print(f"caps and clocks cannot be set: {reason}")


def _gpu_row(status: GpuStatus) -> tuple[str, ...]:
    has_range = status.least_cap_w is not None
    return (
        str(status.index),
        status.name,
        status.kind or "-",
        _format_watts(status.power_w),
        _format_watts(status.cap_w),
        f"{status.least_cap_w:g} to {status.most_cap_w:g} W" if has_range else "-",
        _describe_counter(status),
        _yes_or_no(status.caps),
        "not tried" if status.clocks is None else _yes_or_no(status.clocks),
    )


def _describe_counter(status: GpuStatus) -> str:
    if status.energy_j is None:
        return "unmetered"
    if status.renewed_s is None:
        return status.method
    return f"{status.method}, every {1e3 * status.renewed_s:.0f} ms"


def _describe_restored(one: RestoreResult) -> str:
    record = one.record
    text = f"GPU {record.uuid}: process {record.owner.pid} died and left a cap behind"
    if one.problem:
        return f"{text}, which could not be restored: {one.problem}"
    return f"{text}: {f'restored to {record.before_w:g} W' if one.restored else 'changed since, left alone'}"


def _describe_held(record: CapRecord) -> str:
    lives = record.owner.is_alive()
    text = f"GPU {record.uuid}: process {record.owner.pid} on {record.owner.host}"
    if lives:
        return f"{text} holds its cap at {record.set_w[-1]:g} W"
    path = record_path(state_folder(), record.uuid)
    state = "is dead" if lives is False else "belongs to another machine or container and may be dead"
    return f"{text} {state}; to remove its cap, set it back to {record.before_w:g} W and delete {path}"


def _tool_rows(tools: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        *((name, path or "not found") for name, path in tools["tools"].items()),
        ("cgroup", tools["cgroup"] or "none"),
        *((name, version or "not installed") for name, version in tools["packages"].items()),
        ("state", tools["state"]),
    ]


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _format_watts(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} W"


def _add_hint(text: str, hint: str) -> str:
    return f"{text} ({hint})" if hint else text
