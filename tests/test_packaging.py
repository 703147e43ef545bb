"""Wheel and sdist: built, complete, installed into a new environment, and run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA_SUFFIXES = {".json", ".toml", ".html", ".css", ".js", ".svg", ".txt", ".typed", ".csv"}


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment that can build packages."""
    folder: Path = tmp_path_factory.mktemp("packaging") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if subprocess.run(pip(folder / "bin" / "python", "hatchling"), capture_output=True).returncode:
        pytest.skip("hatchling cannot be installed here: nothing was built")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def dist(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist and return their folder."""
    folder: Path = tmp_path_factory.mktemp("dist")
    build = [str(python), "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def pip(python: Path, *words: str) -> list[str]:
    return [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *words]


def find_wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_has_every_file_that_the_package_reads(dist: Path) -> None:
    names = set(zipfile.ZipFile(find_wheel(dist)).namelist())
    source = ROOT / "src"
    data = {
        path.relative_to(source).as_posix()
        for path in (source / "wattline").rglob("*")
        if path.suffix in DATA_SUFFIXES and "__pycache__" not in path.parts
    }
    assert len(data) > 20, "templates, styles, scripts, the library and schemas"
    assert data <= names
    assert {
        "wattline/py.typed",
        "wattline/jobfile/job.schema.json",
        "hydra_plugins/wattline_launcher.py",
    } <= names
    assert any(name.startswith("wattline/service/web/templates/") for name in names)
    assert any(name.startswith("wattline/service/web/static/") for name in names)
    assert not any(name.startswith(("tests/", "docs/", "scripts/")) for name in names)


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(python: Path, dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"pyproject.toml", "README.md", "LICENSE", "src/wattline/__init__.py"} <= files
    (source,) = tmp_path.iterdir()
    build = [str(python), "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    names = [sorted(zipfile.ZipFile(find_wheel(folder)).namelist()) for folder in (dist, tmp_path / "again")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_the_wheel_runs_in_a_new_environment(python: Path, dist: Path, tmp_path: Path) -> None:
    subprocess.run(pip(python, "--no-deps", str(find_wheel(dist))), check=True)

    def run(*words: str) -> str:
        command = [str(python.with_name("wattline")), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    assert "submit a job or a sweep" in run("--help")
    assert '"Wattline job file"' in run("schema", "job")
    assert json.loads(run("version", "--json"))["wattline"] == "0.1.0"
    assert run("man").startswith(".TH WATTLINE")


@pytest.mark.slow
def test_pipx_installs_the_wheel(dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("pipx") is None:
        pytest.skip("pipx is not installed")
    for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    words = ["pipx", "install", "--python", sys.executable, str(find_wheel(dist))]
    done = subprocess.run(words, capture_output=True, text=True)
    if "No matching distribution" in done.stderr:
        pytest.skip(f"pip finds no packages here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    command = tmp_path / "pipx_bin_dir" / "wattline"
    assert (
        "submit a job"
        in subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    )
