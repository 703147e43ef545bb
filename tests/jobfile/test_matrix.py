import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.jobfile.matrix import LIMIT_MEMBERS, expand
from wattline.jobfile.schema import JobFile, read_document, read_job


def job_with(**more: Any) -> JobFile:
    return read_document({"run": "python train.py", **more}, "request")


def test_a_job_without_a_matrix_has_one_member() -> None:
    (member,) = expand(job_with(name="alone", env={"A": 1, "B": True, "C": 0.5}))
    assert member.values == {}
    assert member.words == ("python", "train.py")
    assert member.env == {"A": "1", "B": "true", "C": "0.5"}
    assert (member.name, member.checkpoint_dir) == ("alone", None)


def test_every_combination_is_a_member_and_the_first_key_changes_slowest() -> None:
    members = expand(
        read_job(
            "run: python train.py lr=${lr} seed=${seed}\n"
            "name: try-${lr}\n"
            "env: {SEED: '${seed}'}\n"
            "checkpoint: {dir: 'ckpt/${lr}/${seed}'}\n"
            "matrix: {lr: [1e-4, 3e-4], seed: 0..2}",
            "job.yaml",
        )
    )
    assert [m.values for m in members] == [{"lr": lr, "seed": s} for lr in (1e-4, 3e-4) for s in range(3)]
    assert members[1].words == ("python", "train.py", "lr=1e-4", "seed=1")
    assert members[4].name == "try-3e-4"
    assert members[5].env == {"SEED": "2"}
    assert members[5].checkpoint_dir == "ckpt/3e-4/2"


def test_a_value_appears_in_the_command_as_written() -> None:
    written = ["1e-4", "0.10", "007", "1_000", "yes", "true", "2026-11-16", "+5", "'null'"]
    members = expand(read_job(f"run: x ${{a}}\nmatrix: {{a: [{', '.join(written)}]}}", "job.yaml"))
    assert [m.words[1] for m in members] == [text.strip("'") for text in written]
    assert [m.values["a"] for m in members] == [1e-4, 0.1, 7, "1_000", "yes", True, "2026-11-16", 5, "null"]


def test_json_numbers_appear_as_python_writes_them() -> None:
    values = json.loads('[1, 1e-4, true, "1e-4", "word"]')
    members = expand(job_with(run="x ${a}", matrix={"a": values}))
    assert [m.words[1] for m in members] == ["1", "0.0001", "true", "1e-4", "word"]
    assert [m.values["a"] for m in members] == [1, 1e-4, True, 1e-4, "word"]


def test_ranges_include_both_ends_and_may_count_down() -> None:
    def values(text: str) -> list[object]:
        return [m.values["a"] for m in expand(job_with(run="x ${a}", matrix={"a": text}))]

    assert values("-1..2") == [-1, 0, 1, 2]
    assert values("3..1") == [3, 2, 1]
    assert values("5..5") == [5]


@pytest.mark.parametrize(
    "value", ["a b", "'", '"; rm -rf /', "$(ls)".replace("$", "$$"), "", "a\\", "#", "é\u2028"]
)
def test_a_value_never_adds_words(value: str) -> None:
    (member,) = expand(job_with(run="python train.py --note=${v} 'and ${v}'", matrix={"v": [value]}))
    filled = value.replace("$$", "$")
    assert member.words == ("python", "train.py", f"--note={filled}", f"and {filled}")


@given(
    st.lists(st.text(), min_size=1, max_size=4),
    st.lists(st.sampled_from(["a", "${v}", "x=${v}${w}", "'q ${w}'", "$$", '"${v}"']), max_size=6),
)
def test_every_member_has_as_many_words_as_the_command(values: list[str], words: list[str]) -> None:
    run = " ".join(["python", *words, "${v}", "${w}"])
    try:
        job = job_with(run=run, matrix={"v": values, "w": "0..1"})
    except ConfigError:
        return
    members = expand(job)
    assert len(members) == 2 * len(values)
    assert {len(member.words) for member in members} == {len(job.words)} == {len(words) + 3}


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"])))
def test_values_pass_through_unchanged(value: str) -> None:
    (member,) = expand(job_with(run=["x", "${v}"], matrix={"v": [value.replace("$", "$$")]}))
    assert member.words == ("x", value)


def test_two_dollars_stand_for_one() -> None:
    (member,) = expand(job_with(run=["bash", "-c", "echo $$HOME $$$$ $${v} ${v}"], matrix={"v": ["$${v}"]}))
    assert member.words[2] == "echo $HOME $$ ${v} ${v}"


def test_values_may_refer_to_other_keys() -> None:
    matrix = {"out": ["${model}/${size}"], "model": ["a", "b"], "size": ["${model}1"]}
    members = expand(job_with(run="x ${out}", matrix=matrix))
    assert [m.words[1] for m in members] == ["a/a1", "b/b1"]
    assert members[1].values == {"out": "b/b1", "model": "b", "size": "b1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "run: x ${a}\nmatrix:\n  a: ['${b}']\n  b: ['${a}']",
            "job.yaml:3: matrix.a refers to itself: a -> b -> a",
        ),
        ("run: x ${a}\nmatrix: {a: [1, '${a}']}", "matrix.a refers to itself: a -> a"),
        ("run: x ${c}\nmatrix: {c: [1], a: ['${b}'], b: ['${a}']}", "refers to itself: a -> b -> a"),
        ("run: x\nmatrix:\n  lr: [1]", "job.yaml:3: matrix.lr is used nowhere"),
        ("run: x ${a}\nmatrix: {a: [1], b: ['${a}']}", "matrix.b is used nowhere"),
        ("run: x ${a}\nmatrix: {a: []}", "matrix.a is an empty list, expected a list of values, or a range"),
        (
            "run: x ${a}\nmatrix: {a: 5}",
            "matrix.a is '5', expected a list of values, or a range such as 0..7",
        ),
        ("run: x ${a}\nmatrix: {a: [1,\n  [2]]}", "job.yaml:3: matrix.a[1] is a list, expected"),
        ("run: x ${a}\nmatrix: {a: [null]}", "matrix.a[0] is empty, expected"),
        ("run: x ${a}\nmatrix: {a: 0..10000}", "matrix has 10001 members, expected at most 10,000"),
        ("run: x ${a}\nmatrix: {a: 0..999999999}", "matrix has 1000000000 members"),
        ("run: x\nmatrix: {a b: [1]}", "matrix.a b is not a name, expected"),
        (
            "run: x\nenv:\n  A: ${b}",
            "job.yaml:3: env.A has ${b}, but there is no matrix.b; environment variables",
        ),
        ("run: x $HOME", "has '$HOME': environment variables are not expanded"),
        ("run: x\nname: 5$", "has '$': environment variables are not expanded"),
    ],
)
def test_a_wrong_matrix_is_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_job(text, "job.yaml")
    assert words in caught.value.message


def test_an_unknown_name_suggests_the_nearest_name_or_a_shell() -> None:
    with pytest.raises(ConfigError) as caught:
        job_with(run="x ${sede}", matrix={"seed": "0..7"})
    assert caught.value.hint == "did you mean seed?"
    with pytest.raises(ConfigError) as caught:
        job_with(run="x ${HOME}")
    assert "run: [bash, -c," in caught.value.hint


def test_as_many_members_as_the_limit_are_allowed() -> None:
    assert len(expand(job_with(run="x ${a}${b}", matrix={"a": "1..100", "b": "1..100"}))) == LIMIT_MEMBERS


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run": "${a} x", "matrix": {"a": [""]}}, "run begins with an empty word where a is ''"),
        ({"name": "${a}", "matrix": {"a": ["n" * 201]}}, "name is longer than 200 letters where a is"),
        (
            {
                "run": "x ${d}",
                "matrix": {k: [f"${{{n}}}" * 200] for k, n in ("dc", "cb", "ba")} | {"a": ["x" * 9]},
            },
            "matrix.c becomes longer than 32,768 letters",
        ),
        (
            {"run": "x " + "a" * 20_000 + "${a}", "matrix": {"a": "1..9999"}},
            "commands of more than 67,108,864",
        ),
    ],
)
def test_values_that_make_an_impossible_member_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(job_with(**more))
    assert words in caught.value.message
