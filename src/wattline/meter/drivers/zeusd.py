"""GPUs read and capped through zeusd, the privileged daemon of Zeus.

    zeusd[:SOCKET][,gpu=0]

Uses the HTTP API that zeusd 0.5 documents (https://ml.energy/zeus/zeusd/api/) over its unix socket:
$ZEUSD_SOCK_PATH, else /var/run/zeusd.sock. Values that zeusd does not provide (its `gpu-read` group may be
disabled, and it has neither UUIDs nor temperatures) are read through NVML where that works. Daemons that
require a token are not supported.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from typing import Any
from urllib.parse import urlencode

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.measurement.gpu_names import find_gpu_kind
from wattline.meter.drivers.nvml import NvmlMeter
from wattline.meter.drivers.options import check_cap, parse_options, parse_whole_number
from wattline.meter.power_sampler import PowerIntegrator
from wattline.meter.protocol import Gpu
from wattline.meter.visible_devices import select_visible_devices

SOCKET = "/var/run/zeusd.sock"
_TIMEOUT_S = 10.0


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


class ZeusdClient:
    """HTTP client of the daemon behind a unix socket; one connection per request."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, route: str, **query: object) -> Any:
        """Return the JSON answer of a GET request."""
        text = self._request("GET", route, query)
        try:
            return json.loads(text)
        except ValueError:
            raise MeterError(f"zeusd answered {route} with {text[:80]!r}, expected JSON") from None

    def post(self, route: str, **query: object) -> None:
        """Send a POST request, and wait until zeusd has carried it out."""
        self._request("POST", route, {**query, "block": "true"})

    def _request(self, method: str, route: str, query: dict[str, object]) -> str:
        connection = _Connection(self.path)
        try:
            connection.request(method, f"{route}?{urlencode(query)}" if query else route)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except PermissionError:
            raise NotPermitted(
                f"no permission to use zeusd's socket {self.path}",
                "start it with: zeusd serve --socket-permissions 666",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise MeterError(
                f"zeusd does not answer on {self.path}: {error}", "check that zeusd is running"
            ) from None
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise _build_error(route, response.status, text)
        return text


def _build_error(route: str, status: int, text: str) -> MeterError:
    message = f"zeusd refused {route} ({status}): {text.strip()[:200]}"
    if status == http.client.UNAUTHORIZED:
        return NotPermitted(message, "this zeusd requires a token, which wattline does not support")
    if status == http.client.FORBIDDEN:
        return NotPermitted(message, "run zeusd as root")
    if status == http.client.NOT_FOUND:
        return NotPermitted(
            message, "start zeusd 0.5 or later with: zeusd serve --enable gpu-control,gpu-read"
        )
    return MeterError(message)


class ZeusdGpu:
    """One GPU of the daemon, with NVML for values that zeusd does not provide, where it works."""

    def __init__(
        self, client: ZeusdClient, number: int, index: int, fields: dict[str, Any], nvml: Gpu | None
    ) -> None:
        self._client, self._number, self._nvml = client, number, nvml
        self.index = index
        self.name = str(fields.get("name") or (nvml.name if nvml else f"GPU {number}"))
        self.kind = find_gpu_kind(self.name)
        address = fields.get("pci_address") or number
        self.uuid = nvml.uuid if nvml else f"ZEUSD-{os.uname().nodename}-{address}"
        self.spec = f"zeusd:{client.path},gpu={number}"
        self._can_read = bool(fields["can_read"])
        self._has_counter = self._can_read and bool(fields.get("cumulative_energy_available", True))
        self._integrator: PowerIntegrator | None = None

    @property
    def method(self) -> str:
        """Source of the energy readings."""
        if self._has_counter:
            return "zeusd energy counter"
        return self._nvml.method if self._nvml else "zeusd power, integrated"

    def energy_j(self) -> float:
        """Return the driver's counter as read by zeusd, else by NVML, else integrated power."""
        if self._has_counter:
            return float(self._get("get_cumulative_energy")["energy_mj"]) / 1e3
        if self._nvml is not None:
            return self._nvml.energy_j()
        if self._integrator is None:
            self._integrator = PowerIntegrator(self.power_w)
        return self._integrator.energy_j()

    def power_w(self) -> float:
        """Return the power draw now."""
        if not self._can_read:
            return self._require_nvml().power_w()
        answer = self._client.get("/gpu/get_power", gpu_ids=self._number)
        return float(self._select(answer.get("power_mw", {}), "get_power")) / 1e3

    def cap_w(self) -> float:
        """Return the power limit."""
        if not self._can_read:
            return self._require_nvml().cap_w()
        return float(self._get("get_power_limit")["power_limit_mw"]) / 1e3

    def cap_range_w(self) -> tuple[float, float]:
        """Return the smallest and the largest power limit."""
        if not self._can_read:
            return self._require_nvml().cap_range_w()
        limits = self._get("get_power_limit_constraints")
        return limits["min_power_limit_mw"] / 1e3, limits["max_power_limit_mw"] / 1e3

    def set_cap(self, watts: float) -> None:
        """Set the power limit through the daemon."""
        check_cap(watts, *self.cap_range_w(), self.name)
        self._client.post("/gpu/set_power_limit", gpu_ids=self._number, power_limit_mw=round(watts * 1e3))

    def lock_clock(self, mhz: float | None) -> None:
        """Lock the clock at *mhz* through the daemon; None: unlock it."""
        if mhz is None:
            self._client.post("/gpu/reset_gpu_locked_clocks", gpu_ids=self._number)
        else:
            clock = round(mhz)
            self._client.post(
                "/gpu/set_gpu_locked_clocks", gpu_ids=self._number, min_clock_mhz=clock, max_clock_mhz=clock
            )

    def temperature_c(self) -> float:
        """Return the temperature from NVML; zeusd does not report it."""
        return self._require_nvml().temperature_c()

    def close(self) -> None:
        """Stop sampling power."""
        if self._integrator is not None:
            self._integrator.stop()

    def _get(self, name: str) -> Any:
        return self._select(self._client.get(f"/gpu/{name}", gpu_ids=self._number), name)

    def _select(self, answer: Any, name: str) -> Any:
        try:
            return answer[str(self._number)]
        except (KeyError, TypeError):
            raise MeterError(f"zeusd's answer to {name} has no GPU {self._number}") from None

    def _require_nvml(self) -> Gpu:
        if self._nvml is None:
            raise MeterError(
                f"GPU {self._number}: zeusd does not read it, and NVML is not available",
                "start zeusd with: zeusd serve --enable gpu-control,gpu-read",
            )
        return self._nvml


class ZeusdMeter:
    """The GPUs of a daemon that a job may use."""

    name = "zeusd"

    def __init__(self, path: str, only: int | None = None) -> None:
        client = ZeusdClient(path)
        answer = client.get("/discover")
        if not isinstance(answer, dict) or not isinstance(answer.get("gpus"), list):
            raise MeterError("zeusd's /discover lists no gpus, expected zeusd 0.5 or later")
        can_read = "gpu-read" in answer.get("enabled_api_groups", ())
        self._nvml = _open_nvml()
        nvml_gpus = {} if self._nvml is None else dict(enumerate(self._nvml.gpus))
        devices = [{**gpu, "can_read": can_read} for gpu in answer["gpus"]]
        selected = (only,) if only is not None else self._select_visible(len(devices), nvml_gpus)
        if only is not None and only >= len(devices):
            raise MeterError(f"zeusd has {len(devices)} GPUs, and no GPU {only}")
        self._gpus = tuple(
            ZeusdGpu(
                client,
                int(devices[number]["id"]),
                index,
                devices[number],
                nvml_gpus.get(int(devices[number]["id"])),
            )
            for index, number in enumerate(selected)
        )

    def _select_visible(self, count: int, nvml_gpus: dict[int, Gpu]) -> tuple[int, ...]:
        text = os.environ.get("CUDA_VISIBLE_DEVICES")
        uuids = [nvml_gpus[i].uuid if i in nvml_gpus else "" for i in range(count)]
        if (
            text
            and not nvml_gpus
            and any(word.strip().startswith(("GPU-", "MIG-")) for word in text.split(","))
        ):
            raise MeterError(
                f"CUDA_VISIBLE_DEVICES is {text!r}, and zeusd knows no UUIDs",
                "type: pip install 'wattline[nvidia]'",
            )
        find_parent = self._nvml.find_mig_parent if self._nvml is not None else lambda instance: None
        return select_visible_devices(text, uuids, find_parent)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
        return self._gpus

    def now_s(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Do nothing: real steps take their own time."""

    def close(self) -> None:
        """Stop sampling power, and close NVML."""
        for gpu in self._gpus:
            gpu.close()
        if self._nvml is not None:
            self._nvml.close()


def _open_nvml() -> NvmlMeter | None:
    """Open NVML with all GPUs, in the order of their indices; None: it does not work here."""
    try:
        return NvmlMeter(None)
    except MeterError:
        return None


def open_driver(options: str = "") -> ZeusdMeter:
    """Open the meter `zeusd` behind a socket."""
    path, *words = options.split(",")
    values = parse_options("zeusd", words, ("gpu",))
    only = parse_whole_number("zeusd", "gpu", values["gpu"]) if "gpu" in values else None
    socket_path = path or os.environ.get("ZEUSD_SOCK_PATH") or SOCKET
    if not os.path.exists(socket_path):
        raise (ConfigError if path else MeterError)(
            f"zeusd's socket {socket_path} does not exist", "check that zeusd is running"
        )
    return ZeusdMeter(socket_path, only)
