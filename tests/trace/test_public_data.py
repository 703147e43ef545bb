"""Whether the public traces read, complete and plausible; skipped where they are not at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import Trace, read

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))


def public(path: str) -> str:
    if not (DATA / path.partition("#")[0]).exists():
        pytest.skip(f"{path} is not under {DATA}; set WATTLINE_DATA")
    return str(DATA / path)


@pytest.mark.parametrize(
    ("path", "format", "jobs", "ignored"),
    [
        ("philly/philly_jobs.csv.gz", "philly-csv", 82_247, 0),
        ("synergy/anchor_single_1000.csv", "synergy", 1000, 0),
        ("synergy/static_100job_6_3_1100.0", "synergy", 100, 0),
        ("itp/raw-traces.tar.gz", "itp", 69_351, 0),
        ("itp/elasticflow-traces.tar.gz", "itp", 69_351 + 195, 0),
        ("itp/elasticflow-traces.tar.gz#195job.csv", "itp", 195, 0),
        ("elasticflow/elasticVpollux_e.csv", "itp", 195, 0),
        ("elasticflow/philly_103959.csv", "itp", 876, 0),
        ("elasticflow/resnet_cifar_trace.csv", "itp", 5, 0),
        ("pai/pai2020_task_sample.csv.gz", "pai", 60_105, 0),
        ("pai/openb2023/openb_pod_list_default.csv.gz", "openb", 6203, 8152 - 6203),
        ("pai/openb2023/openb_pod_list_gpuspec33.csv.gz", "openb", 6203, 8152 - 6203),
        ("gavel/traces/max_min_fairness.trace", "gavel", 96, 0),
        ("gavel/traces/minimize_makespan.trace", "gavel", 100, 0),
        ("gavel/traces/msr-seed0/0e4a51.trace.gz", "gavel", 1181, 0),
        ("pollux/workloads/workload-1.csv", "pollux", 160, 0),
        ("muri/trace1.csv.gz", "muri", 1494, 0),
        ("muri/trace2.csv.gz", "muri", 5755, 0),
        ("muri/trace3.csv.gz", "muri", 992, 0),
        ("muri/trace4.csv.gz", "muri", 2638, 0),
    ],
)
def test_a_public_trace_is_recognised_and_complete(path: str, format: str, jobs: int, ignored: int) -> None:
    trace = read(public(path))
    assert (trace.format, len(trace.jobs), trace.ignored, trace.skipped) == (format, jobs, ignored, ())


@pytest.mark.parametrize("count", [120, 220, 460, 900])
def test_shockwave_traces_keep_their_durations(count: int) -> None:
    found = sorted(DATA.glob(f"shockwave/{count}_*.trace"))
    if not found:
        pytest.skip(f"shockwave/{count}_*.trace is not under {DATA}; set WATTLINE_DATA")
    for path in found:
        trace = read(path)
        assert (trace.format, len(trace.jobs)) == ("gavel", count)
        third_last = [float(line.split("\t")[10]) for line in path.read_text().splitlines()]
        assert np.sort(trace.jobs.duration_s) == pytest.approx(np.sort(third_last))


@pytest.mark.parametrize("path", ["gavel/traces", "pollux"])
def test_every_workload_of_a_kind_reads(path: str) -> None:
    files = sorted(Path(public(path)).rglob("*.trace*")) + sorted(Path(public(path)).rglob("workload-*.csv"))
    traces: list[Trace] = [read(file) for file in files]
    assert {trace.format for trace in traces} == {path.partition("/")[0]}
    assert all((trace.jobs.duration_s > 0).all() for trace in traces)


def test_the_pod_list_without_times_says_so() -> None:
    with pytest.raises(TraceError, match="has no times"):
        read(public("pai/openb2023/openb_pod_list_multigpu50.csv.gz"))


@pytest.mark.parametrize("path", ["philly/SOURCE.txt", "philly/vc_nodes.csv", "muri/SOURCE.txt"])
def test_what_is_no_trace_is_not_taken_for_one(path: str) -> None:
    with pytest.raises(TraceError, match="none of the formats"):
        read(public(path))


def test_philly_keeps_its_clock_and_its_clusters() -> None:
    jobs = read(public("philly/philly_jobs.csv.gz")).jobs
    assert jobs.submit_s[:2].tolist() == [0.0, 235_696.0]
    assert len(set(jobs.team.words())) == 15
    assert set(jobs.gpus.tolist()) == {1, 2, 4, 8, 12, 16, 24, 32, 64, 128}


def test_predicted_pollux_durations_are_of_the_right_size() -> None:
    """ElasticFlow has a workload of the same applications with durations of its own."""
    timed = read(public("elasticflow/elasticVpollux_e.csv")).jobs
    ours = read(public("pollux/workloads/workload-1.csv")).jobs
    for name in ("cifar10", "deepspeech2", "bert"):
        there = np.median((timed.duration_s * timed.gpus)[np.array(timed.model.words()) == name])
        here = np.median((ours.duration_s * ours.gpus)[np.array(ours.model.words()) == name])
        assert 0.2 < here / there < 5.0
