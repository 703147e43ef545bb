import json
import math
from dataclasses import replace

import pytest

import wattline as wl
from wattline import policy
from wattline.errors import ConfigError
from wattline.reports import build_plot_data, compare, report
from wattline.reports.data.pareto_front import mark_pareto_front
from wattline.reports.run_names import name_runs, without_knobs


@pytest.fixture(scope="module")
def logs():
    jobs = wl.synth(count=60, seed=3, gpus_total=8, load=1.3)
    return [
        wl.run(wl.Sim(jobs, wl.parse_cluster("1xv100:8")), p)
        for p in (policy.fifo, policy.srtf, policy.Las())
    ]


def with_figures(found, *pairs):
    return [
        replace(found, policy=f"p{i}", energy_j=energy_j, jct_mean_s=jct_s)
        for i, (energy_j, jct_s) in enumerate(pairs)
    ]


@pytest.mark.slow
def test_ratios_are_to_the_first_run(logs):
    ratios = compare(*logs).ratios
    first, second, _ = map(report, logs)
    assert ratios["jct_mean_s"][0] == 1
    assert ratios["jct_mean_s"][1] == second.jct_mean_s / first.jct_mean_s
    assert set(ratios) == {"jct_mean_s", "jct_p99_s", "makespan_s", "energy_j", "cost"}


def test_logs_digests_and_reports_compare_alike(logs):
    expected = compare(*logs).as_dict()
    assert compare(*map(build_plot_data, logs)).as_dict() == expected
    assert compare(*map(report, logs)).as_dict() == expected


def test_a_comparison_is_valid_json_with_reports_in_the_order_given(logs):
    found = json.loads(json.dumps(compare(*logs).as_dict(), allow_nan=False))
    assert [r["policy"] for r in found["reports"]] == [report(log).policy for log in logs]
    assert len(found["pareto"]) == len(found["ratios"]["energy_j"]) == 3


def test_the_front_holds_the_runs_that_no_other_beats_in_both(logs):
    found = report(logs[0])
    assert mark_pareto_front(with_figures(found, (1, 9), (5, 5), (9, 1), (6, 6), (5, 7))) == (
        True,
        True,
        True,
        False,
        False,
    )


def test_equal_runs_are_both_on_the_front_and_unmetered_ones_never(logs):
    found = report(logs[0])
    assert mark_pareto_front(with_figures(found, (1, 1), (1, 1), (math.nan, 0.5))) == (True, True, False)


def test_the_table_names_every_run_its_ratios_and_the_method_of_its_joules(logs):
    lines = str(compare(*logs)).splitlines()
    assert lines[0].split()[0] == "policy"
    assert [line.split()[0] for line in lines[1:4]] == ["fifo", "srtf", "las"]
    assert "1.00" in lines[1]
    notes = " ".join(lines[4:])
    assert "compared with fifo" in notes
    assert "modelled from" in notes
    assert max(map(len, lines)) <= 80


def test_runs_on_different_clusters_are_distinguished_with_a_warning(logs):
    elsewhere = replace(report(logs[0]), cluster="9xa100:8")
    text = str(compare(report(logs[0]), elsewhere))
    assert "fifo, cluster 9xa100:8" in text
    assert "beware: these runs differ in cluster" in text


def test_nothing_cannot_be_compared():
    with pytest.raises(ConfigError, match="at least one run"):
        compare()


def test_names_are_short_where_that_is_enough(logs):
    found = report(logs[0])
    knobs = [replace(found, policy=text) for text in ("las:quantum=1s", "las:quantum=2s", "fifo")]
    assert name_runs(knobs[1:]) == ("las", "fifo")
    assert name_runs(knobs) == ("las:quantum=1s", "las:quantum=2s", "fifo")
    assert name_runs([found, found]) == ("fifo #1", "fifo #2")
    assert without_knobs("a(b=(1, 2))+c(d)+e") == "a+c+e"
    assert without_knobs("a:b=1/2,c=3s+d+e:budgets=(Budget.watts(5), Budget.eta(0.5))+f") == "a+d+e+f"


def test_the_package_exports_report_and_compare(logs):
    assert wl.report(logs[0]).as_dict() == report(logs[0]).as_dict()
    assert wl.compare(*logs).as_dict() == compare(*logs).as_dict()
