import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

import wattline as wl
from support.random_decisions import RandomSwitching, RandomTuning
from wattline import policy
from wattline.errors import ConfigError
from wattline.placement.pack import Pack
from wattline.reports import build_plot_data, compare, draw_headline_svg, report, write_html
from wattline.reports.figures.labels import place_labels
from wattline.reports.html import document
from wattline.reports.html.page import build_figures, render_page
from wattline.reports.svg.figure import NARROW, WIDE, render_figure


@pytest.fixture(scope="module")
def digests():
    jobs = wl.synth(count=80, seed=5, gpus_total=16, load=1.3)
    policies = (policy.fifo, policy.srtf, policy.Gandiva(slice_s=3600))
    return [build_plot_data(wl.run(wl.Sim(jobs, wl.parse_cluster("2xv100:8")), p)) for p in policies]


@pytest.fixture(scope="module")
def log():
    jobs = wl.synth(count=30, seed=6, gpus_total=16)
    return wl.run(wl.Sim(jobs, wl.parse_cluster("70xv100:8")), policy.fifo)


@pytest.fixture(scope="module", params=["3xv100:8", "70xv100:8"])
def switched(request):
    """A run in which caps change and nodes are switched off and on."""
    jobs = wl.Jobs.of(submit_s=[0, 900, 2000], gpus=[2] * 3, duration_s=[400] * 3)
    return wl.run(
        wl.Sim(jobs, wl.parse_cluster(request.param)),
        RandomTuning(policy.fifo),
        place=RandomSwitching(Pack()),
    )


def test_every_figure_is_valid_svg(digests, log, switched):
    for runs in (digests, (log,), (switched,)):
        for figure in build_figures(compare(*runs)).values():
            for width in (WIDE, NARROW):
                assert ET.fromstring(render_figure(figure, width, "<chart>")).tag == "svg"


def test_curves_are_drawn_at_their_values(digests):
    svg = ET.fromstring(render_figure(build_figures(compare(*digests))["time"], WIDE, "time"))
    waiting = next(one for one in svg.iter("g") if one.get("data-y-title") == "waiting jobs")
    start, end, low, high, _ = map(float, waiting.get("data-y").split())
    for number, line in enumerate(one for one in waiting.iter("path") if one.get("data-line")):
        pixels = [float(y) for y in re.findall(r"(?:V|M[0-9.]+ )(-?[0-9.]+)", line.get("d"))]
        most = max((start - y) / (start - end) * (high - low) + low for y in pixels)
        assert most == pytest.approx(float(digests[number].series.waiting.value.max()), abs=0.02 * high)


def test_a_page_of_one_run_has_its_figures_and_no_chooser(log, tmp_path):
    write_html(tmp_path / "new" / "one.html", log)
    text = (tmp_path / "new" / "one.html").read_text(encoding="utf-8")
    assert re.findall(r'data-figure="([a-z0-9-]+)"', text) == ["jct", "time", "nodes-0"]
    assert '<select id="run">' not in text
    assert "70xv100:8" in text


def test_a_page_shows_boots_and_cap_changes_only_where_there_were_any(log, switched):
    words = ("caps changed", "nodes switched on", "<td>boots</td>", "<td>nodes off</td>")
    without, with_both = (render_page(compare(run)) for run in (log, switched))
    assert [word in with_both for word in words] == [True] * 4
    assert [word in without for word in words] == [False] * 4


def test_a_page_of_several_runs_has_all_of_them_to_choose_from(digests, tmp_path):
    write_html(tmp_path / "cmp.html", compare(*digests))
    text = (tmp_path / "cmp.html").read_text(encoding="utf-8")
    assert text.count('<option value="nodes-') == 3
    assert len(text) < 1.5e6


def test_a_page_of_reports_has_the_table_and_the_tradeoff(digests):
    assert list(build_figures(compare(*(d.report for d in digests)))) == ["tradeoff"]


def test_a_page_with_thirty_runs_stays_small(digests):
    many = [replace(d, report=replace(d.report, policy=f"p{i}")) for i in range(10) for d in digests]
    assert len(render_page(compare(*many))) < 1.5e6


def test_a_page_loads_nothing_from_a_server(digests):
    text = render_page(compare(*digests))
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text


def test_names_from_a_trace_cannot_write_into_the_page(digests):
    evil = replace(digests[0], report=replace(digests[0].report, policy="</script><b>", trace="<i>"))
    text = render_page(compare(evil, digests[1]))
    assert "<b>" not in text.replace("<b title", "")
    assert "<i>" not in text
    assert text.count("</script>") == 1


def test_without_jinja2_the_error_names_the_extra_to_install(log, tmp_path, monkeypatch):
    document._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError) as caught:
        write_html(tmp_path / "x.html", log)
    assert "needs jinja2, which is not installed" in str(caught.value)
    assert caught.value.hint == "pip install 'wattline[report]'"
    assert not (tmp_path / "x.html").exists()


def test_a_page_begins_with_a_plain_summary(digests, log):
    several, one = render_page(compare(*digests)), render_page(compare(log))
    assert "3 runs, each compared with fifo." in several
    assert "Least energy: " in several
    assert f"fifo finished 30 of 30 jobs on {70 * 8} GPUs" in one


def test_the_headline_is_valid_xml_with_every_run_in_it(digests):
    drawn = ET.fromstring(draw_headline_svg(digests))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"fifo", "srtf", "gandiva"} <= set(words)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 3
    assert (drawn.get("width"), drawn.get("height")) == ("900", "420")


def test_the_headline_of_one_report_is_valid_xml(log):
    ET.fromstring(draw_headline_svg([replace(report(log), policy="<&>")]))


def test_labels_of_near_points_do_not_overlap():
    points = [(300.0 + 4 * i, 200.0 + 3 * i) for i in range(6)]
    labels = place_labels(points, ["some policy"] * 6, (0, 0, 900, 400))
    spots = {(x + label.dx, y + label.dy) for (x, y), label in zip(points, labels, strict=True)}
    assert len(spots) == 6
    tops = sorted(
        y + label.dy for (_, y), label in zip(points, labels, strict=True) if label.anchor == "start"
    )
    assert all(high - low >= 6 for low, high in pairwise(tops))
