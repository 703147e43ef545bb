"""Estimates from jobs that have ended."""

from dataclasses import replace

from wattline.core.jobs import Jobs
from wattline.core.table import Labels
from wattline.models.durations.history import FIRST_ESTIMATE_S, History


def build() -> Jobs:
    return Jobs.of(
        submit_s=[0, 1, 2, 3, 4, 5],
        gpus=[1, 1, 1, 1, 2, 1],
        duration_s=[100, 300, 5000, 7000, 40, 9999],
        user=["ann", "ann", "bob", "bob", "ann", "eve"],
        key=["k", "k", "", "", "", ""],
    )


def test_the_first_job_has_the_default() -> None:
    assert History(build()).predict_s(0) == FIRST_ESTIMATE_S


def test_the_most_specific_group_with_two_ended_jobs_decides() -> None:
    history = History(build())
    for job in (0, 1, 2, 3):
        history.learn(job)
    assert history.predict_s(1) == 200  # ann's key k
    assert history.predict_s(4) == 200  # ann, whatever the GPUs
    assert history.predict_s(2) == 6000  # bob on one GPU
    assert history.predict_s(5) == 2650  # the median of all: eve has no history


def test_the_name_of_a_job_is_more_specific_than_its_user() -> None:
    jobs = Jobs.of(submit_s=range(5), gpus=[1] * 5, duration_s=[10, 20, 500, 700, 1], user=["ann"] * 5)
    history = History(jobs, Labels.of(["a", "a", "b", "b", "b"]))
    for job in range(4):
        history.learn(job)
    assert history.predict_s(4) == 600


def test_the_grouping_that_has_been_right_so_far_decides() -> None:
    """Durations follow the model, whatever the user: first the user is asked, then the model."""
    jobs = Jobs.of(
        submit_s=range(40), gpus=[1] * 40, duration_s=[10, 1000] * 20, model=["short", "long"] * 20,
        user=[f"user {i % 3}" for i in range(40)],
    )  # fmt: skip
    by_user = replace(jobs, model=Labels.repeat("", 40))
    estimates: dict[str, list[float]] = {"model": [], "user": []}
    for name, one in (("model", jobs), ("user", by_user)):
        history = History(one)
        for job in range(40):
            estimates[name].append(history.predict_s(job))
            history.learn(job)
    assert estimates["model"][-4:] == [10, 1000, 10, 1000]
    assert estimates["user"][-4:] != [10, 1000, 10, 1000]


def test_a_column_that_tells_nothing_is_not_followed() -> None:
    """Each user has one short and one long job in turn, so only the number of GPUs tells the duration."""
    jobs = Jobs.of(
        submit_s=range(40), gpus=[1, 8] * 20, duration_s=[50, 9000] * 20,
        user=[f"user {i // 2 % 3}" for i in range(40)], model=[f"model {i % 5}" for i in range(40)],
    )  # fmt: skip
    history = History(jobs)
    for job in range(38):
        history.predict_s(job)
        history.learn(job)
    assert [history.predict_s(38), history.predict_s(39)] == [50, 9000]


def test_jobs_that_were_never_estimated_teach_durations_but_no_errors() -> None:
    history = History(build())
    history.learn(0)
    history.learn(1)
    assert history.predict_s(5) == 200


def test_only_the_last_five_jobs_count() -> None:
    jobs = Jobs.of(submit_s=range(8), gpus=[1] * 8, duration_s=[1e6, 1e6, 1, 2, 3, 4, 5, 1], user=["a"] * 8)
    history = History(jobs)
    for job in range(7):
        history.learn(job)
    assert history.predict_s(7) == 3
