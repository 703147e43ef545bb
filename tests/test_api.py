"""Public API, and imports that pure packages must not have."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wattline

SOURCE = Path(wattline.__file__).parent
IMPURE = {"backend", "meter", "train", "fusion", "service", "cli", "testing", "integrations"}
EXCEPTIONS = {"profiler/run.py", "batch_size/history.py"}  # runs commands; opens SQLite
BANNED = {"time", "subprocess", "random", "torch", "pynvml", "fastapi", "sqlite3"}


def test_the_public_names_are_complete() -> None:
    assert sorted(wattline.__all__) == [
        "Buddy",
        "Budget",
        "Executor",
        "Faults",
        "Jobs",
        "Local",
        "Log",
        "Nodes",
        "Overheads",
        "Pack",
        "Power",
        "PowerTimeline",
        "Price",
        "Profile",
        "Replay",
        "Report",
        "Session",
        "Settings",
        "Sim",
        "TraceModels",
        "WattlineError",
        "WorkloadModels",
        "__version__",
        "begin_window",
        "compare",
        "end_window",
        "fit",
        "fuse",
        "join_nodes",
        "library",
        "nodes",
        "parse_budget",
        "parse_cluster",
        "parse_placer",
        "parse_policy",
        "read_cluster",
        "read_log",
        "read_prices",
        "read_profile",
        "read_series",
        "read_trace",
        "report",
        "run",
        "scaled_lr",
        "steps",
        "synth",
        "timeline",
        "window",
        "write_html",
        "write_log",
        "write_profile",
        "write_trace",
    ]


@pytest.mark.parametrize("name", wattline.__all__)
def test_every_public_name_exists_and_has_a_docstring(name: str) -> None:
    thing = getattr(wattline, name)
    if name != "__version__":
        assert thing.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = wattline.nope


def test_pure_packages_import_no_clock_process_or_randomness() -> None:
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in IMPURE or relative.as_posix() in EXCEPTIONS:
            continue
        if relative.parts[:2] == ("papers", "hfta"):  # times trainings
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & BANNED, f"{path} imports {names}"


def test_help_needs_neither_numpy_nor_numba() -> None:
    code = (
        "import sys, wattline.cli\n"
        "try: wattline.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'numba', 'rich', 'plotly'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "simulate" in done.stdout
