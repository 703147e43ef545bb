from __future__ import annotations

import pytest

from wattline.errors import ConfigError
from wattline.jobfile import read_job
from wattline.jobfile.dependencies import Dependency


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", [Dependency("12")]),
        ("'12'", [Dependency("12")]),
        ("12:end", [Dependency("12", when="end")]),
        ("[12, 14:success, prep]", [Dependency("12"), Dependency("14"), Dependency("prep")]),
        ("sweep:12", [Dependency(sweep="12")]),
        ("'sweep:12:end'", [Dependency(sweep="12", when="end")]),
        ("{job: 12, when: end}", [Dependency("12", when="end")]),
        ("{job: 'a:b'}", [Dependency("a:b")]),
        ("[{sweep: 3}, {sweep: 3}]", [Dependency(sweep="3")]),
        ("[]", []),
    ],
)
def test_dependencies_have_one_grammar(text: str, expected: list[Dependency]) -> None:
    assert list(read_job(f"run: x\ndepends_on: {text}", "job.yaml").dependencies) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "depends_on is 0, expected jobs such as 12"),
        ("-3", "depends_on is -3"),
        ("1.5", "depends_on is 1.5"),
        ("'12:later'", "depends_on is '12:later'"),
        ("{job: 12, when: never}", "depends_on.when is 'never', expected success or end"),
        ("{jobs: 12}", "unknown key depends_on.jobs"),
        ("{when: end}", "neither or both of job and sweep"),
        ("{job: 1, sweep: 2}", "neither or both of job and sweep"),
        ("[12, '']", "depends_on"),
    ],
)
def test_a_wrong_dependency_is_refused_with_its_line_and_value(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job(f"run: x\ndepends_on: {text}", "job.yaml")
    assert caught.value.message.startswith("job.yaml:2: ")
    assert words in caught.value.message


def test_a_limit_of_parallel_jobs_needs_a_matrix() -> None:
    job = read_job("run: x ${n}\nmatrix: {n: 1..3}\nmax_parallel: 2", "job.yaml")
    assert job.max_parallel == 2
    with pytest.raises(ConfigError, match=r"job\.yaml:2: max_parallel is 2, but there is no matrix"):
        read_job("run: x\nmax_parallel: 2", "job.yaml")
    with pytest.raises(ConfigError, match="max_parallel is 0"):
        read_job("run: x ${n}\nmatrix: {n: 1..3}\nmax_parallel: 0", "job.yaml")
