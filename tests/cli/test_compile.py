from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wattline.cli.compile_progress import CompileProgress
from wattline.jit import count_all_kernels, count_kernels

Capsys = pytest.CaptureFixture[str]


def test_nothing_is_printed_if_all_kernels_are_in_the_cache(capsys: Capsys) -> None:
    texts: list[str] = []
    progress = CompileProgress(2, texts.append)
    for name in ("advance", "reconcile"):
        progress(name, False)
    progress.finish()
    assert capsys.readouterr().err == ""
    assert texts == []


def test_progress_is_printed_from_the_first_kernel_that_is_compiled(capsys: Capsys) -> None:
    texts: list[str] = []
    progress = CompileProgress(30, texts.append)
    for number in range(30):
        progress(f"kernel_{number}", number >= 5)
    progress.finish()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("compiling kernels for this machine, once")
    assert lines[1:3] == ["compiling kernels 15/30", "compiling kernels 25/30"]
    assert lines[-1].startswith("compiled 25 kernels in ")
    assert (texts[0], texts[-1]) == ("compiling kernels 6/30", "compiling kernels 30/30")


def test_kernels_are_counted_by_what_a_module_imports() -> None:
    assert count_kernels("wattline.units") == 0
    loop, service = count_kernels("wattline.loop.run"), count_kernels("wattline.service.http.app")
    assert 0 < loop <= service <= count_all_kernels()


@pytest.mark.slow
def test_the_count_is_what_an_import_loads() -> None:
    code = (
        "from wattline.jit import on_kernel, count_kernels\n"
        "names = []\n"
        "on_kernel(lambda name, compiled: names.append(name))\n"
        "import wattline.service.controller\n"
        "print(len(names), count_kernels('wattline.service.controller'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, counted = done.stdout.split()
    assert loaded == counted


@pytest.mark.slow
def test_a_cold_cache_is_announced_and_the_second_run_is_silent(tmp_path: Path) -> None:
    code = (
        "from wattline.cli.compile_progress import announce_compilation\n"
        "progress = announce_compilation('wattline.loop.reconcile')\n"
        "import wattline.loop.reconcile\n"
        "progress.finish()"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr
        for _ in range(2)
    )
    assert "compiling kernels for this machine" in first
    assert second == ""


@pytest.mark.slow
def test_the_command_compiles_all(capsys: Capsys) -> None:
    command = [sys.executable, "-m", "wattline", "compile", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["kernels"] == count_all_kernels()
