"""What is written reads back the same."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.core.jobs import Jobs
from wattline.errors import InputError, TraceError
from wattline.measurement.gpu_names import find_gpu_kinds
from wattline.trace import read, read_trace, synth, write_trace

FLOATS = (
    *("submit_s", "steps", "step_s", "deadline_s", "priority", "gpus", "batch", "whole", "id"),
    *("min_gpus", "max_gpus", "max_batch", "noise", "preemptible", "checkpoint_s", "min_runtime_s"),
)
WORDS = ("team", "user", "model", "gpu_kind", "key", "fuse", "status")
seconds = st.floats(0, 1e12)
words = st.text(max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> Jobs:
    ids = draw(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6, unique=True))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=len(ids), max_size=len(ids)))

    if draw(st.booleans()):
        work: dict[str, Any] = {"duration_s": column(seconds)}
    else:
        work = {"steps": column(seconds), "step_s": column(st.floats(1e-300, 1e9))}
    labels: dict[str, Any] = {name: column(words) for name in WORDS}
    # A reader spells the names of GPUs in one way, and hypothesis draws such names from our own sources.
    labels["gpu_kind"] = [find_gpu_kinds(word) for word in labels["gpu_kind"]]
    gpus, batch = np.array(column(st.integers(1, 10**6))), np.array(column(st.integers(0, 10**12)))
    share = np.array(column(st.sampled_from((0.0, 0.1, 1.0))))
    more = np.array(column(st.sampled_from((0, 1, 1, 7))))
    return Jobs.of(
        id=ids,
        submit_s=column(st.floats(-1e12, 1e12)),
        gpus=gpus,
        min_gpus=np.floor(share * gpus).astype(np.int64),
        max_gpus=more * gpus,
        max_batch=np.minimum(more, 1) * batch,
        noise=column(st.one_of(st.just(0.0), st.floats(0, 1e12))),
        deadline_s=column(st.one_of(seconds, st.just(math.inf))),
        priority=column(st.floats(-1e9, 1e9)),
        batch=batch,
        preemptible=column(st.integers(0, 2)),
        checkpoint_s=column(st.one_of(st.sampled_from((0.0, -1.0)), st.floats(1e-3, 1e9))),
        min_runtime_s=column(st.one_of(st.just(0.0), st.floats(0, 1e9))),
        **work,
        **labels,
    )


def assert_equal(one: Jobs, two: Jobs) -> None:
    for name in FLOATS:
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    for name in WORDS:
        assert getattr(one, name).words() == getattr(two, name).words(), name


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=tables(), suffix=st.sampled_from([".csv", ".csv.gz"]))
def test_what_is_written_reads_back_equal(tmp_path: Path, jobs: Jobs, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    write_trace(jobs, path)
    trace = read(path)
    assert trace.format == "csv"
    assert_equal(jobs, trace.jobs)


def test_names_of_gpus_read_back_in_one_spelling(tmp_path: Path) -> None:
    jobs = Jobs.of(submit_s=[0, 0, 0], gpus=[1] * 3, duration_s=[1] * 3, gpu_kind=["K80", "k80", "mine"])
    write_trace(jobs, tmp_path / "a.csv")
    assert read_trace(tmp_path / "a.csv").gpu_kind.words() == ["k80", "k80", "mine"]


def test_synthetic_jobs_read_back_equal(tmp_path: Path) -> None:
    write_trace(synth(count=3000), tmp_path / "a.csv")
    assert_equal(synth(count=3000), read_trace(tmp_path / "a.csv"))


def test_the_same_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    write_trace(synth(), tmp_path / "a.csv.gz")
    write_trace(synth(), tmp_path / "b.csv.gz")
    data = (tmp_path / "a.csv.gz").read_bytes()
    assert data == (tmp_path / "b.csv.gz").read_bytes()
    assert data.startswith(b"\x1f\x8b")
    assert read(tmp_path / "a.csv.gz").sha256 == hashlib.sha256(data).hexdigest()


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    write_trace(Jobs.of(submit_s=[0.5], gpus=[1], duration_s=[60]), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "id,submit_s,gpus,duration_s\n0,0.5,1,60\n"


def test_bounds_of_gpus_and_batch_are_written_where_set(tmp_path: Path) -> None:
    jobs = Jobs.of(
        submit_s=[0, 1],
        gpus=[4, 2],
        duration_s=[60, 60],
        batch=[256, 0],
        min_gpus=[1, 0],
        max_gpus=[16, 0],
        max_batch=[1024, 0],
        noise=[1500.5, 0],
    )
    write_trace(jobs, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "id,submit_s,gpus,duration_s,batch,min_gpus,max_gpus,max_batch,noise",
        "0,0,4,60,256,1,16,1024,1500.5",
        "1,1,2,60,0,0,0,0,0",
    ]
    assert_equal(jobs, read_trace(tmp_path / "a.csv"))


def test_jobs_that_are_always_fused_are_written_as_such(tmp_path: Path) -> None:
    jobs = Jobs.of(
        submit_s=[0, 1], gpus=[1, 1], duration_s=[60, 60], fuse=["a", "a"], always_fuse=[True, False]
    )
    write_trace(jobs, tmp_path / "a.csv")
    assert_equal(jobs, read_trace(tmp_path / "a.csv"))
    bad = (tmp_path / "a.csv").read_text().replace("60,1,a", "60,2,a")
    (tmp_path / "bad.csv").write_text(bad)
    with pytest.raises(TraceError, match="always_fuse is '2', expected 0 or 1"):
        read_trace(tmp_path / "bad.csv")


def test_jobs_that_count_in_two_units_cannot_be_written(tmp_path: Path) -> None:
    jobs = Jobs.of(submit_s=[0.0, 1.0], gpus=[1, 1], duration_s=[60, 60])
    mixed = Jobs(**(jobs.__dict__ | {"whole": np.array([True, False])}))
    with pytest.raises(InputError, match="count steps and others seconds"):
        write_trace(mixed, tmp_path / "a.csv")


def test_the_fusion_key_has_a_longer_name_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("submit_s,gpus,duration_s,fusion_key\n0,1,5,lr\n0,1,5,\n")
    assert read_trace(tmp_path / "a.csv").fuse.words() == ["lr", ""]
    (tmp_path / "b.csv").write_text("submit_s,gpus,duration_s,fusion_key,fuse\n0,1,5,lr,lr\n")
    with pytest.raises(InputError, match="fuse and fusion_key are the same, expected one of them"):
        read_trace(tmp_path / "b.csv")
