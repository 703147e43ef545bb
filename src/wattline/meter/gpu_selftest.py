"""Self-test of GPUs: every driver call that Wattline relies on, checked for a plausible answer.

Reading changes nothing. The test of caps sets the lowest, a middle and the highest cap, reads each back and
restores the cap before, by the guard that restores it however the process ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wattline.errors import ConfigError, MeterError
from wattline.meter.caps.guard import guard_caps
from wattline.meter.counter_renewal import measure_counter_periods
from wattline.meter.protocol import Gpu, Meter

_CAP_ERROR_W = 1.0  # drivers round caps to whole watts
_LARGEST_W, _HOTTEST_C = 5000.0, 130.0


@dataclass(frozen=True)
class SelftestResult:
    """One check: the call, *works* (None: not tried), and the value or the problem. *gpu* -1: all GPUs."""

    gpu: int
    call: str
    works: bool | None
    says: str


def read_gpus(meter: Meter) -> list[SelftestResult]:
    """Check all calls that only read."""
    results = [_try(-1, "nvmlSystemGetDriverVersion", lambda: str(getattr(meter, "driver", "") or "none"))]
    count = len(meter.gpus)
    results.append(_try(-1, "nvmlDeviceGetCount", lambda: _require(count > 0, f"GPUs: {count}")))
    periods = measure_counter_periods(meter)
    for gpu in meter.gpus:
        results += _read_gpu(gpu, periods.get(gpu.uuid))
    return results


def _read_gpu(gpu: Gpu, period_s: float | None) -> list[SelftestResult]:
    reads: list[tuple[str, Callable[[], str]]] = [
        ("nvmlDeviceGetName", lambda: f"{gpu.name} (kind: {gpu.kind or 'unknown'})"),
        ("nvmlDeviceGetUUID", lambda: _require(bool(gpu.uuid), "read")),  # not printed: it names the machine
        ("nvmlDeviceGetTotalEnergyConsumption", lambda: _read_energy(gpu, period_s)),
        ("nvmlDeviceGetPowerUsage", lambda: _read_number(gpu.power_w, 0, _LARGEST_W, "W")),
        ("nvmlDeviceGetPowerManagementLimitConstraints", lambda: _read_range(gpu)),
        ("nvmlDeviceGetPowerManagementLimit", lambda: _read_cap(gpu)),
        ("nvmlDeviceGetMigMode", lambda: "split (MIG)" if getattr(gpu, "is_mig", False) else "not split"),
    ]
    for call, name, read in (
        ("nvmlDeviceGetTemperature", "temperature_c", lambda f: _read_number(f, 0, _HOTTEST_C, "°C")),
        ("nvmlDeviceGetComputeRunningProcesses", "other_processes", lambda f: f"{len(f())} of others"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "slowdown", lambda f: f() or "none"),
        ("nvmlDeviceGetMemoryInfo", "memory_gib", lambda f: _read_number(f, 0.1, 10_000, "GiB")),
    ):
        function = getattr(gpu, name, None)
        if function is not None:
            reads.append((call, _bind(read, function)))
    return [_try(gpu.index, call, read) for call, read in reads]


def _bind(read: Callable[[Any], str], function: Any) -> Callable[[], str]:
    return lambda: read(function)


def set_caps(gpus: Sequence[Gpu]) -> list[SelftestResult]:
    """Set three caps within the range of each GPU, read them back, and restore the cap before."""
    results = []
    for gpu in gpus:
        results += _set_caps(gpu)
    return results


def describe_untried(gpus: Sequence[Gpu], why: str) -> list[SelftestResult]:
    """Return the calls that set something as not tried, with the reason."""
    return [SelftestResult(gpu.index, "nvmlDeviceSetPowerManagementLimit", None, why) for gpu in gpus]


def list_clocks_as_untried(gpus: Sequence[Gpu]) -> list[SelftestResult]:
    """Return the calls on clocks, which are never tried: a lock that is in force cannot be read."""
    why = "not tried: a lock that is in force cannot be read, and so not restored"
    calls = ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
    return [SelftestResult(gpu.index, call, None, why) for gpu in gpus for call in calls]


def _set_caps(gpu: Gpu) -> list[SelftestResult]:
    call = "nvmlDeviceSetPowerManagementLimit"
    try:
        before_w, (low_w, high_w) = gpu.cap_w(), gpu.cap_range_w()
    except MeterError as error:
        return [SelftestResult(gpu.index, call, False, error.message)]
    others = getattr(gpu, "other_processes", tuple)
    if _is_in_use(others):
        return [SelftestResult(gpu.index, call, None, "not tried: another process uses the GPU")]
    results = []
    warnings: list[str] = []
    with guard_caps([gpu], warn=warnings.append) as guard:
        for watts in (low_w, math.floor((low_w + high_w) / 2), high_w):
            results.append(_try(gpu.index, call, lambda watts=watts: _set_cap(gpu, guard, watts, warnings)))  # type: ignore[misc]
            if not results[-1].works:
                break
        refused = _try(gpu.index, f"{call} (out of range)", lambda: _check_refusal(guard, low_w))
    results += [refused, _try(gpu.index, f"{call} (restore)", lambda: _check_restored(gpu, before_w))]
    return results


def _is_in_use(list_others: Callable[[], Any]) -> bool:
    try:
        return bool(list_others())
    except MeterError:
        return False


def _set_cap(gpu: Gpu, guard: Any, watts: float, warnings: list[str]) -> str:
    if not guard.set_cap(watts, gpu):
        raise MeterError(warnings[-1] if warnings else "the cap was not set")
    read_w = gpu.cap_w()
    return _require(abs(read_w - watts) <= _CAP_ERROR_W, f"set {watts:g} W, read {read_w:g} W")


def _check_refusal(guard: Any, low_w: float) -> str:
    watts = low_w / 2
    try:
        guard.set_cap(watts)
    except ConfigError:
        return f"{watts:g} W is refused"
    raise MeterError(f"{watts:g} W is below the range, and was not refused")


def _check_restored(gpu: Gpu, before_w: float) -> str:
    read_w = gpu.cap_w()
    return _require(abs(read_w - before_w) <= _CAP_ERROR_W, f"{read_w:g} W, before the test {before_w:g} W")


def _read_energy(gpu: Gpu, period_s: float | None) -> str:
    first_j, second_j = gpu.energy_j(), gpu.energy_j()
    period = f"renewed every {1e3 * period_s:.0f} ms" if period_s else "its period could not be measured"
    return _require(0 <= first_j <= second_j, f"{second_j:.1f} J by {gpu.method}, {period}")


def _read_range(gpu: Gpu) -> str:
    low_w, high_w = gpu.cap_range_w()
    return _require(0 < low_w <= high_w < _LARGEST_W, f"{low_w:g} to {high_w:g} W")


def _read_cap(gpu: Gpu) -> str:
    cap_w, (low_w, high_w) = gpu.cap_w(), gpu.cap_range_w()
    return _require(low_w <= cap_w <= high_w, f"{cap_w:g} W")


def _read_number(read: Callable[[], float], low: float, high: float, unit: str) -> str:
    value = read()
    return _require(low <= value <= high, f"{value:.1f} {unit}")


def _require(plausible: bool, text: str) -> str:
    if not plausible:
        raise MeterError(f"{text}, which is not plausible")
    return text


def _try(gpu: int, call: str, check: Callable[[], str]) -> SelftestResult:
    try:
        return SelftestResult(gpu, call, True, check())
    except MeterError as error:
        return SelftestResult(gpu, call, False, error.message)
