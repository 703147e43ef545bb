import numpy as np
import pytest

from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.table import Labels
from wattline.errors import InputError


def test_columns_cannot_be_written_to() -> None:
    jobs = Jobs.of(submit_s=[0.0, 1.0], gpus=[1, 2], duration_s=[5.0, 6.0])
    with pytest.raises(ValueError, match="read-only"):
        jobs.gpus[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        nodes("v100").gpus[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        Leases.of([0], [0], [0], [1]).gpus[0] = 7


def test_columns_of_different_length_are_refused() -> None:
    part = nodes("v100", count=2)
    with pytest.raises(InputError, match=r"Nodes\.cpus has 1 rows, expected 2"):
        Nodes(**{**vars(part), "cpus": np.ones(1)})


def test_jobs_are_sorted_by_submission_and_ties_keep_their_order() -> None:
    jobs = Jobs.of(submit_s=[5, 1, 5, 0], gpus=[1, 2, 3, 4], duration_s=[1, 1, 1, 1], id=["a", "b", "c", "d"])
    assert jobs.id.tolist() == ["d", "b", "a", "c"]


def test_jobs_take_either_steps_or_a_duration() -> None:
    stepped = Jobs.of(submit_s=[0], gpus=[1], steps=[10], step_s=[0.5])
    assert stepped.duration_s.tolist() == [5.0]
    assert stepped.whole.all()
    with pytest.raises(InputError, match="either duration_s, or both"):
        Jobs.of(submit_s=[0], gpus=[1], duration_s=[1], steps=[10], step_s=[0.5])
    with pytest.raises(InputError, match="either duration_s, or both"):
        Jobs.of(submit_s=[0], gpus=[1], steps=[10])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("gpus", 0, "gpus is 0, expected at least 1"),
        ("duration_s", -1.0, "steps is -1.0"),
        ("duration_s", float("nan"), "steps is nan"),
        ("submit_s", float("inf"), "submit_s is inf"),
        ("priority", float("nan"), "priority is nan"),
    ],
)
def test_impossible_values_of_jobs_are_named_in_the_error(column: str, value: float, words: str) -> None:
    columns = {"submit_s": [0.0], "gpus": [1], "duration_s": [1.0], column: [value]}
    with pytest.raises(InputError, match=words):
        Jobs.of(id=["x"], **columns)  # type: ignore[arg-type]


def test_an_id_may_appear_once() -> None:
    with pytest.raises(InputError, match="job x: the id appears twice"):
        Jobs.of(id=["x", "y", "x"], submit_s=[0, 0, 0], gpus=[1, 1, 1], duration_s=[1, 1, 1])


def test_labels_store_each_word_once() -> None:
    labels = Labels.of(["b", "a", "b"])
    assert labels.names == ("b", "a")
    assert labels.words() == ["b", "a", "b"]
    assert labels[np.array([2, 1])].words() == ["b", "a"]
    assert labels.word(1) == "a"


def test_a_job_accepts_the_kinds_it_names_in_any_case_or_all() -> None:
    cluster = Nodes(**{**vars(nodes("v100", count=2)), "kind": Labels.of(["v100", "a100"])})
    masks = cluster.accepted_kinds(Labels.of(["", "A100", "v100 | a100", "h100", "v100|v100"]))
    assert masks.tolist() == [0b11, 0b10, 0b11, 0, 0b01]
