"""What made-up jobs promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.trace import read, synth, write_trace


def test_the_offered_load_is_what_was_asked_for() -> None:
    jobs = synth(count=40_000, load=0.6, gpus_total=64)
    offered = float((jobs.gpus * jobs.duration_s).sum() / (64 * jobs.submit_s[-1]))
    assert offered == pytest.approx(0.6, rel=0.05)


def test_a_given_rate_is_kept() -> None:
    jobs = synth(count=20_000, jobs_per_hour=12.0)
    assert 3600 * len(jobs) / jobs.submit_s[-1] == pytest.approx(12.0, rel=0.03)


def test_gaps_are_exponential() -> None:
    gaps = np.diff(synth(count=20_000).submit_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


def test_gpus_follow_the_mix() -> None:
    jobs = synth(count=20_000, recurring=0.0)
    share = [float((jobs.gpus == gpus).mean()) for gpus in (1, 2, 4, 8)]
    assert share == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.015)
    assert set(synth(gpu_mix={3: 1.0}).gpus.tolist()) == {3}


def test_durations_are_philly_like() -> None:
    duration_s = synth(count=20_000, recurring=0.0).duration_s
    assert duration_s.min() >= 60 * 10**1.5 - 1e-3
    assert duration_s.max() <= 60 * 10**4
    assert float((duration_s < 60 * 10**3).mean()) == pytest.approx(0.8, abs=0.01)


def test_recurrences_of_a_key_look_alike() -> None:
    jobs = synth(count=2000, recurring=0.5)
    keys = np.array(jobs.key.words())
    assert float((keys != "").mean()) == pytest.approx(0.5, abs=0.05)
    for key in set(keys) - {""}:
        same = jobs.take(np.flatnonzero(keys == key))
        assert len(set(same.gpus.tolist())) == 1
        assert len(set(same.model.words())) == 1
        assert len(set(same.user.words())) == 1
        assert same.duration_s.max() < 2.5 * same.duration_s.min()


def test_shares_and_teams_are_kept() -> None:
    jobs = synth(count=5000, deadlines=0.3, urgent=0.2, teams=3, users=9)
    assert float(np.isfinite(jobs.deadline_s).mean()) == pytest.approx(0.3, abs=0.03)
    assert float((jobs.priority > 0).mean()) == pytest.approx(0.2, abs=0.03)
    assert (jobs.deadline_s > jobs.submit_s + jobs.duration_s).all()
    assert len(set(jobs.team.words())) == 3
    assert len(set(jobs.user.words())) == 9


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 60), seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_any_seed_gives_that_many_jobs_and_twice_the_same(count: int, seed: int, share: float) -> None:
    one, two = (synth(count=count, seed=seed, recurring=share, deadlines=share) for _ in range(2))
    assert len(one) == count
    assert as_columns(one) == as_columns(two)


def as_columns(jobs: Jobs) -> list[object]:
    names = ("id", "submit_s", "gpus", "steps", "deadline_s", "priority")
    numbers = [getattr(jobs, name).tolist() for name in names]
    return numbers + [getattr(jobs, name).words() for name in ("team", "user", "model", "key", "fuse")]


@pytest.mark.slow
def test_another_process_makes_the_same_jobs(tmp_path: Path) -> None:
    code = "import sys; from wattline.trace import synth, write_trace as w; w(synth(count=50), sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there.csv")], check=True)
    write_trace(synth(count=50), tmp_path / "here.csv")
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def test_changing_one_parameter_leaves_the_other_columns() -> None:
    few, many = synth(deadlines=0.1), synth(deadlines=0.9)
    assert few.submit_s.tolist() == many.submit_s.tolist()
    assert few.steps.tolist() == many.steps.tolist()


def test_synth_is_a_path() -> None:
    trace = read("synth:count=20,seed=3,gpu_mix=2:0.5|4:0.5")
    assert (trace.format, len(trace.jobs)) == ("synth", 20)
    assert set(trace.jobs.gpus.tolist()) <= {2, 4}
    assert as_columns(trace.jobs) == as_columns(synth(count=20, seed=3, gpu_mix={2: 0.5, 4: 0.5}))
    assert len(read("synth").jobs) == 1000
    assert read("synth:seed=3,count=20").sha256 == read("synth:count=20,seed=3").sha256
    assert read("synth:seed=3").sha256 != read("synth:seed=4").sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuont=5", "unknown parameter 'cuont', did you mean 'count'"),
        ("count=many", "count is 'many'"),
        ("count=0", "count is 0, expected at least 1"),
        ("load=nan", "load is nan"),
        ("load=-1", "load is -1"),
        ("jobs_per_hour=inf", "jobs_per_hour is inf"),
        ("deadlines=2", "deadlines is 2"),
        ("sweeps=1.5", "sweeps is 1.5, expected a share from 0 to 1"),
        ("gpu_mix=1", "gpu_mix is '1'"),
        ("gpu_mix=0:1", "gpu_mix is"),
        ("seed", "seed"),
    ],
)
def test_bad_parameters_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"synth:{text}")
    assert message in caught.value.message


def test_sweeps_come_together_ask_for_the_same_and_have_one_key() -> None:
    jobs = synth(count=4000, sweeps=0.5, recurring=0.5)
    keys = np.array(jobs.fuse.words())
    assert float((keys != "").mean()) == pytest.approx(0.5, abs=0.08)
    sizes = []
    for key in sorted(set(keys) - {""}):
        same = jobs.take(np.flatnonzero(keys == key))
        sizes.append(len(same))
        for column in (
            same.submit_s,
            same.gpus,
            same.batch,
            same.priority,
            same.model.codes,
            same.user.codes,
        ):
            assert len(set(column.tolist())) == 1
        assert set(same.key.words()) == {""}  # it is no recurrence of another
        assert same.duration_s.max() < 2.5 * same.duration_s.min()
    assert sum(size < 4 for size in sizes) <= 1  # the last may be cut short
    assert max(sizes) == 16


def test_sweeps_add_fusion_keys_and_leave_other_jobs_unchanged() -> None:
    plain, some = (synth(count=300, recurring=0.0, sweeps=share) for share in (0.0, 0.3))
    assert set(plain.fuse.words()) == {""}
    alone = np.array([word == "" for word in some.fuse.words()])
    assert 0 < alone.sum() < 300
    assert plain.submit_s[alone].tolist() == some.submit_s[alone].tolist()
    assert plain.gpus[alone].tolist() == some.gpus[alone].tolist()
    assert plain.deadline_s[alone].tolist() == some.deadline_s[alone].tolist()
    assert as_columns(some) == as_columns(synth(count=300, recurring=0.0, sweeps=0.3))
