"""The tutorial, typed command by command: a fused sweep under a budget, seen in a browser."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from support.browser import open_window, run_chromium
from support.page_run import PageRun
from support.snippets import ROOT, read_blocks

BUDGET_W = 300.0
MEMBERS = [str(number) for number in range(2, 10)]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageRun:
    """Return the tutorial in a clone of this repository, with an environment that is installed already."""
    for variable in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    clone = tmp_path / "clone"
    clone.mkdir()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "demo"]
    for name in filter(None, subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes((ROOT / name).read_bytes())
    return PageRun("tutorial", clone, {"WATTLINE_DIR": str(tmp_path / "service"), "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_the_commands_of_the_tutorial_lead_to_a_fused_sweep_under_a_budget(page: PageRun) -> None:
    token = ""
    try:
        for block in read_blocks(ROOT / "docs" / "tutorial.md"):
            assert not block.reason, "the tutorial has no command that cannot be typed"
            if "token add" in block.text:
                token = page.run_shell(block.text).split()[-1]
            else:
                page.run_block(block)
            if "sweep.yaml\nwattline queue" in block.text:
                check_budget(page)
        check_jobs(page)
        url = Path(page.run_shell("echo $WATTLINE_DIR").strip(), "url").read_text().strip()
        check_pages(url, token)
    finally:
        page.close()


def check_budget(page: PageRun) -> None:
    (budget,) = json.loads(page.run_shell("wattline budget show --json 2> /dev/null"))["budgets"]
    assert "300" in json.dumps(budget)


def check_jobs(page: PageRun) -> None:
    """All members were one array, at a cap within the budget."""
    jobs = json.loads(page.run_shell("wattline queue --all --json 2> /dev/null"))["jobs"]
    by_id = {job["id"]: job for job in jobs}
    assert by_id["1"]["state"] == "SUCCEEDED"
    for member in MEMBERS:
        job = by_id[member]
        assert job["state"] == "SUCCEEDED"
        assert sorted([member, *job["allocation"]["fused_with"]], key=int) == MEMBERS
        assert 0 < job["allocation"]["cap_w"] < BUDGET_W
        assert job["energy_method"] == "simulated"
        assert job["energy_j"] > 0
    samples = json.loads(page.run_shell("wattline power --since 10m --step 10s --json 2> /dev/null"))[
        "samples"
    ]
    first_s = by_id["2"]["start_s"] + 10  # a sample is the mean of the ten seconds before it
    during = [one["power_w"] for one in samples if first_s < one["at_s"] <= by_id["2"]["end_s"]]
    assert during, "the sweep was too short for a sample"
    assert max(during) <= BUDGET_W


def check_pages(url: str, token: str) -> None:
    with run_chromium() as browser, open_window(browser, url) as visitor:
        visitor.log_in(token)
        page = visitor.open("/sweeps/2")
        text = page.inner_text("main")
        assert re.search(r"8\s+of 8", text)
        assert "jobs 2–9 (8)" in text
        visitor.take_picture("tutorial-sweep")
        assert visitor.messages == []
