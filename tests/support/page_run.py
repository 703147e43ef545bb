"""Run the code blocks of a document, in their order, in one folder.

Commands are the real ones, with a few exceptions: a service gets a free port, `pip install` is checked
against the extras of this package, `make` prints what it would do, and an environment is not made anew, since
`test_packaging.py` does that. What a page takes for granted (a training script, a trace) is in
`tests/docs/setups`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.snippets import ROOT, Block
from wattline.jobfile import read_job
from wattline.rules.reader import read_rules
from wattline.service.settings import read_settings
from wattline.trace import read_trace

TIMEOUT_S = 300.0
SETUPS = ROOT / "tests" / "docs" / "setups"

_PIP = """\
import re, sys, tomllib
extras = tomllib.load(open({project!r}, "rb"))["project"]["optional-dependencies"]
words = [word for word in sys.argv[1:] if word != "install" and not word.startswith("-")]
for word in words:
    found = re.fullmatch(r"(?:wattline|\\.)(?:\\[([a-z,]+)\\])?", word)
    if not found or set((found[1] or "report").split(",")) - set(extras):
        sys.exit(f"{{word}} is no package or extra of this project")
"""


class PageRun:
    """The folder, environment and names of one page while its blocks are run."""

    def __init__(self, name: str, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.setup = folder, _load_setup(name)
        self._services: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._env = {
            **os.environ,
            **env,
            "PATH": f"{_write_commands(folder)}{os.pathsep}{os.environ['PATH']}",
        }
        self._env["PYTHONPATH"] = str(ROOT / "src")
        for variable, value in getattr(self.setup, "ENV", {}).items():
            self._env[variable] = value.replace("FOLDER", str(folder))
        for file, text in getattr(self.setup, "FILES", {}).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        getattr(self.setup, "prepare", lambda folder: None)(folder)

    def run_block(self, block: Block) -> None:
        """Run, or check, one block; the setup's hooks for it run around it."""
        if block.reason or block.kind == "text":
            return
        for part, hook in getattr(self.setup, "BEFORE", {}).items():
            if part in block.text:
                hook(self)
        if block.name and block.kind not in ("sh", "python"):
            (self.folder / block.name).write_text(block.text, encoding="utf-8")
        check: Callable[[Block], None] = getattr(self, f"_run_{block.kind}")
        check(block)
        for part, hook in getattr(self.setup, "AFTER", {}).items():
            if part in block.text:
                hook(self)

    def run_shell(self, text: str, place: str = "") -> str:
        """Run commands by bash, and return what they print; a failure fails the test."""
        with open(self.folder / ".output", "wb") as output:
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", text],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
        printed = (self.folder / ".output").read_text(encoding="utf-8", errors="replace")
        assert done.returncode == 0, f"{place}: exit code {done.returncode}\n{text}\n{printed}"
        return printed

    def close(self) -> None:
        """Cancel all jobs, and stop the services that blocks have started."""
        for process, folder in self._services:
            if process.poll() is None and (folder / "url").exists():
                with suppress(AssertionError):
                    self.run_shell(f"wattline cancel --all -y --dir {shlex.quote(str(folder))}")
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    def _run_sh(self, block: Block) -> None:
        text = self._replace(block.text)
        if "wattline serve" in text:
            self._start_service(text, block.place)
        else:
            self.run_shell(text, block.place)

    def _start_service(self, text: str, place: str) -> None:
        """Run a block that ends in a service, and wait until that listens."""
        words = shlex.split(text, comments=True)
        named = words[words.index("--dir") + 1] if "--dir" in words else self._env["WATTLINE_DIR"]
        url, log = self.folder / named / "url", self.folder / "serve.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                ["bash", "-e", "-c", text],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._services.append((process, url.parent))
        until_s = time.monotonic() + TIMEOUT_S
        while not url.exists():
            assert process.poll() is None, f"{place}: {log.read_text()}"
            assert time.monotonic() < until_s, f"{place}: {log.read_text()}"
            time.sleep(0.05)

    def _run_python(self, block: Block) -> None:
        text = self._replace(block.text)
        code = compile("\n" * block.line + text, str(block.path), "exec")  # lines as in the document
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name, value in self._env.items():
                if name.startswith("WATTLINE_"):
                    patch.setenv(name, value)
            exec(code, vars(self.setup))

    def _run_yaml(self, block: Block) -> None:
        """Read a job file; a block without `run` is a part of one."""
        text = block.text if re.search(r"^run:", block.text, re.M) else f"run: python train.py\n{block.text}"
        assert read_job(text, block.place).words

    def _run_toml(self, block: Block) -> None:
        path = self.folder / (block.name or "block.toml")
        path.write_text(block.text, encoding="utf-8")
        if "[[partitions]]" in block.text:
            read_rules([str(path)])
        else:
            read_settings(path, required=True)

    def _run_json(self, block: Block) -> None:
        assert block.name, f"{block.place}: name its file in the line above, as in `plan.json`:"
        json.loads(block.text)

    def _run_csv(self, block: Block) -> None:
        path = self.folder / (block.name or "block.csv")
        path.write_text(block.text, encoding="utf-8")
        assert len(read_trace(str(path)))

    def _run_ini(self, block: Block) -> None:
        """Check a unit of systemd, where its tools are installed."""
        unit = self.folder / (block.name or "one.service")
        unit.write_text(self._replace(block.text), encoding="utf-8")
        self.run_shell(f"! command -v systemd-analyze || systemd-analyze verify {unit}", block.place)

    def _run_nginx(self, block: Block) -> None:
        """Check a part of a configuration of nginx, where that is installed."""
        text = self._replace(block.text)
        server = text if text.startswith("server") else f"server {{ listen 127.0.0.1:8080; {text} }}"
        config = self.folder / "nginx.conf"
        config.write_text(f"pid {self.folder}/pid; events {{}} http {{ access_log off; {server} }}")
        path = "PATH=$PATH:/usr/sbin"
        self.run_shell(f"{path}; ! command -v nginx || nginx -t -q -e stderr -c {config}", block.place)

    def _replace(self, text: str) -> str:
        for old, new in getattr(self.setup, "REPLACE", {}).items():
            text = text.replace(old, new.replace("FOLDER", str(self.folder)))
        return text


def _load_setup(name: str) -> ModuleType:
    path = SETUPS / f"{name}.py"
    module = ModuleType(f"setup_{name}")
    if path.exists():
        spec = importlib.util.spec_from_file_location(module.__name__, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _write_commands(folder: Path) -> Path:
    """Write the stand-ins of commands, and return their folder."""
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    python = shlex.quote(sys.executable)
    (commands / "pip.py").write_text(_PIP.format(project=str(ROOT / "pyproject.toml")))
    scripts: dict[str, Any] = {
        "wattline": f'if [ "$1" = serve ]; then set -- "$@" --port 0; fi\nexec {python} -m wattline "$@"',
        "python": f'exec {python} "$@"',
        "python3": f'exec {python} "$@"',
        "pip": f'exec {python} {commands / "pip.py"} "$@"',
        "make": f'exec /usr/bin/make -n -C {ROOT} "$@" > /dev/null',
    }
    for name, text in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    (commands / "activate").write_text(f"export PATH={shlex.quote(str(commands))}:$PATH\n")
    return commands
