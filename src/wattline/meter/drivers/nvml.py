"""NVIDIA GPUs, read and set through NVML by the bindings that NVIDIA ships (`nvidia-ml-py`).

    nvml                 the GPUs that CUDA_VISIBLE_DEVICES leaves visible
    nvml:GPU-12ab…       that one, whatever is visible

Joules are those of the driver's counter; GPUs without one (before Volta) have their power integrated. A
part of a GPU (MIG) has no meter of its own: the whole GPU is read, once, and the method says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.meter.drivers.options import within
from wattline.meter.gpu_names import kind_of
from wattline.meter.power_sampler import Integrator
from wattline.meter.protocol import Gpu
from wattline.meter.visible_devices import visible

_ROOT = "ask an administrator, run as root, or use zeusd"
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND", "UNKNOWN", "UNINITIALIZED", "DRIVER_NOT_LOADED")
_ABSENT = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")


class NotSupported(MeterError):
    """This GPU or its driver does not have it."""

    code = "not_supported"


@contextmanager
def _told(nvml: Any, who: str, what: str) -> Iterator[None]:
    """NVML's errors as ours."""
    try:
        yield
    except nvml.NVMLError as error:
        raise _ours(nvml, error.value, who, what, str(error)) from None


def _ours(nvml: Any, value: int, who: str, what: str, text: str) -> MeterError:
    def is_one_of(names: tuple[str, ...]) -> bool:
        return value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}

    if is_one_of(("NO_PERMISSION",)):
        return NotPermitted(f"{who}: {what} needs an administrator", _ROOT)
    if is_one_of(_ABSENT):
        return NotSupported(f"{who}: {what} is not supported by this GPU or driver")
    if is_one_of(_LOST):
        return MeterError(f"{who} is lost: {text}", "nvidia-smi, and a reset of the GPU")
    return MeterError(f"{who}: {what}: {text}")


class NvmlGpu:
    """One GPU behind NVML."""

    def __init__(self, nvml: Any, handle: Any, index: int, uuid: str, part: bool) -> None:
        self._nvml, self._handle = nvml, handle
        self.index, self.uuid = index, uuid
        self.spec = f"nvml:{uuid}"
        self.name = _text(self._ask("its name", nvml.nvmlDeviceGetName))
        self.kind = kind_of(self.name)
        self._part = part
        self._last_j, self._more_j = 0.0, 0.0
        self._integral: Integrator | None = None
        self._counts = self._has_counter()

    @property
    def method(self) -> str:
        """The driver's counter, or its power, integrated."""
        how = "nvml energy counter" if self._counts else "nvml power, integrated"
        return f"{how}, of the whole GPU (MIG)" if self._part else how

    def energy_j(self) -> float:
        """Joules since the driver was loaded, or since the first look where power is integrated."""
        if not self._counts:
            if self._integral is None:
                self._integral = Integrator(self.power_w)
            return self._integral.energy_j()
        read_j = self._ask("its energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption) / 1e3
        if read_j < self._last_j:  # the driver was loaded anew
            self._more_j += self._last_j
        self._last_j = read_j
        return float(self._more_j + read_j)

    def power_w(self) -> float:
        """As the driver says: a mean of the last moments."""
        return float(self._ask("its power", self._nvml.nvmlDeviceGetPowerUsage)) / 1e3

    def cap_w(self) -> float:
        """Its power limit."""
        return float(self._ask("its power cap", self._nvml.nvmlDeviceGetPowerManagementLimit)) / 1e3

    def cap_range_w(self) -> tuple[float, float]:
        """The least and the largest limit."""
        least, most = self._ask("its power caps", self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return least / 1e3, most / 1e3

    def set_cap(self, watts: float) -> None:
        """Set its power limit."""
        within(watts, *self.cap_range_w(), self.name)
        self._ask("setting a power cap", self._nvml.nvmlDeviceSetPowerManagementLimit, round(watts * 1e3))

    def lock_clock(self, mhz: float | None) -> None:
        """Hold the clock of its multiprocessors."""
        if mhz is None:
            self._ask("letting its clock go", self._nvml.nvmlDeviceResetGpuLockedClocks)
        else:
            self._ask("locking its clock", self._nvml.nvmlDeviceSetGpuLockedClocks, round(mhz), round(mhz))

    def temperature_c(self) -> float:
        """Of the chip."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return float(self._ask("its temperature", self._nvml.nvmlDeviceGetTemperature, sensor))

    def close(self) -> None:
        """Look no more."""
        if self._integral is not None:
            self._integral.stop()

    def _has_counter(self) -> bool:
        try:
            self._ask("its energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        except NotSupported:
            return False
        return True

    def _ask(self, what: str, call: Callable[..., Any], *values: Any) -> Any:
        with _told(self._nvml, f"GPU {self.index}", what):
            return call(self._handle, *values)


class Nvml:
    """The NVIDIA GPUs of this machine that a job may use."""

    name = "nvml"

    def __init__(self, seen: str | None) -> None:
        self._nvml = _bindings()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise MeterError(
                f"NVML does not start: {error}", "is an NVIDIA driver installed and loaded?"
            ) from None
        try:
            self._gpus = self._find(seen)
        except BaseException:
            self._nvml.nvmlShutdown()
            raise
        self._open = True

    def _find(self, seen: str | None) -> tuple[NvmlGpu, ...]:
        nvml = self._nvml
        with _told(nvml, "NVML", "listing GPUs"):
            found = [self._listed(place) for place in range(nvml.nvmlDeviceGetCount())]
        uuids = [uuid for uuid, _ in found]
        parts: set[str] = set()

        def parent(word: str) -> str | None:
            whole = self.whole(word)
            parts.update([whole] if whole else [])
            return whole

        places = visible(seen, uuids, parent)
        parts |= {
            word[4:].partition("/")[0] for word in (seen or "").split(",") if word.startswith("MIG-GPU-")
        }
        return tuple(
            NvmlGpu(nvml, found[place][1], index, uuids[place], uuids[place] in parts)
            for index, place in enumerate(places)
            if uuids[place]
        )

    def _listed(self, place: int) -> tuple[str, Any]:
        """UUID and handle of a GPU; no UUID: it is there, and lost."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(place)
            return _text(nvml.nvmlDeviceGetUUID(handle)), handle
        except nvml.NVMLError:
            return "", None

    def whole(self, part: str) -> str | None:
        """The UUID of the GPU that has a MIG part."""
        nvml = self._nvml
        try:
            mine = nvml.nvmlDeviceGetHandleByUUID(part)
            return _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mine)))
        except nvml.NVMLError:
            return None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that CUDA_VISIBLE_DEVICES leaves, each once."""
        return self._gpus

    @property
    def driver(self) -> str:
        """The version of the driver."""
        with _told(self._nvml, "NVML", "the driver's version"):
            return _text(self._nvml.nvmlSystemGetDriverVersion())

    def now_s(self) -> float:
        """Seconds of this machine, without jumps."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Nothing to do: steps take the time they take."""

    def close(self) -> None:
        """Let go of the driver."""
        if self._open:
            self._open = False
            for gpu in self._gpus:
                gpu.close()
            self._nvml.nvmlShutdown()


def _bindings() -> Any:
    try:
        import pynvml
    except ImportError:
        raise MeterError("nvidia-ml-py is not installed", "pip install 'wattline[nvidia]'") from None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_text(text: str = "") -> Nvml:
    """The meter `nvml`, of what is visible, or of the UUIDs in *text*."""
    if text and not all(word.startswith("GPU-") for word in text.split(",")):
        raise ConfigError(f"the nvml meter has {text!r}, expected nothing, or UUIDs: nvml:GPU-12ab…")
    return Nvml(text or os.environ.get("CUDA_VISIBLE_DEVICES"))
