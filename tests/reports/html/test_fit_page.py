import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from support.small_profiles import CAPS, build_cap_profile, build_scaling_profile, write_csv
from wattline import Profile
from wattline.models.fit_quality import fit_file
from wattline.reports.figures.fit_lines import MAX_LINES, group_lines, list_curve_settings
from wattline.reports.html.fit_page import build_fit_figures, render_fit_page, write_fit_page
from wattline.reports.svg.figure import NARROW, WIDE, render_figure


@pytest.fixture
def fits(tmp_path):
    return [
        *fit_file(write_csv(build_cap_profile(), tmp_path)),
        *fit_file(write_csv(build_scaling_profile(), tmp_path)),
    ]


@pytest.mark.slow
def test_every_figure_is_valid_svg(fits):
    for figure in build_fit_figures(fits).values():
        for width in (WIDE, NARROW):
            assert ET.fromstring(render_figure(figure, width, "a chart")).tag == "svg"


@pytest.mark.slow
def test_a_fit_has_a_figure_for_every_knob_that_was_varied(fits):
    assert list(build_fit_figures(fits)) == [
        "fit-0-batch",
        "fit-0-cap_w",
        "fit-0-errors",
        "fit-1-gpus",
        "fit-1-errors",
    ]


@pytest.mark.slow
def test_every_measured_point_is_in_the_figure(fits):
    points = [t for t in build_fit_figures(fits)["fit-0-cap_w"]["data"] if t["mode"] == "markers"]
    rows = fits[0].rows
    for axis, column in ((None, rows.samples_s), ("x2", rows.watts)):
        drawn = [t for t in points if t["xaxis"] == (axis or "x")]
        assert len(drawn) == 3
        assert all(t["x"] == CAPS.tolist() for t in drawn)
        assert sorted(y for t in drawn for y in t["y"]) == sorted(column.tolist())


def test_the_curves_are_what_the_models_predict(fits):
    figure = build_fit_figures(fits)["fit-0-cap_w"]
    curve = next(t for t in figure["data"] if t["mode"] == "lines" and t["xaxis"] == "x2")
    cap_w, watts = curve["x"], curve["y"]
    settings = fits[0].rows.settings.take(np.zeros(len(cap_w), dtype=np.int64))
    assert curve["name"] == "batch 32"
    expected = fits[0].workload.throttle.at(settings.batch, cap_w.astype(np.float64), settings.clock_mhz)[1]
    np.testing.assert_allclose(watts, expected, rtol=1e-5)


def test_without_watts_there_is_no_plot_of_watts(fits):
    layout = build_fit_figures(fits)["fit-1-gpus"]["layout"]
    assert "yaxis2" not in layout
    assert layout["xaxis"]["title"]["text"] == "GPUs"


@pytest.mark.slow
def test_axes_have_titles_with_units(fits):
    layout = build_fit_figures(fits)["fit-0-cap_w"]["layout"]
    titles = [layout[name]["title"]["text"] for name in ("xaxis", "yaxis", "xaxis2", "yaxis2")]
    assert titles == [
        "power cap of a GPU (W)",
        "samples/s",
        "power cap of a GPU (W)",
        "watts of the job (W)",
    ]


@pytest.mark.slow
def test_a_page_of_a_fit_holds_its_figures_and_its_errors(fits, tmp_path):
    write_fit_page(tmp_path / "new" / "fit.html", "data/mine.csv", fits)
    text = (tmp_path / "new" / "fit.html").read_text(encoding="utf-8")
    assert re.findall(r'data-figure="([a-z0-9_-]+)"', text) == list(build_fit_figures(fits))
    assert "<h1>Fit of mine.csv</h1>" in text
    assert f"Held out: {fits[0]}." in text
    assert "Watts were not measured." in text


@pytest.mark.slow
def test_a_page_of_a_fit_loads_nothing_from_a_server(fits):
    text = render_fit_page("mine.csv", fits)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text


def test_names_from_a_profile_cannot_write_into_the_page(tmp_path):
    evil = list(fit_file(write_csv(build_cap_profile(model="</script><b>"), tmp_path)))
    text = render_fit_page("<i>.csv", evil)
    assert "<b>" not in text
    assert "<i>" not in text
    assert text.count("</script>") == 1


def test_rows_that_differ_in_two_knobs_are_not_on_one_line():
    rows = Profile.of(model="m", gpu="t4", batch=[8, 16, 8], cap_w=[50, 60, 70], samples_s=[1, 2, 3])
    drawn, line_count = group_lines(rows, "cap_w")
    assert line_count == len(drawn) == 1
    assert drawn[0].rows.tolist() == [0, 2]


def test_of_many_lines_the_longest_are_drawn_from_the_first_to_the_last():
    batch, cap_w = np.meshgrid(2.0 ** np.arange(12), CAPS, indexing="ij")
    rows = Profile.of(model="m", gpu="t4", batch=batch.ravel(), cap_w=cap_w.ravel(), samples_s=1.0)
    drawn, line_count = group_lines(rows, "cap_w")
    assert (len(drawn), line_count) == (MAX_LINES, 12)
    assert (drawn[0].name, drawn[-1].name) == ("batch 1", "batch 2048")


def test_numbers_of_gpus_are_on_their_fewest_nodes_and_at_one_batch_of_each():
    rows = Profile.of(
        model="m", gpu="t4", gpus=[1, 4, 4, 8], nodes=[1, 2, 1, 2], batch=[8, 32, 32, 64], samples_s=1.0
    )
    (line,), _ = group_lines(rows, "gpus")
    assert line.rows.tolist() == [0, 2, 3]
    assert list_curve_settings(rows, "gpus", line).nodes.tolist() == [1, 1, 2]
