import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from signal import Signals
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.jobfile.schema import LIMIT_BYTES, JobFile, read_document, read_job
from wattline.train.environment import Target

WHOLE = """\
name: resnet-sweep
run: python train.py lr=${lr} seed=${seed}
workdir: /abs/path
env: {KEY: value, THREADS: 007, DEBUG: on}
model: resnet50
batch_size: 64
resources: {gpus: 1..4, gpu_type: [A100, v100], cpus_per_gpu: auto, memory_per_gpu: auto, time: 4h}
matrix: {lr: [1e-4, 3e-4, 1e-3], seed: 0..7}
fuse: auto
energy: {max_slowdown: 5%, power: auto, budget: 3kWh}
deadline: 2026-11-16T09:00+01:00
tardiness_weight: 0.2
elastic: true
checkpoint: {signal: SIGUSR2, grace: 120s, dir: ckpt/}
recurring: {group: nightly-nmt, tune: [batch_size], batch_sizes: [32, 64], target: "accuracy>=0.6"}
team: vision
priority: 50
retries: 3
"""


def read_error(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_job(text, "job.yaml")
    return caught.value


def read_or_message(read: Callable[[], JobFile]) -> JobFile | str:
    try:
        return read()
    except ConfigError as error:
        return error.message


def job_with(**more: Any) -> JobFile:
    return read_document({"run": "python train.py", **more}, "request")


def test_kinds_of_gpu_may_be_written_as_drivers_and_slurm_write_them() -> None:
    resources = job_with(
        resources={"gpu_type": ["nvidia_a100_80gb_pcie", "Tesla-V100-SXM2", "v100"]}
    ).resources
    assert resources.gpu_types == ("a100-pcie", "v100")
    assert resources.typed_gpu_types == ("nvidia_a100_80gb_pcie", "Tesla-V100-SXM2", "v100")


def test_a_job_file_keeps_the_text_and_converts_it() -> None:
    job = read_job(WHOLE, "job.yaml")
    assert job.resources.time == "4h"
    assert job.resources.time_s == 14400
    assert job.resources.gpu_range == (1, 4, 4)
    assert job.resources.gpu_types == ("a100", "v100")
    assert job.resources.cpus is None
    assert job.resources.memory_gib is None
    assert job.energy.slowdown == pytest.approx(1.05)
    assert job.energy.power_w is None
    assert job.energy.budget_j == 10.8e6
    assert job.deadline_at == datetime(2026, 11, 16, 8, tzinfo=UTC)
    assert job.checkpoint.stop is Signals.SIGUSR2
    assert job.checkpoint.grace_s == 120
    assert job.recurring is not None
    assert job.recurring.goal == Target("accuracy", 0.6)
    assert job.words == ("python", "train.py", "lr=${lr}", "seed=${seed}")
    assert job.env == {"KEY": "value", "THREADS": "007", "DEBUG": "on"}


def test_only_run_is_required() -> None:
    job = read_job("run: [python, train.py, 1e-4]", "job.yaml")
    assert job.words == ("python", "train.py", "1e-4")
    assert (job.name, job.workdir, job.deadline_at, job.recurring, job.retries) == ("", None, None, None, 3)
    assert job.resources.gpu_range == (1, 1, 1)
    assert job.resources.time_s is None
    assert job.energy.slowdown is job.energy.budget_j is job.width is None
    assert job.checkpoint.stop is Signals.SIGTERM
    assert read_error("name: x").message.startswith("job.yaml:1: run is missing, expected one command")


def test_a_job_reads_the_same_as_json() -> None:
    job = read_job(WHOLE, "job.yaml")
    assert read_document(json.loads(job.model_dump_json()), "request") == job
    assert JobFile.model_validate(job.model_dump()) == job


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (2, (2, 2, 2)),
        (2.0, (2, 2, 2)),
        ("2", (2, 2, 2)),
        ("1..4", (1, 4, 4)),
        ("8..", (8, 8, 0)),
        ("4..1", (1, 4, 4)),
    ],
)
def test_gpus_are_a_number_or_a_range(gpus: object, found: tuple[int, int, int]) -> None:
    assert job_with(resources={"gpus": gpus}).resources.gpu_range == found


def test_amounts_are_numbers_or_text_with_a_unit() -> None:
    job = job_with(
        resources={"cpus_per_gpu": 2.5, "memory_per_gpu": "512M", "time": 90, "gpu_type": "T4"},
        energy={"max_slowdown": 1.2, "power": "0.25kW", "budget": 500},
        checkpoint={"grace": "1m30s"},
    )
    assert (job.resources.cpus, job.resources.memory_gib, job.resources.time_s) == (2.5, 0.5, 90)
    assert job.resources.gpu_types == ("t4",)
    assert (job.energy.slowdown, job.energy.power_w, job.energy.budget_j) == (1.2, 250, 500)
    assert job.checkpoint.grace_s == 90
    assert job_with(resources={"memory_per_gpu": 16}, energy={"power": 300}).energy.power_w == 300


@pytest.mark.parametrize(
    ("text", "width"), [("off", 1), ("auto", None), ("8", 8), ("1", 1), ("false", 1), ("OFF", "refused")]
)
def test_fuse_is_off_auto_or_a_number(text: str, width: object) -> None:
    if width == "refused":
        assert "fuse is 'OFF', expected off, auto" in read_error(f"run: x\nfuse: {text}").message
    else:
        assert read_job(f"run: x\nfuse: {text}", "job.yaml").width == width


def test_a_container_is_an_image_or_an_image_with_mounts() -> None:
    job = read_job("run: x\ncontainer: docker://pytorch/pytorch:2.4", "job.yaml")
    assert (job.container_image, job.container_mounts) == ("docker://pytorch/pytorch:2.4", ())
    job = job_with(container={"image": "a.sif", "mounts": ["/data", "/x:/y:ro"]})
    assert (job.container_image, job.container_mounts) == ("a.sif", ("/data", "/x:/y:ro"))
    assert job_with().container_image == ""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("container: {}", 2, "container.image is missing, expected an image such as pytorch.sif"),
        (
            "container:\n  image: a.sif\n  mount: [/data]",
            4,
            "unknown key container.mount, expected one of image",
        ),
        (
            "container:\n  image: a.sif\n  mounts: [data]",
            4,
            "container.mounts[0] is 'data', expected a list of",
        ),
        ("container: --bind", 2, "container is '--bind', expected an image"),
        ("container: [a.sif]", 2, "container is a list, expected an image"),
    ],
)
def test_a_wrong_container_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    assert read_error(f"run: x\n{text}").message.startswith(f"job.yaml:{line}: {message}")


def test_words_that_older_yaml_reads_as_booleans_are_text() -> None:
    job = read_job("run: x\nelastic: yes\nteam: no\nname: 2024\nresources: {time: 12:30}", "job.yaml")
    assert job.elastic is True
    assert (job.team, job.name, job.resources.time_s) == ("no", "2024", 750)


def test_a_deadline_has_a_time_and_a_zone() -> None:
    zoned = datetime(2026, 11, 16, 8, tzinfo=UTC)
    assert job_with(deadline=zoned).deadline_at == zoned
    assert job_with(deadline="2028-02-29 08:00:00.5Z").deadline_at == datetime(
        2028, 2, 29, 8, 0, 0, 500_000, tzinfo=UTC
    )
    for deadline, words in (
        (zoned.replace(tzinfo=None), "has no time zone"),
        (zoned.date(), "expected a time with its zone"),
        ("2026-11-16", "is a day without a time"),
        ("2026-11-16T08:00", "has no time zone"),
        ("2026-02-29T08:00Z", "expected a time with its zone"),
        ("tomorrow", "deadline is 'tomorrow', expected a time with its zone"),
        (1_700_000_000, "deadline is 1700000000, expected a time"),
    ):
        with pytest.raises(ConfigError, match=words):
            job_with(deadline=deadline)


@given(st.datetimes(datetime(2000, 1, 2), datetime(2099, 12, 30)), st.integers(-1439, 1439))
def test_any_time_of_this_century_can_be_a_deadline(moment: datetime, minutes: int) -> None:
    sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    job = job_with(deadline=f"{moment.isoformat()}{sign}{hours:02}:{rest:02}")
    assert job.deadline_at is not None
    assert job.deadline_at == moment.replace(tzinfo=UTC) - timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "run: x\nresources:\n  time: 4h\n  gpus: x",
            "job.yaml:4: resources.gpus is 'x', expected a number of",
        ),
        ("run: x\nresources: {gpus: 0}", "resources.gpus is 0, expected"),
        ("run: x\nresources: {gpus: true}", "resources.gpus is true, expected"),
        ("run: x\nresources: {gpu_type: [a100,\n  'b 2']}", "job.yaml:3: resources.gpu_type[1] is 'b 2'"),
        ("run: x\nresources:", "resources is empty, expected a mapping"),
        ("run: x\nresources: {time: 0s}", "resources.time is '0s', which is zero"),
        ("run: x\nresources: {memory_per_gpu: lots}", "memory_per_gpu is 'lots', expected auto, or a size"),
        (
            "run: x\nenergy: {max_slowdown: 0.05}",
            "energy.max_slowdown is 0.05, expected a slowdown such as 5%",
        ),
        ("run: x\nenergy: {power: -5}", "energy.power is -5, expected auto, or watts"),
        ("run: x\nenergy: {budget: 3mJ}", "energy.budget is '3mJ', expected an energy such as 3kWh"),
        (
            "run: x\ncheckpoint:\n\n  signal: SIGKILL",
            "job.yaml:4: checkpoint.signal is 'SIGKILL', which is not",
        ),
        ("run: x\ncheckpoint: {grace: 2d}", "checkpoint.grace is '2d', which is longer than a day"),
        ("run: x\nrecurring: {}", "recurring.group is missing, expected the name"),
        ("run: x\nrecurring: {group: a, tune: [lr]}", "recurring.tune[0] is 'lr', expected a list of what"),
        (
            "run: x\nrecurring: {group: a, target: good}",
            "recurring.target is 'good', expected a goal such as",
        ),
        ("run: x\nworkdir: here", "workdir is 'here', expected an absolute path"),
        ('run: x\nteam: "a\\nb"', r"team is 'a\nb', expected a name of at most 200 letters"),
        (f"run: x\nname: {'n' * 201}", "which is too long, expected a name of at most 200 letters"),
        (
            "run: x\nretries: 101",
            "retries is 101, expected how often it is started again after it was killed, 0 to 100",
        ),
        ("run: x\npriority: .inf", "priority is '.inf', expected a number"),
        ("run: x\nelastic: maybe", "elastic is 'maybe', expected true or false"),
        ("run: x\nenv: {WATTLINE_JOB_ID: 1}", "env.WATTLINE_JOB_ID is set by Wattline itself"),
        ("run: x\nenv: {CUDA_VISIBLE_DEVICES: 1}", "env.CUDA_VISIBLE_DEVICES is set by Wattline itself"),
        ("run: x\nenv:\n  1A: 1", "job.yaml:3: env.1A is not a name, expected letters"),
        ("run: x\nenv: {A: [1]}", "env.A is a list, expected"),
        ("run: 'a \"b'", "cannot be split into words: no closing quotation"),
        ("run: ' '", "run is ' ', which has no words"),
        ("run: \"'' x\"", "begins with an empty word"),
        ("run: ['', x]", "begins with an empty word"),
        ("run: []", "run is an empty list"),
        ("run: |\n  cd here\n  python x.py", "has several lines; it is one command and no shell reads it"),
        ('run: [x, "a\\0b"]', r"run[1] is 'a\x00b', expected"),
    ],
)
def test_a_wrong_value_is_reported_with_line_value_and_expectation(text: str, words: str) -> None:
    message = read_error(text).message
    assert message.startswith("job.yaml:")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (
            "run: x\nresources:\n  gpu: 2",
            "job.yaml:3: unknown key resources.gpu",
            "did you mean resources.gpus?",
        ),
        ("rnu: x", "job.yaml:1: unknown key rnu, expected one of run, name", "did you mean run?"),
        ("run: x\n1: 2", "job.yaml:2: unknown key 1", ""),
        ('run: x\n"a\\nb": 2', r"job.yaml:2: unknown key 'a\nb'", ""),
    ],
)
def test_an_unknown_key_suggests_the_nearest_key(text: str, words: str, hint: str) -> None:
    error = read_error(text)
    assert words in error.message
    assert error.hint == hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "job.yaml:1: is empty, expected at least run:"),
        ("- x", "job.yaml:1: is not a mapping"),
        ("run: x\nrun: y", "job.yaml:2: run is given twice, the first time in line 1"),
        ("run: x\nenv:\n  A: 1\n  A: 2", "job.yaml:4: env.A is given twice, the first time in line 3"),
        ("run: [", "job.yaml:1: not YAML: "),
        ("run: x\n  y: z", "job.yaml:2: not YAML: "),
        ("run: x\n---\nrun: y", "job.yaml:2: a second document begins"),
        ("run: x\0", "job.yaml:1: not text: has a NUL"),
        ("run: x\nname: \x01", "job.yaml:2: not text: "),
        ("run: !!python/object/apply:os.system [ls]", "has the tag 'tag:yaml.org,2002:python/object/apply:"),
        ("? [a]\n: b", "the job has a key that is not a word"),
        ("env: &a\n  A: *a", "job.yaml:2: *a is used inside &a itself"),
        ("run: *a", "*a is used, but there is no &a before it"),
        ("run: " + "[" * 1000 + "]" * 1000, "nested more than 16 deep"),
        ('run: "\\U00110000"', "not YAML: "),
        ("x" * (LIMIT_BYTES + 1), "longer than 1 MiB"),
        ("é" * (LIMIT_BYTES // 2 + 1), "longer than 1 MiB"),
    ],
)
def test_text_that_is_not_plain_yaml_is_refused(text: str, words: str) -> None:
    assert words in read_error(text).message


def test_nested_aliases_that_expand_exponentially_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "has more than 100,000 values, aliases included" in read_error("\n".join(lines)).message


def test_an_anchor_may_be_used_several_times() -> None:
    job = read_job("run: &it python x.py\nname: *it\nenv: {A: *it}", "job.yaml")
    assert job.name == job.env["A"] == "python x.py"


def test_a_line_may_be_continued_and_quoted_words_stay_whole() -> None:
    job = read_job("run: |\n  python 'my train.py' \\\n    --note \"a b\" c\\ d '\\'\n", "job.yaml")
    assert job.words == ("python", "my train.py", "--note", "a b", "c d", "\\")


@pytest.mark.parametrize("document", [None, [], "run: x", {"run": "x", 3: 4}, {"run": "x", "name": "\ud800"}])
def test_a_document_that_is_not_a_job_is_refused_without_a_line(document: object) -> None:
    with pytest.raises(ConfigError, match=r"^request: "):
        read_document(document, "request")


@pytest.mark.parametrize(
    "more",
    [
        {"batch_size": True},
        {"batch_size": "64"},
        {"batch_size": 10**5000},
        {"priority": float("nan")},
        {"priority": float("inf")},
        {"priority": 10**400},
        {"fuse": 0},
        {"fuse": True},
        {"elastic": 1},
        {"name": b"x"},
        {"env": {"A": float("nan")}},
        {"matrix": {"a": {1, 2}}},
    ],
)
def test_a_document_is_not_coerced_to_other_types(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^request: [a-z_.\[\]0-9A]+ is .*, expected"):
        job_with(**more)


def test_the_json_schema_describes_the_accepted_values() -> None:
    schema = JobFile.model_json_schema()
    text, words = schema["properties"]["run"]["anyOf"]
    assert schema["required"] == ["run"]
    assert schema["additionalProperties"] is False
    assert text["pattern"].startswith("^")
    assert (words["minItems"], words["prefixItems"][0]["minLength"]) == (1, 1)
    assert schema["properties"]["fuse"]["anyOf"][0] == {"enum": ["off", "auto", False]}
    assert schema["properties"]["env"]["propertyNames"]["not"]["anyOf"][0] == {"pattern": "^WATTLINE_"}
    assert "SIGKILL" not in schema["$defs"]["CheckpointSection"]["properties"]["signal"]["enum"]
    for part in (schema, *schema["$defs"].values()):
        assert all("description" in field for field in part["properties"].values())


@given(st.text())
def test_any_text_is_a_job_or_an_error_with_its_place(text: str) -> None:
    found = read_or_message(lambda: read_job(text, "job.yaml"))
    assert found.startswith("job.yaml") if isinstance(found, str) else found.words


_DOCUMENT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1..4", "5%"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*JobFile.model_fields, "gpus", "group", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)
_PIECES = st.sampled_from(
    [*"{}[]:,-?&*!|>'\"%@`#~.$\\ \n\t", "run: x\n", "matrix: ", "&a ", "*a", "<<", "${a}"]
)


@given(st.dictionaries(st.sampled_from(list(JobFile.model_fields)), _DOCUMENT))
def test_any_document_is_a_job_or_an_error(document: dict[str, Any]) -> None:
    found = read_or_message(lambda: job_with(**document))
    assert found.startswith("request: ") if isinstance(found, str) else found.words


@given(st.lists(_PIECES | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_that_looks_like_yaml_is_a_job_or_an_error(text: str) -> None:
    for found in (
        read_or_message(lambda: read_job(text, "job.yaml")),
        read_or_message(lambda: read_job(f"run: x\n{text}", "job.yaml")),
        read_or_message(lambda: read_job(f"run: {text}", "job.yaml")),
    ):
        assert found.startswith("job.yaml") if isinstance(found, str) else found.words


@given(st.text())
def test_any_command_is_split_or_refused_for_a_reason(text: str) -> None:
    found = read_or_message(lambda: job_with(run=text))
    assert found.startswith("request: run ") if isinstance(found, str) else found.words[0]


def test_retries_and_preemption_are_read() -> None:
    job = job_with(
        preemptible=False,
        checkpoint={"min_runtime": "5m"},
        retry={"limit": 2, "delay": "10s", "on": ["crash", "error"]},
    )
    assert (job.preemptible, job.checkpoint.min_runtime_s) == (False, 300.0)
    assert (job.retry.limit, job.retry.delay_s, job.retry.on) == (2, 10.0, ("crash", "error"))
    usual = job_with(retries=5)
    assert (usual.retries, usual.retry.limit, usual.retry.on, usual.preemptible) == (5, None, None, None)
    assert read_job("run: x\npreemptible: off\nretry: {on: [killed]}", "job.yaml").preemptible is False
    assert read_job("run: x\nretry: {on: [killed]}", "job.yaml").retry.on == ("killed",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: x\nretries: 2\nretry: {limit: 3}", "job.yaml:3: retry.limit is 3 and retries is 2"),
        ("run: x\nretry: {on: [segfault]}", "job.yaml:2: retry.on"),
        ("run: x\nretry: 3", "job.yaml:2: retry is 3, expected a mapping such as {limit: 3"),
        ("run: x\npreemptible: sometimes", "job.yaml:2: preemptible is 'sometimes', expected true or false"),
        ("run: x\ncheckpoint: {min_runtime: 2d}", "job.yaml:2: checkpoint.min_runtime is '2d'"),
    ],
)
def test_errors_of_retries_and_preemption_name_the_field(text: str, message: str) -> None:
    assert read_error(text).message.startswith(message)
