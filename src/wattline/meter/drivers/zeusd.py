"""GPUs whose caps are set by zeusd, the daemon of Zeus, which may do what we may not.

    zeusd[:SOCKET][,gpu=0]

Written against the HTTP API that zeusd 0.5 documents (https://ml.energy/zeus/zeusd/api/), over its unix
socket: $ZEUSD_SOCK_PATH, else /var/run/zeusd.sock. What it does not read (its `gpu-read` group may be off,
and it tells neither UUIDs nor temperatures) is read through NVML where that works. Daemons that want a
token are not spoken to.
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
from wattline.meter.drivers.nvml import Nvml
from wattline.meter.drivers.options import read_options, whole_number, within
from wattline.meter.gpu_names import kind_of
from wattline.meter.power_sampler import Integrator
from wattline.meter.protocol import Gpu
from wattline.meter.visible_devices import visible

SOCKET = "/var/run/zeusd.sock"
_PATIENCE_S = 10.0


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_PATIENCE_S)
        self.sock.connect(self._path)


class Client:
    """Questions and orders to the daemon behind a socket, one connection each."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, route: str, **query: object) -> Any:
        """What it answers."""
        text = self._ask("GET", route, query)
        try:
            return json.loads(text)
        except ValueError:
            raise MeterError(f"zeusd answers {route} with {text[:80]!r}, expected JSON") from None

    def post(self, route: str, **query: object) -> None:
        """Have it do something, and wait until it has."""
        self._ask("POST", route, {**query, "block": "true"})

    def _ask(self, verb: str, route: str, query: dict[str, object]) -> str:
        connection = _Connection(self.path)
        try:
            connection.request(verb, f"{route}?{urlencode(query)}" if query else route)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except PermissionError:
            raise NotPermitted(
                f"zeusd's socket {self.path} may not be used", "zeusd serve --socket-permissions 666"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise MeterError(f"zeusd does not answer on {self.path}: {error}", "is it running?") from None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise _problem(route, answer.status, text)
        return text


def _problem(route: str, status: int, text: str) -> MeterError:
    said = f"zeusd refuses {route} ({status}): {text.strip()[:200]}"
    if status == http.client.UNAUTHORIZED:
        return NotPermitted(said, "this zeusd wants a token, which wattline does not send")
    if status == http.client.FORBIDDEN:
        return NotPermitted(said, "zeusd itself must run as root")
    if status == http.client.NOT_FOUND:
        return NotPermitted(said, "zeusd serve --enable gpu-control,gpu-read; or it is older than 0.5")
    return MeterError(said)


class ZeusdGpu:
    """One GPU behind the daemon, and NVML beside it where that works."""

    def __init__(
        self, client: Client, number: int, index: int, said: dict[str, Any], nvml: Gpu | None
    ) -> None:
        self._client, self._number, self._nvml = client, number, nvml
        self.index = index
        self.name = str(said.get("name") or (nvml.name if nvml else f"GPU {number}"))
        self.kind = kind_of(self.name)
        where = said.get("pci_address") or number
        self.uuid = nvml.uuid if nvml else f"ZEUSD-{os.uname().nodename}-{where}"
        self.spec = f"zeusd:{client.path},gpu={number}"
        self._reads = bool(said["reads"])
        self._counts = self._reads and bool(said.get("cumulative_energy_available", True))
        self._integral: Integrator | None = None

    @property
    def method(self) -> str:
        """Who counts the joules."""
        if self._counts:
            return "zeusd energy counter"
        return self._nvml.method if self._nvml else "zeusd power, integrated"

    def energy_j(self) -> float:
        """The driver's counter, as the daemon reads it."""
        if self._counts:
            return float(self._get("get_cumulative_energy")["energy_mj"]) / 1e3
        if self._nvml is not None:
            return self._nvml.energy_j()
        if self._integral is None:
            self._integral = Integrator(self.power_w)
        return self._integral.energy_j()

    def power_w(self) -> float:
        """What it draws now."""
        if not self._reads:
            return self._beside().power_w()
        said = self._client.get("/gpu/get_power", gpu_ids=self._number)
        return float(self._of(said.get("power_mw", {}), "get_power")) / 1e3

    def cap_w(self) -> float:
        """Its power limit."""
        if not self._reads:
            return self._beside().cap_w()
        return float(self._get("get_power_limit")["power_limit_mw"]) / 1e3

    def cap_range_w(self) -> tuple[float, float]:
        """The least and the largest limit."""
        if not self._reads:
            return self._beside().cap_range_w()
        said = self._get("get_power_limit_constraints")
        return said["min_power_limit_mw"] / 1e3, said["max_power_limit_mw"] / 1e3

    def set_cap(self, watts: float) -> None:
        """Have the daemon set its power limit."""
        within(watts, *self.cap_range_w(), self.name)
        self._client.post("/gpu/set_power_limit", gpu_ids=self._number, power_limit_mw=round(watts * 1e3))

    def lock_clock(self, mhz: float | None) -> None:
        """Have the daemon hold its clock."""
        if mhz is None:
            self._client.post("/gpu/reset_gpu_locked_clocks", gpu_ids=self._number)
        else:
            at = round(mhz)
            self._client.post(
                "/gpu/set_gpu_locked_clocks", gpu_ids=self._number, min_clock_mhz=at, max_clock_mhz=at
            )

    def temperature_c(self) -> float:
        """From NVML: the daemon does not tell."""
        return self._beside().temperature_c()

    def close(self) -> None:
        """Look no more."""
        if self._integral is not None:
            self._integral.stop()

    def _get(self, what: str) -> Any:
        return self._of(self._client.get(f"/gpu/{what}", gpu_ids=self._number), what)

    def _of(self, said: Any, what: str) -> Any:
        try:
            return said[str(self._number)]
        except (KeyError, TypeError):
            raise MeterError(f"zeusd's {what} says nothing of GPU {self._number}") from None

    def _beside(self) -> Gpu:
        if self._nvml is None:
            raise MeterError(
                f"GPU {self._number}: zeusd does not read it, and NVML is not there",
                "zeusd --enable gpu-read",
            )
        return self._nvml


class Zeusd:
    """The GPUs of a daemon that a job may use."""

    name = "zeusd"

    def __init__(self, path: str, only: int | None = None) -> None:
        client = Client(path)
        said = client.get("/discover")
        if not isinstance(said, dict) or not isinstance(said.get("gpus"), list):
            raise MeterError("zeusd's /discover has no gpus, expected those of version 0.5 or later")
        reads = "gpu-read" in said.get("enabled_api_groups", ())
        self._nvml = _nvml()
        beside = {} if self._nvml is None else dict(enumerate(self._nvml.gpus))
        found = [{**gpu, "reads": reads} for gpu in said["gpus"]]
        places = (only,) if only is not None else self._visible(len(found), beside)
        if only is not None and only >= len(found):
            raise MeterError(f"zeusd has {len(found)} GPUs, and no GPU {only}")
        self._gpus = tuple(
            ZeusdGpu(
                client, int(found[place]["id"]), index, found[place], beside.get(int(found[place]["id"]))
            )
            for index, place in enumerate(places)
        )

    def _visible(self, count: int, beside: dict[int, Gpu]) -> tuple[int, ...]:
        text = os.environ.get("CUDA_VISIBLE_DEVICES")
        uuids = [beside[i].uuid if i in beside else "" for i in range(count)]
        if text and not beside and any(word.strip().startswith(("GPU-", "MIG-")) for word in text.split(",")):
            raise MeterError(
                f"CUDA_VISIBLE_DEVICES is {text!r}, and zeusd knows no UUIDs", "install nvidia-ml-py"
            )
        return visible(text, uuids, self._nvml.whole if self._nvml is not None else lambda part: None)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that CUDA_VISIBLE_DEVICES leaves."""
        return self._gpus

    def now_s(self) -> float:
        """Seconds of this machine, without jumps."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Nothing to do: steps take the time they take."""

    def close(self) -> None:
        """Look no more."""
        for gpu in self._gpus:
            gpu.close()
        if self._nvml is not None:
            self._nvml.close()


def _nvml() -> Nvml | None:
    """NVML with all its GPUs, by their numbers; None: it does not work here."""
    try:
        return Nvml(None)
    except MeterError:
        return None


def open_text(text: str = "") -> Zeusd:
    """The meter `zeusd`, behind a socket."""
    path, *words = text.split(",")
    said = read_options("zeusd", words, ("gpu",))
    only = whole_number("zeusd", "gpu", said["gpu"]) if "gpu" in said else None
    where = path or os.environ.get("ZEUSD_SOCK_PATH") or SOCKET
    if not os.path.exists(where):
        raise (ConfigError if path else MeterError)(
            f"zeusd's socket {where} is not there", "is zeusd running?"
        )
    return Zeusd(where, only)
