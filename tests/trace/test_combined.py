"""What the trace for every lever promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import wattline as wl
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.errors import ConfigError
from wattline.models.library import library
from wattline.trace import read, write_trace
from wattline.trace.combined import combined
from wattline.trace.reader import find_timed_on


def has_word(column: Labels) -> np.ndarray:
    return np.array([word != "" for word in column.words()])


def test_the_offered_load_is_exactly_what_was_asked_for() -> None:
    for load in (0.5, 0.95):
        jobs = combined(count=200, load=load, gpus_total=64, seed=3)
        assert float(jobs.gpus @ jobs.duration_s) / (64 * jobs.submit_s[-1]) == pytest.approx(load, rel=1e-6)


def test_classes_have_their_shares() -> None:
    jobs = combined(count=20_000)
    sweep, recurring = has_word(jobs.fuse), has_word(jobs.key)
    host, elastic = jobs.cpus > 0, jobs.min_gpus < jobs.max_gpus
    assert [float(mask.mean()) for mask in (sweep, recurring, host)] == pytest.approx(
        [0.25, 0.2, 0.25], abs=0.02
    )
    assert float(elastic.mean()) == pytest.approx(0.2, abs=0.02)
    assert int((sweep.astype(int) + recurring + host + elastic).max()) == 1  # each job has one lever
    assert (jobs.gpus[sweep | recurring] == 1).all()
    assert (jobs.max_batch[~recurring] == 0).all()
    assert (jobs.noise[recurring] > jobs.batch[recurring]).all()


def test_every_model_is_in_the_library_and_measured_on_a_v100() -> None:
    jobs = combined(count=2000)
    for name in set(jobs.model.words()):
        assert library().find(name, "v100").gpu == "v100"
    assert find_timed_on("combined") == "v100"


def test_recurrences_and_sweeps_agree_in_what_they_ask_for() -> None:
    jobs = combined(count=1000)
    for column in (jobs.key, jobs.fuse):
        for key, members in Counter(column.words()).items():
            if key and members > 1:
                same = jobs.take(np.flatnonzero(np.array(column.words()) == key))
                for part in (same.batch, same.max_batch, same.noise, same.gpus, same.model.codes):
                    assert len(set(part.tolist())) == 1


@pytest.mark.parametrize("lever", ["batch", "gpus", "host", "fuse"])
def test_each_lever_makes_some_job_faster(lever: str) -> None:
    jobs = combined(count=400)
    row = {
        "batch": (jobs.max_batch >= 2 * jobs.batch) & (jobs.batch > 0),
        "gpus": jobs.max_gpus >= 2 * jobs.gpus,
        "host": jobs.cpus > 0,
        "fuse": has_word(jobs.fuse),
    }[lever]
    rows = np.flatnonzero(row)
    plain = Grants.of(rows, jobs.gpus[rows], np.ones(len(rows), int), kind="v100")
    changed = Grants.of(
        rows,
        jobs.gpus[rows] * (2 if lever == "gpus" else 1),
        np.ones(len(rows), int),
        batch=2 * jobs.batch[rows] if lever == "batch" else np.zeros(len(rows), int),
        host=np.tile([[12_000], [120 * 1024], [0]], len(rows)) if lever == "host" else None,
        members=np.full(len(rows), 4 if lever == "fuse" else 1),
        fused=np.full(len(rows), lever == "fuse"),
        kind="v100",
    )
    gain = library().speed(jobs, changed) / library().speed(jobs, plain)
    assert (4 if lever == "fuse" else 1) * gain.max() > 1.05


def test_one_long_job_stands_among_short_ones() -> None:
    jobs = combined(count=200, long_h=40.0, tail=0.0)
    order = np.sort(jobs.duration_s)[::-1]
    assert order[0] == 40 * 3600
    assert order[1] < 25 * 3600
    assert jobs.submit_s[jobs.duration_s.argmax()] < 0.2 * jobs.submit_s[-1]


def test_mixed_jobs_accept_the_kinds_they_were_measured_on() -> None:
    jobs = combined(count=300, mixed=1)
    for model, kinds in zip(jobs.model.words(), jobs.gpu_kind.words(), strict=True):
        for kind in kinds.split("|"):
            assert library().find(model, kind).gpu == kind
    assert set(combined(count=300).gpu_kind.words()) == {""}


def test_a_path_gives_the_same_jobs_which_can_be_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    trace = read("combined:count=80,seed=4,long_h=40")
    assert trace.format == "combined"
    assert equal(trace.jobs, combined(count=80, seed=4, long_h=40.0))
    write_trace(trace.jobs, tmp_path / "jobs.csv")
    assert equal(read(tmp_path / "jobs.csv").jobs, trace.jobs)
    assert read("combined:seed=1").sha256 != read("combined:seed=2").sha256


def equal(one: Jobs, two: Jobs) -> bool:
    numbers = ("submit_s", "gpus", "steps", "deadline_s", "late_per_h", "noise", "max_batch", "checkpoint_s")
    words = ("model", "key", "fuse", "gpu_kind", "user")
    return all(getattr(one, name).tolist() == getattr(two, name).tolist() for name in numbers) and all(
        list(getattr(one, name).words()) == list(getattr(two, name).words()) for name in words
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuont=5", "combined: unknown parameter 'cuont', did you mean 'count'"),
        ("count=1", "combined: count is 1, expected at least 2"),
        ("load=0", "combined: load is 0.0"),
        ("sweep=0.9", "combined: sweep + host + recurring + elastic is 1.55, expected at most 1"),
        ("host=-0.1", "combined: host is -0.1, expected a share from 0 to 1"),
        ("mixed=2", "combined: mixed is 2, expected 0 or 1"),
        ("long_h=inf", "combined: long_h is inf"),
    ],
)
def test_bad_parameters_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"combined:{text}")
    assert message in caught.value.message


def test_a_simulation_of_it_ends_with_every_lever_on() -> None:
    jobs = combined(count=60, seed=2)
    models = library()
    sim = wl.Sim(jobs, wl.parse_cluster("4xv100:8"), truth=models)
    log = wl.run(sim, wl.parse_policy("fifo+fuse+cap"), models)
    assert wl.report(log).unfinished == 0
