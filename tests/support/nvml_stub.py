"""Simulated GPUs of nvml_stub.c: set up and inspected by tests through a shared file."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

_HEAD = struct.Struct("II")
_GPU = struct.Struct("@64s64s64s8IddQ8I")
_NUMBERS = ("cap_mw", "least_mw", "most_mw", "draw_mw", "clock_mhz", "lost", "denied", "counterless")
_MORE = ("mig_mode", "capless", "reasons", "pid", "other_pid", "mem_mib", "renewed_ms", "pad")
_FIELDS = ("uuid", "mig", "name", *_NUMBERS, "energy_mj", "at_s", "sets", *_MORE)
UUIDS = tuple(f"GPU-{i}{i}{i}{i}aaaa-bbbb-cccc-dddd-eeeeffff0000" for i in range(4))


def compile_stub(folder: Path) -> Path:
    """Compile the stub and return the folder for LD_LIBRARY_PATH."""
    source, library = Path(__file__).parents[1] / "meter" / "nvml_stub.c", folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(source), "-lm"], check=True)
    return folder


class NvmlStub:
    """GPUs in a shared file: `stub["draw_mw", 0]` is the draw of the first."""

    def __init__(
        self, path: Path, library: Path, count: int = 2, name: str = "NVIDIA A100-SXM4-80GB"
    ) -> None:
        self.path, self.library = path, library
        numbers = (400_000, 100_000, 400_000, 200_000, 0, 0, 0, 0, 0.0, 0.0, 0)
        more = (0, 0, 0, 0, 0, 81920, 0, 0)
        rows = [(u.encode(), b"", name.encode(), *numbers, *more) for u in UUIDS]
        path.write_bytes(_HEAD.pack(count, 0) + b"".join(_GPU.pack(*row) for row in rows))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, key: tuple[str, int]) -> float | bytes:
        name, gpu = key
        return _GPU.unpack_from(self._map, _HEAD.size + gpu * _GPU.size)[_FIELDS.index(name)]

    def __setitem__(self, key: tuple[str, int], value: float | bytes) -> None:
        name, gpu = key
        row = list(_GPU.unpack_from(self._map, _HEAD.size + gpu * _GPU.size))
        row[_FIELDS.index(name)] = value
        _GPU.pack_into(self._map, _HEAD.size + gpu * _GPU.size, *row)

    def env(self, **more: str) -> dict[str, str]:
        """Return an environment in which the NVML bindings load this stub."""
        env = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "WATTLINE_METER")}
        return {**env, "LD_LIBRARY_PATH": str(self.library), "STUB_FILE": str(self.path), **more}

    def run(self, code: str, **env: str) -> str:
        """Run *code* in a new process, with `open_meter` imported, and return its output."""
        code = f"from wattline.meter import open_meter\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.env(**env), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
