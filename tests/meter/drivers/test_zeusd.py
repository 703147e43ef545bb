"""zeusd as its documentation describes it: a server of our own answers like it, not the daemon."""

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
from wattline.meter.caps.guard import hold
from wattline.testing import MeterContract

WRITES = {
    "/gpu/set_power_limit": {"power_limit_mw"},
    "/gpu/set_gpu_locked_clocks": {"min_clock_mhz", "max_clock_mhz"},
    "/gpu/reset_gpu_locked_clocks": set[str](),
}


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Two GPUs, and what was asked of them."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.groups = ["gpu-control", "gpu-read"]
        self.counter = True
        self.refuses: tuple[int, str] | None = None
        self.caps = [300_000, 300_000]
        self.energy = [1_000, 2_000]
        self.asked: list[str] = []
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
        daemon.asked.append(self.path)
        if daemon.refuses is not None:
            self.answer(daemon.refuses[0], {"errors": {"0": daemon.refuses[1]}})
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
        if body:  # a client that needs no more may have left
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


def test_what_is_asked_is_what_the_documentation_names(daemon: Daemon) -> None:
    meter = open_meter(f"zeusd:{daemon.path}")
    meter.gpus[1].set_cap(151.5)
    meter.gpus[0].lock_clock(1005)
    meter.gpus[0].lock_clock(None)
    assert daemon.asked == [
        "/gpu/set_power_limit?gpu_ids=1&power_limit_mw=151500&block=true",
        "/gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=1005&max_clock_mhz=1005&block=true",
        "/gpu/reset_gpu_locked_clocks?gpu_ids=0&block=true",
    ]
    assert meter.gpus[1].cap_w() == 151.5
    meter.close()


def test_joules_are_those_of_the_counter(daemon: Daemon) -> None:
    gpu = open_meter(f"zeusd:{daemon.path}").gpus[0]
    assert [gpu.energy_j(), gpu.energy_j()] == [1.5, 2.0]
    assert (gpu.method, gpu.kind, gpu.power_w()) == ("zeusd energy counter", "a40", 100)


def test_without_a_counter_power_is_integrated(daemon: Daemon) -> None:
    daemon.counter = False
    meter = open_meter(f"zeusd:{daemon.path}")
    assert meter.gpus[0].method == "zeusd power, integrated"
    assert meter.gpus[0].energy_j() <= meter.gpus[0].energy_j()
    meter.close()


def test_a_cap_is_held_and_restored_through_the_daemon(daemon: Daemon) -> None:
    daemon.caps = [250_000, 300_000]
    with hold(open_meter(f"zeusd:{daemon.path}").gpus, 150):
        assert daemon.caps == [150_000, 150_000]
    assert daemon.caps == [250_000, 300_000]


def test_who_is_not_let_in_observes(daemon: Daemon) -> None:
    told: list[str] = []
    for status, hint in ((401, "token"), (403, "root"), (404, "gpu-control")):
        daemon.refuses = status, "no"
        gpu = open_meter(f"zeusd:{daemon.path}").gpus[0]
        with pytest.raises(NotPermitted) as caught:
            gpu.set_cap(200)
        assert hint in caught.value.hint
        with hold([gpu], 200, tell=told.append) as held:
            assert gpu.uuid in held.observing
    assert daemon.caps == [300_000, 300_000]
    daemon.refuses = 500, "broken"
    with pytest.raises(MeterError, match="broken"):
        gpu.set_cap(200)


def test_what_the_daemon_does_not_read_is_read_through_nvml(daemon: Daemon, stub: NvmlStub) -> None:
    daemon.groups = ["gpu-control"]
    with pytest.raises(MeterError, match="does not read it, and NVML is not there"):
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


def test_only_what_cuda_sees_is_seen(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (gpu,) = open_meter(f"zeusd:{daemon.path}").gpus
    assert gpu.spec == f"zeusd:{daemon.path},gpu=1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1111")
    with pytest.raises(MeterError, match="zeusd knows no UUIDs"):
        open_meter(f"zeusd:{daemon.path}")
    assert open_meter(gpu.spec).gpus[0].uuid == gpu.uuid
    with pytest.raises(MeterError, match="no GPU 5"):
        open_meter(f"zeusd:{daemon.path},gpu=5")


def test_where_there_is_no_daemon_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        open_meter(f"zeusd:{tmp_path / 'nothing'}")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "nothing"))
    with pytest.raises(MeterError, match="is not there"):
        open_meter("zeusd")
    (tmp_path / "file").write_text("")
    with pytest.raises(MeterError, match="does not answer"):
        open_meter(f"zeusd:{tmp_path / 'file'}")


def test_a_daemon_that_is_gone_is_no_reading(tmp_path: Path) -> None:
    running = Daemon(str(tmp_path / "brief.sock"))
    gpu = open_meter(f"zeusd:{running.path}").gpus[0]
    running.shutdown()
    running.server_close()
    os.unlink(running.path)
    with pytest.raises(MeterError, match="does not answer"):
        gpu.power_w()
