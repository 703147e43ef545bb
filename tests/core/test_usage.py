import numpy as np
import pytest

from wattline.core.events import FINISHED, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.usage import BUCKET_S, KEPT_S, Usage, charge

NO_EVENTS = build_events()
JOBS = Jobs.of(
    submit_s=[0, 0, 0],
    gpus=[2, 1, 1],
    duration_s=[9, 9, 9],
    team=["vision", "vision", "speech"],
    user=["ann", "bob", "ann"],
)


def of(usage: Usage, team: str, user: str) -> float:
    total = usage.history.gpu_s.sum(axis=0)
    column = usage.accounts.index((team, user))
    return float(usage.open_gpu_s[column] + (total[column] if column < len(total) else 0.0))


def test_gpus_are_charged_to_user_and_team_until_a_lease_ends() -> None:
    leases = Leases.of([0, 2], [0, 2], [0, 0], [2, 1])
    ended = build_events(Event(FINISHED, 2, 40.0))
    usage = charge(Usage.empty(), JOBS, leases, ended, 100.0)
    assert of(usage, "vision", "ann") == 200.0
    assert of(usage, "speech", "ann") == 40.0
    assert ("vision", "bob") not in usage.accounts


def test_jobs_that_share_gpus_share_the_charge() -> None:
    leases = Leases.of([0, 1], [0, 0], [0, 0], [2, 2])
    usage = charge(Usage.empty(), JOBS, leases, NO_EVENTS, 100.0)
    assert of(usage, "vision", "ann") == of(usage, "vision", "bob") == 100.0


def test_many_short_steps_charge_as_much_as_one_long_step() -> None:
    leases = Leases.of([0], [0], [0], [2])
    long = charge(Usage.empty(), JOBS, leases, NO_EVENTS, 5.5 * BUCKET_S)
    short = Usage.empty()
    for at_s in np.linspace(0.0, 5.5 * BUCKET_S, 777):
        short = charge(short, JOBS, leases, NO_EVENTS, float(at_s))
    assert len(long.history.from_s) == len(short.history.from_s) == 5
    np.testing.assert_allclose(long.history.gpu_s, short.history.gpu_s)
    assert long.decayed_gpu_s(1e4) == pytest.approx(short.decayed_gpu_s(1e4))
    assert of(long, "vision", "ann") == pytest.approx(11 * BUCKET_S)


def test_usage_counts_half_after_its_half_life() -> None:
    leases = Leases.of([0], [0], [0], [2])
    usage = charge(Usage.empty(), JOBS, leases, NO_EVENTS, 60.0)
    later = charge(usage, JOBS, Leases.of((), (), (), ()), NO_EVENTS, 60.0 + 7 * 86_400.0)
    assert later.decayed_gpu_s(7 * 86_400.0)[0] == pytest.approx(60.0, rel=0.01)


def test_the_window_forgets_and_says_when_a_limit_is_free_again() -> None:
    leases = Leases.of([0], [0], [0], [2])
    usage = charge(Usage.empty(), JOBS, leases, NO_EVENTS, 2 * BUCKET_S)  # 4 GPU hours
    usage = charge(usage, JOBS, Leases.of((), (), (), ()), NO_EVENTS, 5 * BUCKET_S)
    window_s = 10 * BUCKET_S
    assert usage.recent_gpu_s(window_s)[0] == pytest.approx(4 * BUCKET_S)
    every = np.ones(1, dtype=np.bool_)
    free_s = usage.find_time_below(every, 3 * BUCKET_S, window_s)
    assert free_s == pytest.approx(10.5 * BUCKET_S)
    then = charge(usage, JOBS, Leases.of((), (), (), ()), NO_EVENTS, free_s)
    assert then.recent_gpu_s(window_s)[0] == pytest.approx(3 * BUCKET_S)
    assert usage.find_time_below(every, 5 * BUCKET_S, window_s) == usage.now_s
    assert usage.find_time_below(every, 0.0, window_s) == np.inf


def test_old_buckets_are_dropped() -> None:
    leases = Leases.of([0], [0], [0], [2])
    usage = charge(Usage.empty(), JOBS, leases, NO_EVENTS, KEPT_S + 100 * BUCKET_S)
    assert len(usage.history.from_s) <= KEPT_S / BUCKET_S + 100
    usage = charge(usage, JOBS, leases, NO_EVENTS, KEPT_S + 200 * BUCKET_S)
    assert usage.history.to_s[0] > usage.now_s - KEPT_S


def test_usage_survives_the_header_of_a_log() -> None:
    leases = Leases.of([0, 2], [0, 2], [0, 0], [2, 1])
    usage = charge(Usage.empty(), JOBS, leases, NO_EVENTS, 2.5 * BUCKET_S)
    again = Usage.from_rows([tuple(row) for row in usage.as_rows()], usage.now_s)
    for half_life_s in (100.0, 1e6):
        a = dict(zip(usage.accounts, usage.decayed_gpu_s(half_life_s), strict=True))
        b = dict(zip(again.accounts, again.decayed_gpu_s(half_life_s), strict=True))
        assert a == pytest.approx(b)
    assert again.recent_gpu_s(1e6).sum() == pytest.approx(usage.recent_gpu_s(1e6).sum())
