"""A trace that can be shared has no names, and simulates like the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wattline.errors import ConfigError
from wattline.trace import Trace, read, write_trace
from wattline.trace.anonymise import anonymise, count_nodes

HEADER = "JobID|JobName|User|Account|Partition|QOS|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList|"
HEADER += "WorkDir|SubmitLine\n"


def original(folder: Path) -> Trace:
    rows = [
        f"{40 + i}_{i}|train_lr0.{i}|annabel|vision-lab|secretpart|platinum|COMPLETED|2026-01-01T00:00:0{i}|"
        f"2026-01-01T00:01:00|2026-01-01T00:02:00|60|gres/gpu:a100=2|dgx[01-03,17]|/home/annabel/moonshot|"
        f"sbatch train.sh --lr 0.{i}\n"
        for i in range(1, 6)
    ]
    rows.append(rows[2].replace("42", "77").replace("43_3", "99_1"))
    path = folder / "jobs.txt"
    path.write_text(HEADER + "".join(rows))
    return read(path)


def test_no_name_of_the_original_survives(tmp_path: Path) -> None:
    shared = anonymise(original(tmp_path), b"key")
    write_trace(shared.jobs, tmp_path / "shared.csv", shared.recorded)
    text = (tmp_path / "shared.csv").read_text()
    for word in ("annabel", "vision", "lab", "secretpart", "platinum", "train", "sbatch", "dgx", "moonshot"):
        assert word not in text, word
    assert "2026" not in text
    assert not any(f",{job}," in text or text.startswith(f"{job},") for job in original(tmp_path).jobs.id)


def test_recurrences_sweeps_arrays_and_users_stay_recognisable(tmp_path: Path) -> None:
    before, shared = original(tmp_path), anonymise(original(tmp_path), b"key")
    assert len(set(shared.jobs.key.words())) == len(set(before.jobs.key.words())) == 5
    stems = {word.rpartition("-")[0] for word in shared.jobs.key.words()}
    assert len(stems) == 1
    assert before.recorded is not None
    assert shared.recorded is not None
    assert shared.recorded.array.codes.tolist() == before.recorded.array.codes.tolist()
    assert len({word.rpartition("-")[0] for word in shared.recorded.name.words()}) == 1
    assert shared.recorded.nodes.words() == ["4"] * 6
    assert shared.jobs.status.words() == ["COMPLETED"] * 6
    assert shared.jobs.gpu_kind.words() == ["a100"] * 6


def test_numbers_stay_and_the_clock_starts_at_the_first_submission(tmp_path: Path) -> None:
    before, shared = original(tmp_path), anonymise(original(tmp_path), b"key")
    np.testing.assert_array_equal(shared.jobs.duration_s, before.jobs.duration_s)
    np.testing.assert_array_equal(shared.jobs.submit_s, before.jobs.submit_s)
    path = tmp_path / "late.csv"
    path.write_text("submit_s,gpus,duration_s,deadline_s,start_s\n1000,1,60,2000,1005\n1500,1,60,,\n")
    late = anonymise(read(path), b"key")
    assert late.jobs.submit_s.tolist() == [0.0, 500.0]
    assert late.jobs.deadline_s.tolist() == [1000.0, np.inf]
    assert late.recorded is not None
    assert late.recorded.start_s[0] == 5.0


def test_the_same_secret_gives_the_same_pseudonyms_and_another_one_others(tmp_path: Path) -> None:
    one, same, other = (anonymise(original(tmp_path), key).jobs.user.word(0) for key in (b"a", b"a", b"b"))
    assert one == same
    assert one != other


def test_columns_can_be_kept(tmp_path: Path) -> None:
    shared = anonymise(original(tmp_path), b"key", keep=["team", "partition"])
    assert shared.jobs.team.words() == ["vision-lab"] * 6
    assert shared.recorded is not None
    assert set(shared.recorded.partition.words()) == {"secretpart"}
    with pytest.raises(ConfigError, match="unknown column 'teams' to keep") as caught:
        anonymise(original(tmp_path), b"key", keep=["teams"])
    assert caught.value.hint == "did you mean team?"


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", "4"), ("", ""), ("n1", "1"), ("n1,n2", "2"), ("n[1-3,7],m1", "5"), ("gpu[08-11]", "4")],
)
def test_lists_of_nodes_become_their_number(text: str, count: str) -> None:
    assert count_nodes(text) == count


def test_dependencies_name_the_same_jobs_by_their_pseudonyms(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "id,submit_s,gpus,duration_s,array,dependency,reservation\n"
        'secret1,0,1,5,,,vip\nsecret2,1,1,5,777,,\nsecret3,2,1,5,,"afterok:secret1:777,after:gone+5",\n'
    )
    shared = anonymise(read(path), b"key")
    assert shared.recorded is not None
    text = shared.recorded.dependency.words()[2]
    array = shared.recorded.array.words()[1]
    assert text.startswith(f"afterok:{shared.jobs.id[0]}:{array},after:id-")
    assert text.endswith("+5")
    assert "gone" not in text
    assert shared.recorded.reservation.words()[0].startswith("reservation-")
