"""zeusd as documented: tested against a server written after its documentation, not against the daemon."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from support.nvml_stub import UUIDS, NvmlStub
from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.meter import Meter, open_meter
from wattline.meter.caps.guard import guard_caps
from wattline.testing import MeterContract

WRITES = {
    "/gpu/set_power_limit": {"power_limit_mw"},
    "/gpu/set_gpu_locked_clocks": {"min_clock_mhz", "max_clock_mhz"},
    "/gpu/reset_gpu_locked_clocks": set[str](),
}


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Server with two GPUs that records the POST requests."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.groups = ["gpu-control", "gpu-read"]
        self.counter = True
        self.refusal: tuple[int, str] | None = None
        self.caps = [300_000, 300_000]
        self.energy = [1_000, 2_000]
        self.requests: list[str] = []
        super().__init__(path, Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Daemon

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        of = [int(i) for i in query.pop("gpu_ids", "0,1").split(",")]
        daemon = self.server
        if url.path == "/discover":
            gpu: dict[str, Any] = {"name": "NVIDIA A40", "cumulative_energy_available": daemon.counter}
            gpus = [{"id": i, "pci_address": f"0000:0{i}:00.0", **gpu} for i in (0, 1)]
            self.answer(200, {"gpus": gpus, "cpus": [], "enabled_api_groups": daemon.groups})
        elif "gpu-read" not in daemon.groups:
            self.answer(404, {"error": "disabled"})
        elif query or any(i > 1 for i in of):
            self.answer(400, {"error": "bad query"})
        elif url.path == "/gpu/get_power":
            self.answer(200, {"timestamp_ms": 1, "power_mw": {str(i): 100_000 for i in of}})
        elif url.path == "/gpu/get_cumulative_energy":
            for i in of:
                daemon.energy[i] += 500
            self.answer(200, {str(i): {"energy_mj": daemon.energy[i]} for i in of})
        elif url.path == "/gpu/get_power_limit":
            self.answer(200, {str(i): {"power_limit_mw": daemon.caps[i]} for i in of})
        elif url.path == "/gpu/get_power_limit_constraints":
            limits = {"min_power_limit_mw": 100_000, "max_power_limit_mw": 300_000}
            self.answer(200, {str(i): limits for i in of})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        daemon = self.server
        daemon.requests.append(self.path)
        if daemon.refusal is not None:
            self.answer(daemon.refusal[0], {"errors": {"0": daemon.refusal[1]}})
        elif set(query) != {"gpu_ids", "block", *WRITES[url.path]}:
            self.answer(400, {"error": "unknown or missing field"})
        else:
            if "power_limit_mw" in query:
                daemon.caps[int(query["gpu_ids"])] = int(query["power_limit_mw"])
            self.answer(200, None)

    def answer(self, status: int, data: object) -> None:
        body = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body:  # without a body the client may already have closed the connection
            self.wfile.write(body)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(str(tmp_path / "zeusd.sock"))
    yield running
    running.shutdown()
    running.server_close()


class TestZeusd(MeterContract):
    daemon: ClassVar[Daemon]

    @pytest.fixture(autouse=True)
    def _daemon(self, daemon: Daemon) -> None:
        type(self).daemon = daemon

    def make(self) -> Meter:
        return open_meter(f"zeusd:{self.daemon.path}")


def test_requests_are_those_of_the_documentation(daemon: Daemon) -> None:
    meter = open_meter(f"zeusd:{daemon.path}")
    meter.gpus[1].set_cap(151.5)
    meter.gpus[0].lock_clock(1005)
    meter.gpus[0].lock_clock(None)
    assert daemon.requests == [
        "/gpu/set_power_limit?gpu_ids=1&power_limit_mw=151500&block=true",
        "/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=1005&max_clock_mhz=1005&block=true",
        "/gpu/reset_gpu_locked_clocks?gpu_ids=0&block=true",
    ]
    assert meter.gpus[1].cap_w() == 151.5
    meter.close()


def test_energy_is_the_counter_of_the_daemon(daemon: Daemon) -> None:
    gpu = open_meter(f"zeusd:{daemon.path}").gpus[0]
    assert [gpu.energy_j(), gpu.energy_j()] == [1.5, 2.0]
    assert (gpu.method, gpu.kind, gpu.power_w()) == ("zeusd energy counter", "a40", 100)


def test_without_a_counter_power_is_integrated(daemon: Daemon) -> None:
    daemon.counter = False
    meter = open_meter(f"zeusd:{daemon.path}")
    assert meter.gpus[0].method == "zeusd power, integrated"
    assert meter.gpus[0].energy_j() <= meter.gpus[0].energy_j()
    meter.close()


def test_a_cap_is_set_and_restored_through_the_daemon(daemon: Daemon) -> None:
    daemon.caps = [250_000, 300_000]
    with guard_caps(open_meter(f"zeusd:{daemon.path}").gpus, 150):
        assert daemon.caps == [150_000, 150_000]
    assert daemon.caps == [250_000, 300_000]


@pytest.mark.slow
def test_refused_requests_are_not_permitted_and_gpus_are_observed(daemon: Daemon) -> None:
    warnings: list[str] = []
    for status, hint in ((401, "token"), (403, "root"), (404, "gpu-control")):
        daemon.refusal = status, "no"
        gpu = open_meter(f"zeusd:{daemon.path}").gpus[0]
        with pytest.raises(NotPermitted) as caught:
            gpu.set_cap(200)
        assert hint in caught.value.hint
        with guard_caps([gpu], 200, warn=warnings.append) as guard:
            assert gpu.uuid in guard.observing
    assert daemon.caps == [300_000, 300_000]
    daemon.refusal = 500, "broken"
    with pytest.raises(MeterError, match="broken"):
        gpu.set_cap(200)


def test_values_that_the_daemon_does_not_read_come_from_nvml(daemon: Daemon, stub: NvmlStub) -> None:
    daemon.groups = ["gpu-control"]
    with pytest.raises(MeterError, match="does not read it, and NVML is not available"):
        open_meter(f"zeusd:{daemon.path}").gpus[0].power_w()
    code = (
        "from wattline.meter import open_meter\n"
        f"g = open_meter('zeusd:{daemon.path}').gpus[0]\n"
        "g.set_cap(222)\n"
        "print(g.uuid, g.method, g.power_w(), g.temperature_c(), g.energy_j() > -1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=stub.env(CUDA_VISIBLE_DEVICES=UUIDS[1]),
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"{UUIDS[1]} nvml energy counter 200.0 41.0 True", done.stderr
    assert daemon.caps == [300_000, 222_000]


def test_only_visible_gpus_are_listed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = open_meter(f"zeusd:{daemon.path}").gpus
    assert gpu.spec == f"zeusd:{daemon.path},gpu=1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1111")
    with pytest.raises(MeterError, match="zeusd knows no UUIDs"):
        open_meter(f"zeusd:{daemon.path}")
    assert open_meter(gpu.spec).gpus[0].uuid == gpu.uuid
    with pytest.raises(MeterError, match="no GPU 5"):
        open_meter(f"zeusd:{daemon.path},gpu=5")


def test_a_missing_daemon_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        open_meter(f"zeusd:{tmp_path / 'nothing'}")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "nothing"))
    with pytest.raises(MeterError, match="does not exist"):
        open_meter("zeusd")
    (tmp_path / "file").write_text("")
    with pytest.raises(MeterError, match="does not answer"):
        open_meter(f"zeusd:{tmp_path / 'file'}")


def test_a_reading_after_the_daemon_has_ended_is_an_error(tmp_path: Path) -> None:
    running = Daemon(str(tmp_path / "brief.sock"))
    gpu = open_meter(f"zeusd:{running.path}").gpus[0]
    running.shutdown()
    running.server_close()
    os.unlink(running.path)
    with pytest.raises(MeterError, match="does not answer"):
        gpu.power_w()
