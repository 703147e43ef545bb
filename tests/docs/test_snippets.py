"""Every code block of README and the documents is run, or says why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http_service import serve_http
from support.page_run import SETUPS, PageRun
from support.slurm_cluster import SlurmCluster, require_slurm
from support.slurm_database import DATABASE_PROGRAMS
from support.snippets import KINDS, ROOT, Block, find_fault, list_pages, read_blocks

ELSEWHERE = {"tutorial": "test_tutorial.py"}
"""Pages that another test runs."""
ON_SLURM = {"slurm": "slurm_cluster"} | dict.fromkeys(("rules", "traces", "whatif"), "accounted_cluster")
"""Pages with commands of Slurm, and the real cluster on which they run."""
FAST = ("yaml", "toml", "json")

PAGES = [path for path in list_pages() if read_blocks(path) and path.stem not in ELSEWHERE]


@pytest.mark.parametrize("path", list_pages(), ids=lambda path: path.stem)
def test_every_block_names_its_language(path: Path) -> None:
    faults = [f"{block.place}: {fault}" for block in read_blocks(path) if (fault := find_fault(block))]
    assert not faults, "\n".join(faults)


def test_setups_belong_to_pages() -> None:
    assert {path.stem for path in SETUPS.glob("*.py")} <= {path.stem for path in PAGES}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```\nwattline queue\n```\n", "language is ''"),
        ("```text\nwattline queue\n```\n", "mark it as sh"),
        ("```rust\n```\n", "language is 'rust'"),
        ("```text\njob 1 is RUNNING\n```\n", ""),
        ("```sh\nwattline queue\n```\n", ""),
    ],
)
def test_a_block_that_is_not_marked_is_found(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    (block,) = read_blocks(tmp_path / "page.md")
    assert fault in find_fault(block)
    assert bool(fault) == bool(find_fault(block))


def test_a_reason_is_the_line_below_a_block(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "```sh\na\n```\n\nNot run by the tests: it needs a GPU.\n\n```sh\nb\n```\nText.\n"
    )
    first, second = read_blocks(tmp_path / "page.md")
    assert (first.reason, second.reason) == ("it needs a GPU.", "")


def test_a_wrong_job_file_and_wrong_settings_fail(tmp_path: Path) -> None:
    page = PageRun("none", tmp_path, {})
    for kind, text in (("yaml", "run: a\ngpus: 1\n"), ("toml", "[retention]\njob = '1d'\n"), ("json", "{")):
        with pytest.raises(Exception, match=r"gpus|job|Expecting"):
            page.run_block(Block(ROOT / "README.md", 1, kind, text, "block.json", ""))
    with pytest.raises(AssertionError, match="exit code 3"):
        page.run_block(Block(ROOT / "README.md", 1, "sh", "exit 3", "", ""))
    with pytest.raises(ZeroDivisionError):
        page.run_block(Block(ROOT / "README.md", 1, "python", "1 / 0", "", ""))


def test_job_files_and_settings_are_valid(tmp_path: Path) -> None:
    page = PageRun("none", tmp_path, {})
    blocks = [block for path in list_pages() for block in read_blocks(path) if block.kind in FAST]
    assert len(blocks) > 10
    for block in blocks:
        page.run_block(block)


@pytest.fixture(scope="module")
def accounting_slurm() -> Iterator[SlurmCluster]:
    """Start a Slurm cluster with accounting, as sacct and sacctmgr need it."""
    require_slurm(*DATABASE_PROGRAMS)
    if os.geteuid() != 0:
        pytest.skip("slurmdbd and MariaDB of this test need root")
    with SlurmCluster(nodes=2, gpus=2, database=True) as cluster:
        yield cluster


@pytest.fixture
def accounted_cluster(accounting_slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Return that cluster, which Slurm's commands find in this test."""
    for name, value in accounting_slurm.environment.items():
        monkeypatch.setenv(name, value)
    return accounting_slurm


@pytest.fixture
def page(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PageRun]:
    """Return the page of the test in its folder; a service runs if its setup wants one."""
    name = request.param
    if name in ON_SLURM:
        request.getfixturevalue(ON_SLURM[name])
    for variable in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    env = {"WATTLINE_DIR": str(tmp_path / "service"), "WATTLINE_STATE": str(tmp_path / "state")}
    folder = tmp_path / "page"
    folder.mkdir()
    run = PageRun(name, folder, env)
    try:
        if getattr(run.setup, "SERVICE", False):
            with serve_http(tmp_path / "service"):
                yield run
        else:
            yield run
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("page", [path.stem for path in PAGES], indirect=True, ids=str)
def test_every_block_of_the_page_runs(page: PageRun, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["page"]
    (path,) = (one for one in PAGES if one.stem == name)
    ran = 0
    for block in read_blocks(path):
        assert block.kind in KINDS
        page.run_block(block)
        ran += not block.reason and block.kind != "text"
    assert ran or all(block.reason or block.kind == "text" for block in read_blocks(path))
