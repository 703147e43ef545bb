import os
import re
import shutil
import subprocess

import pytest

import wattline as wl
from support.random_decisions import RandomSwitching, RandomTuning
from wattline import policy
from wattline.placement.pack import Pack
from wattline.reports import build_plot_data, write_html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,3000 --virtual-time-budget=8000 "
    "--enable-logging=stderr --dump-dom"
)
CHOOSE_THE_SECOND = """<script>
const choose = document.getElementById("run");
choose.value = "nodes-1";
choose.dispatchEvent(new Event("change"));
</script>"""


def load(path, profile):
    """Return the DOM after the page's scripts have run, and the console messages."""
    if BROWSER is None:
        assert not os.environ.get("CI"), "chromium is not installed, and the CI variable requires it"
        pytest.skip("chromium is not installed")
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={profile}", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def write(tmp_path):
    def page_of(cluster, *policies):
        jobs = wl.synth(count=80, seed=5, gpus_total=16, load=1.3)
        nodes = wl.parse_cluster(cluster)
        write_html(
            tmp_path / "page.html", [build_plot_data(wl.run(wl.Sim(jobs, nodes), p)) for p in policies]
        )
        return tmp_path / "page.html"

    return page_of


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "drawn"), [("2xv100:8", "trace bars"), ("66xv100:8", "hm")])
def test_a_browser_draws_every_plot_without_console_messages(cluster, drawn, write, tmp_path):
    dom, messages = load(write(cluster, policy.fifo, policy.Las()), tmp_path / "profile")
    assert messages == []
    assert 'data-ready="yes"' in dom
    assert len(re.findall(r'class="plot js-plotly-plot"', dom)) == 4
    assert f'class="{drawn}"' in dom


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "drawn"), [("3xv100:8", "pattern"), ("70xv100:8", "hm")])
def test_a_browser_draws_nodes_that_are_off(cluster, drawn, tmp_path):
    jobs = wl.Jobs.of(submit_s=[0, 900, 2000], gpus=[2] * 3, duration_s=[400] * 3)
    log = wl.run(
        wl.Sim(jobs, wl.parse_cluster(cluster)), RandomTuning(policy.fifo), place=RandomSwitching(Pack())
    )
    write_html(tmp_path / "page.html", log)
    dom, messages = load(tmp_path / "page.html", tmp_path / "profile")
    assert messages == []
    assert 'data-ready="yes"' in dom
    assert (dom.count("<pattern") >= 2) if drawn == "pattern" else (dom.count('class="hm"') == 2)


@pytest.mark.slow
def test_another_run_can_be_chosen_for_the_plot_of_nodes(write, tmp_path):
    path = write("2xv100:8", policy.fifo, policy.srtf)
    path.write_text(
        path.read_text(encoding="utf-8").replace("</body>", CHOOSE_THE_SECOND + "</body>"), "utf-8"
    )
    dom, messages = load(path, tmp_path / "profile")
    assert messages == []
    assert re.search(r'class="plot js-plotly-plot" data-figure="nodes-1"', dom)


@pytest.mark.slow
def test_a_request_to_a_server_is_blocked_and_reported(write, tmp_path):
    path = write("2xv100:8", policy.fifo)
    asking = '<script src="https://example.org/x.js"></script></body>'
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", asking), "utf-8")
    _, messages = load(path, tmp_path / "profile")
    assert "Content Security Policy" in messages[0]
