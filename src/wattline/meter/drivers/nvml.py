"""NVIDIA GPUs, read and set through NVML with NVIDIA's own bindings (`nvidia-ml-py`).

    nvml                 the GPUs that CUDA_VISIBLE_DEVICES leaves visible
    nvml:GPU-12ab…       this GPU, regardless of CUDA_VISIBLE_DEVICES

Energy is read from the driver's counter; on GPUs without one (before Volta) power is integrated. A MIG
instance has no meter of its own: the whole GPU is read, once, and `method` says so. The cap and the clock of
a GPU with MIG instances are never changed, since they hold for all instances.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.measurement.gpu_names import find_gpu_kind
from wattline.meter.drivers.options import check_cap
from wattline.meter.neighbours import select_others
from wattline.meter.power_sampler import PowerIntegrator
from wattline.meter.protocol import Gpu
from wattline.meter.visible_devices import select_visible_devices

_ROOT_HINT = "ask an administrator, run as root, or use zeusd"
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND", "UNKNOWN", "UNINITIALIZED", "DRIVER_NOT_LOADED")
_UNSUPPORTED = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
_SLOWDOWNS = (
    (0x20 | 0x40, "too hot and slowed down"),  # by software, by hardware
    (0x80, "slowed down by the power brake"),
    (0x08, "slowed down by its hardware"),
)


class NotSupported(MeterError):
    """The GPU or its driver does not support the call."""

    code = "not_supported"


@contextmanager
def _translate_errors(nvml: Any, device: str, action: str) -> Iterator[None]:
    """Translate errors of NVML to those of Wattline."""
    try:
        yield
    except nvml.NVMLError as error:
        raise _build_error(nvml, error.value, device, action, str(error)) from None


def _build_error(nvml: Any, value: int, device: str, action: str, text: str) -> MeterError:
    def is_one_of(names: tuple[str, ...]) -> bool:
        return value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}

    if is_one_of(("NO_PERMISSION",)):
        return NotPermitted(f"{device}: {action} needs administrator rights", _ROOT_HINT)
    if is_one_of(_UNSUPPORTED):
        return NotSupported(f"{device}: {action} is not supported by this GPU or driver")
    if is_one_of(_LOST):
        return MeterError(f"{device} is lost: {text}", "check nvidia-smi, and reset the GPU")
    return MeterError(f"{device}: {action} failed: {text}")


class NvmlGpu:
    """One GPU behind NVML."""

    def __init__(self, nvml: Any, handle: Any, index: int, uuid: str, is_mig: bool) -> None:
        self._nvml, self._handle = nvml, handle
        self.index, self.uuid = index, uuid
        self.spec = f"nvml:{uuid}"
        self.name = _decode(self._call("reading its name", nvml.nvmlDeviceGetName))
        self.kind = find_gpu_kind(self.name)
        self.is_mig = is_mig or self._detect_mig()
        self._last_j, self._offset_j = 0.0, 0.0
        self._lock = threading.Lock()  # windows and timelines read in several threads
        self._integrator: PowerIntegrator | None = None
        self._has_counter = self._detect_counter()

    @property
    def method(self) -> str:
        """The driver's energy counter, or integrated power."""
        method = "nvml energy counter" if self._has_counter else "nvml power, integrated"
        return f"{method}, of the whole GPU (MIG)" if self.is_mig else method

    def energy_j(self) -> float:
        """Return the joules since the driver was loaded, or since the first call if power is integrated."""
        if not self._has_counter:
            if self._integrator is None:
                self._integrator = PowerIntegrator(self.power_w)
            return self._integrator.energy_j()
        with self._lock:
            read_j = self._call("reading its energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption) / 1e3
            if read_j < self._last_j:  # the driver was reloaded
                self._offset_j += self._last_j
            self._last_j = read_j
            return float(self._offset_j + read_j)

    def power_w(self) -> float:
        """Return the driver's power reading, a short moving average."""
        return float(self._call("reading its power", self._nvml.nvmlDeviceGetPowerUsage)) / 1e3

    def cap_w(self) -> float:
        """Return the power limit."""
        return float(self._call("reading its power cap", self._nvml.nvmlDeviceGetPowerManagementLimit)) / 1e3

    def cap_range_w(self) -> tuple[float, float]:
        """Return the smallest and the largest power limit."""
        constraints = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints
        min_mw, max_mw = self._call("reading its power cap range", constraints)
        return min_mw / 1e3, max_mw / 1e3

    def set_cap(self, watts: float) -> None:
        """Set the power limit."""
        self._refuse_mig("a power cap")
        check_cap(watts, *self.cap_range_w(), self.name)
        self._call("setting a power cap", self._nvml.nvmlDeviceSetPowerManagementLimit, round(watts * 1e3))

    def lock_clock(self, mhz: float | None) -> None:
        """Lock the clock of the multiprocessors at *mhz*; None: unlock it."""
        self._refuse_mig("a clock")
        if mhz is None:
            self._call("unlocking its clock", self._nvml.nvmlDeviceResetGpuLockedClocks)
        else:
            self._call("locking its clock", self._nvml.nvmlDeviceSetGpuLockedClocks, round(mhz), round(mhz))

    def temperature_c(self) -> float:
        """Return the temperature of the chip."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return float(self._call("reading its temperature", self._nvml.nvmlDeviceGetTemperature, sensor))

    def other_processes(self) -> tuple[int, ...]:
        """Return the ids of compute processes that are not part of this job."""
        found = self._call_by_name("listing its processes", "nvmlDeviceGetComputeRunningProcesses")
        return select_others([int(one.pid) for one in found])

    def slowdown(self) -> str:
        """Return why the GPU is slower than its cap allows; empty: it is not."""
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        reasons = int(self._call_by_name("reading its slowdowns", name))
        return next((text for bits, text in _SLOWDOWNS if reasons & bits), "")

    def memory_gib(self) -> float:
        """Return the memory of the GPU."""
        return float(self._call_by_name("reading its memory", "nvmlDeviceGetMemoryInfo").total) / 2**30

    def close(self) -> None:
        """Stop sampling power."""
        if self._integrator is not None:
            self._integrator.stop()

    def _detect_counter(self) -> bool:
        try:
            self._call("reading its energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        except NotSupported:
            return False
        return True

    def _detect_mig(self) -> bool:
        """Return True if the GPU is split, also where CUDA_VISIBLE_DEVICES names it by its number."""
        try:
            return bool(self._call_by_name("reading its MIG mode", "nvmlDeviceGetMigMode")[0])
        except MeterError:
            return False

    def _refuse_mig(self, what: str) -> None:
        if self.is_mig:
            raise NotPermitted(
                f"GPU {self.index} is split into MIG instances: {what} would hold for all of them,"
                " and their energy cannot be separated; it is only measured",
                "use the whole GPU (nvidia-smi -mig 0) to set caps",
            )

    def _call_by_name(self, action: str, name: str) -> Any:
        """Call a function that older bindings may not have."""
        function = getattr(self._nvml, name, None)
        if function is None:
            raise NotSupported(f"GPU {self.index}: {action} is not supported by the installed nvidia-ml-py")
        return self._call(action, function)

    def _call(self, action: str, function: Callable[..., Any], *values: Any) -> Any:
        with _translate_errors(self._nvml, f"GPU {self.index}", action):
            return function(self._handle, *values)


class NvmlMeter:
    """The NVIDIA GPUs of this machine that a job may use."""

    name = "nvml"

    def __init__(self, visible: str | None) -> None:
        self._nvml = _import_bindings()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise MeterError(
                f"NVML cannot be initialised: {error}", "check that an NVIDIA driver is installed and loaded"
            ) from None
        try:
            self._gpus = self._find_gpus(visible)
        except BaseException:
            self._nvml.nvmlShutdown()
            raise
        self._open = True

    def _find_gpus(self, visible: str | None) -> tuple[NvmlGpu, ...]:
        nvml = self._nvml
        with _translate_errors(nvml, "NVML", "listing GPUs"):
            devices = [self._read_device(number) for number in range(nvml.nvmlDeviceGetCount())]
        uuids = [uuid for uuid, _ in devices]
        mig_parents: set[str] = set()

        def find_parent(instance: str) -> str | None:
            parent = self.find_mig_parent(instance)
            mig_parents.update([parent] if parent else [])
            return parent

        selected = select_visible_devices(visible, uuids, find_parent)
        mig_parents |= {
            word[4:].partition("/")[0] for word in (visible or "").split(",") if word.startswith("MIG-GPU-")
        }
        return tuple(
            NvmlGpu(nvml, devices[number][1], index, uuids[number], uuids[number] in mig_parents)
            for index, number in enumerate(selected)
            if uuids[number]
        )

    def _read_device(self, number: int) -> tuple[str, Any]:
        """Return the UUID and the handle of a GPU; the UUID of a lost GPU is empty."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            return _decode(nvml.nvmlDeviceGetUUID(handle)), handle
        except nvml.NVMLError:
            return "", None

    def find_mig_parent(self, instance: str) -> str | None:
        """Return the UUID of the GPU that has the MIG instance; None: there is none."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(instance)
            return _decode(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)))
        except nvml.NVMLError:
            return None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, each once."""
        return self._gpus

    @property
    def driver(self) -> str:
        """Version of the driver."""
        with _translate_errors(self._nvml, "NVML", "reading the driver version"):
            return _decode(self._nvml.nvmlSystemGetDriverVersion())

    def now_s(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Do nothing: real steps take their own time."""

    def close(self) -> None:
        """Shut NVML down."""
        if self._open:
            self._open = False
            for gpu in self._gpus:
                gpu.close()
            self._nvml.nvmlShutdown()


def _import_bindings() -> Any:
    try:
        import pynvml
    except ImportError:
        raise MeterError("nvidia-ml-py is not installed", "pip install 'wattline[nvidia]'") from None
    return pynvml


def _decode(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def open_driver(options: str = "") -> NvmlMeter:
    """Open the meter `nvml` with the visible GPUs, or with those listed by UUID in *options*."""
    if options and not all(word.startswith("GPU-") for word in options.split(",")):
        raise ConfigError(f"the nvml meter got {options!r}, expected nothing or UUIDs: nvml:GPU-12ab…")
    return NvmlMeter(options or os.environ.get("CUDA_VISIBLE_DEVICES"))
