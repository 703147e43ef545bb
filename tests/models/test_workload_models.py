"""Workload models as predictions of a scheduler and as truth of a simulator."""

from dataclasses import replace

import numpy as np
import pytest

import wattline
from support.simulations import NO_OVERHEADS, finish_times
from support.synthetic_workloads import (
    SPEED,
    build_workload,
    join_profiles,
    max_relative_error,
    measure,
    rename_model,
)
from wattline import policy as p
from wattline.cluster import nodes
from wattline.core.events import ARRIVED, FINISHED, RAN, Event, build_events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Labels
from wattline.errors import InputError, NotFitted, OutOfRange
from wattline.measurement.settings import Settings
from wattline.models import TraceModels, WorkloadModels
from wattline.models.array_speed import ArrayModel, max_array_width
from wattline.models.fit import fit
from wattline.models.trace_model import Misjudged
from wattline.models.workload import MeasurementSource
from wattline.papers.synergy_speedups import SynergyModels

GPUS = {"gpus": [1, 1, 2, 4, 8, 8], "batch": [32, 64, 64, 128, 256, 512]}
WIDE = {"gpus": [1, 1, 2, 4, 8, 8, 2, 8, 16], "nodes": [1, 1, 1, 1, 1, 1, 2, 2, 2]}
WIDE["batch"] = [32, 64, 64, 128, 256, 512, 64, 256, 512]
MODELS = fit(
    join_profiles(
        measure(build_workload(), **WIDE),
        rename_model(measure(build_workload(speed=replace(SPEED, sample_s=0.004)), **WIDE), "ResNet-50"),
        rename_model(
            measure(build_workload(speed=replace(SPEED, sample_s=0.008)), **WIDE), "ResNet-50", "v100"
        ),
    )
)


def some_jobs(**columns: object) -> Jobs:
    columns = {"gpus": [1, 2, 4], "model": ["ResNet-50"] * 3, "gpu_kind": ["a100"] * 3, **columns}
    count = len(columns["gpus"])  # type: ignore[arg-type]
    return Jobs.of(submit_s=[0.0] * count, duration_s=[1000.0] * count, **columns)  # type: ignore[arg-type]


def speed(models: Models, jobs: Jobs, job: int, gpus: int, on: int = 1, members: int = 1) -> float:
    who, wide, nodes, beside = (np.array([value], dtype=np.int64) for value in (job, gpus, on, members))
    return float(models.speed(jobs, Grants.of(who, wide, nodes, members=beside))[0])


# -- names


@pytest.mark.parametrize("name", ["ResNet-50", "resnet50", "RESNET_50", "res net 50"])
@pytest.mark.parametrize("gpu", ["a100", "A100"])
def test_a_model_is_found_in_any_spelling(name: str, gpu: str) -> None:
    assert MODELS.find(name, gpu) is MODELS.workloads[1]


def test_where_several_sources_measured_a_model_the_first_is_found_and_all_by_their_source() -> None:
    one, other = (
        replace(build_workload(speed=replace(SPEED, sample_s=s)), source=MeasurementSource(name))
        for s, name in ((0.001, "here"), (0.002, "There '24"))
    )
    models = WorkloadModels((one, other))
    assert models.find("made-up", "a100") is one
    assert models.find("Here/made_up", "a100") is one
    assert models.find("there-24/made-up", "a100") is other
    assert str(models) == "WorkloadModels(2 workloads of There '24, here)"


def test_an_unknown_model_gets_a_hint() -> None:
    with pytest.raises(NotFitted, match="nothing was measured of 'resnet51'") as caught:
        MODELS.predict("resnet51", "a100")
    assert caught.value.hint == "did you mean ResNet-50?"


@pytest.mark.parametrize("gpu", ["h100", ""])
def test_an_unknown_gpu_lists_the_known_ones(gpu: str) -> None:
    with pytest.raises(NotFitted, match=f"resnet50 was not measured on '{gpu}', only on a100, v100"):
        MODELS.predict("resnet50", gpu)


# -- predictions


def test_knobs_and_settings_ask_the_same() -> None:
    said = MODELS.predict("resnet50", "a100", gpus=4, batch=128)
    asked = MODELS.predict("resnet50", "a100", Settings.of(gpus=4, batch=128))
    assert said.samples_s.tolist() == asked.samples_s.tolist()
    assert said.watts.tolist() == asked.watts.tolist()


def test_columns_of_models_and_gpus_are_predicted_as_one_by_one() -> None:
    rng = np.random.default_rng(2)
    names = ["resnet50" if known else "made-up" for known in rng.random(200) < 0.5]
    kinds = [
        "v100" if name == "resnet50" and old else "a100"
        for name, old in zip(names, rng.random(200) < 0.5, strict=True)
    ]
    settings = Settings.of(gpus=rng.choice([1, 2, 4, 8], 200), batch=rng.integers(256, 512, 200))
    settings = replace(settings, batch=settings.batch * settings.gpus / 8)
    every = MODELS.predict(Labels.of(names), Labels.of(kinds), settings)
    alone = [
        MODELS.predict(name, kind, settings.take(slice(row, row + 1)))
        for row, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    assert every.samples_s.tolist() == [float(one.samples_s[0]) for one in alone]
    assert every.watts.tolist() == [float(one.watts[0]) for one in alone]


def test_one_model_on_several_gpus_needs_no_second_column() -> None:
    both = MODELS.predict("resnet50", Labels.of(["a100", "v100"]), Settings.of(batch=[64, 64]))
    assert both.samples_s[0] > 1.5 * both.samples_s[1]


@pytest.mark.parametrize("gpu", ["a100", Labels.of(["a100"] * 2)])
def test_a_column_that_is_too_short_is_refused(gpu: str | Labels) -> None:
    with pytest.raises(InputError, match=r"2.* 3"):
        MODELS.predict(Labels.of(["resnet50"] * 2), gpu, Settings.of(batch=[64, 64, 64]))


def test_what_is_out_of_range_is_refused_in_columns_too() -> None:
    with pytest.raises(OutOfRange, match="ResNet-50 on a100"):
        MODELS.predict(Labels.of(["made-up", "resnet50"]), "a100", Settings.of(batch=[64, 9999]))


# -- speeds of jobs


def test_a_job_as_requested_on_one_node_has_speed_one() -> None:
    jobs = some_jobs(gpus=[1, 2, 8], batch=[64, 0, 512])
    every = np.arange(3)
    assert MODELS.speed(jobs, Grants.of(every, jobs.gpus)).tolist() == [1, 1, 1]


def test_speed_is_the_prediction_relative_to_the_request() -> None:
    jobs = some_jobs(gpus=[4], model=["resnet50"], gpu_kind=["A100"], batch=[256])
    two, four, spread = (
        MODELS.predict("resnet50", "a100", gpus=g, nodes=n, batch=256).samples_s[0]
        for g, n in ((2, 1), (4, 1), (4, 2))
    )
    assert speed(MODELS, jobs, 0, 2) == pytest.approx(two / four)
    assert speed(MODELS, jobs, 0, 4, on=2) == pytest.approx(spread / four)
    assert speed(MODELS, jobs, 0, 4, on=2) < 1 < speed(MODELS, jobs, 0, 8)


def test_beyond_what_was_measured_more_gpus_are_no_faster() -> None:
    jobs = some_jobs(gpus=[8], model=["resnet50"], gpu_kind=["a100"], batch=[512])
    most = int(MODELS.find("resnet50", "a100").measured["gpus"][1]) * 2
    assert speed(MODELS, jobs, 0, 2 * most, on=16) <= speed(MODELS, jobs, 0, most, on=16) * (1 + 1e-9)


def test_packed_jobs_are_slowed_like_unmeasured_ones() -> None:
    jobs = some_jobs()
    assert speed(MODELS, jobs, 0, 1, members=2) == pytest.approx(0.6)
    assert speed(replace(MODELS, fallback=TraceModels(packed=0.5)), jobs, 0, 1, members=2) == pytest.approx(
        0.5
    )


def array_of(width: int, jobs: Jobs, job: int = 0, **more: object) -> Grants:
    who, wide = np.full(1, job), jobs.gpus[[job]]
    return Grants.of(who, wide, members=np.full(1, width), fused=np.array([width > 1]), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 2, 8])
def test_members_of_an_array_share_what_was_measured_of_it(width: int) -> None:
    learnt = replace(MODELS.workloads[1], array=ArrayModel(serial=0.3))
    jobs, models = (
        some_jobs(gpus=[1], batch=[64], model=["resnet50"], gpu_kind=["a100"]),
        WorkloadModels((learnt,)),
    )
    alone, together = (learnt.extrapolate(Settings.of(batch=64, fuse=fuse)) for fuse in (1, width))
    each = models.speed(jobs, array_of(width, jobs, kind="a100"))
    assert each == pytest.approx(together.samples_s / width / alone.samples_s)
    assert each == pytest.approx(1 / (1 + 0.3 * (width - 1)), rel=0.05)
    assert models.watts(jobs, array_of(width, jobs, kind="a100")) == pytest.approx(together.watts)


def test_unmeasured_arrays_follow_the_default() -> None:
    jobs = some_jobs(model=["strange"] * 3)
    for models in (MODELS, TraceModels(), SynergyModels(), Misjudged(error=0.0)):
        assert models.speed(jobs, array_of(4, jobs)) == pytest.approx(1 / (1 + 0.65 * 3))
        assert max_array_width(models, jobs, array_of(4, jobs)).tolist() == [np.inf]


@pytest.mark.parametrize(("kind", "most"), [("a100", 12), ("v100", 4), ("other", np.inf), ("", 12)])
def test_as_many_members_fit_as_memory_was_measured_for(kind: str, most: float) -> None:
    learnt = replace(MODELS.workloads[1], array=ArrayModel(0.3, 2.0, 3.0))
    jobs = some_jobs(model=["resnet50"] * 3, gpu_kind=[""] * 3)
    assert max_array_width(WorkloadModels((learnt,)), jobs, array_of(2, jobs, kind=kind)).tolist() == [most]
    assert max_array_width(
        Misjudged(WorkloadModels((learnt,))), jobs, array_of(2, jobs, kind=kind)
    ).tolist() == [most]


def test_unmeasured_jobs_follow_their_trace() -> None:
    jobs = some_jobs(model=["ResNet-50", "strange", ""])
    asked = TraceModels(span_penalty=2.0)
    models = replace(MODELS, fallback=asked)
    for job in (1, 2):
        for gpus, on in ((1, 1), (2, 2), (4, 1)):
            assert speed(models, jobs, job, gpus, on) == speed(asked, jobs, job, gpus, on)
    assert speed(models, jobs, 0, 4, 2) != speed(asked, jobs, 0, 4, 2)


@pytest.mark.parametrize(
    ("kinds", "which"), [("v100", 2), ("v100|a100", 2), ("a100 | v100", 1), ("", 1), ("h100|v100", 2)]
)
def test_a_job_that_accepts_several_kinds_is_what_was_measured_on_the_first_that_is_known(
    kinds: str, which: int
) -> None:
    jobs = some_jobs(gpus=[4], model=["resnet-50 (imagenet)"], gpu_kind=[kinds], batch=[256])
    alone = WorkloadModels((MODELS.workloads[which],))
    assert speed(MODELS, jobs, 0, 2) == speed(alone, jobs, 0, 2)


def test_no_jobs_have_no_speeds() -> None:
    nobody = np.empty(0, dtype=np.int64)
    assert MODELS.speed(some_jobs(), Grants.of(nobody, nobody)).tolist() == []


# -- in a simulation


@pytest.mark.parametrize("policy", [p.fifo, p.srtf, p.Las(100.0), p.Gandiva(slice_s=100.0)])
def test_models_can_be_truth_and_prediction_of_a_simulation(policy: object) -> None:
    jobs = some_jobs(
        gpus=[1, 2, 4, 8, 2], model=["resnet50"] * 4 + ["?"], gpu_kind=["a100"] * 5, batch=[64] * 5
    )
    log = wattline.run(wattline.Sim(jobs, nodes("a100", count=3, gpus=4), truth=MODELS), policy, MODELS)  # type: ignore[arg-type]
    assert len(finish_times(log)) == 5
    assert log.header["models"] == "WorkloadModels(3 workloads)"


def test_a_job_on_two_nodes_takes_as_long_as_the_truth_says() -> None:
    jobs = some_jobs(gpus=[2], model=["resnet50"], gpu_kind=["a100"], batch=[64])
    log = wattline.run(
        wattline.Sim(jobs, nodes("a100", count=2, gpus=1), truth=MODELS, overheads=NO_OVERHEADS),
        p.fifo,
        MODELS,
    )
    assert finish_times(log)["0"] == pytest.approx(1000 / speed(MODELS, jobs, 0, 2, on=2))


class Listening:
    """Fifo that records the models it was called with."""

    def __init__(self) -> None:
        self.believed: list[Models] = []

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        self.believed.append(models)
        return p.fifo(snapshot, models)


def test_a_run_as_predicted_leaves_the_models_unchanged() -> None:
    policy = Listening()
    jobs = some_jobs(gpus=[2, 2, 4], batch=[64, 64, 128])
    wattline.run(wattline.Sim(jobs, nodes("a100", count=4, gpus=1), truth=MODELS), policy, MODELS)
    assert all(models is MODELS for models in policy.believed)


@pytest.mark.parametrize("cost_s", [0.0, 0.2, 1.0])
def test_what_a_second_node_costs_is_learnt_from_a_run(cost_s: float) -> None:
    belief = fit(measure(build_workload(), **GPUS))
    truth = fit(measure(build_workload(speed=replace(SPEED, second_node_s=cost_s, more_nodes_s=0.0)), **WIDE))
    jobs = some_jobs(gpus=[2, 4] * 3, model=["made-up"] * 6, gpu_kind=["a100"] * 6, batch=[64, 128] * 3)
    policy = Listening()
    wattline.run(wattline.Sim(jobs, nodes("a100", count=4, gpus=2), truth=truth), policy, belief)
    wattline.run(wattline.Sim(jobs, nodes("a100", count=4, gpus=1), truth=truth), policy, policy.believed[-1])
    learnt = policy.believed[-1]
    for gpus, on in ((2, 2), (4, 4), (4, 2)):
        job = 0 if gpus == 2 else 1
        assert speed(learnt, jobs, job, gpus, on) == pytest.approx(speed(truth, jobs, job, gpus, on), rel=0.1)


def test_what_is_learnt_of_one_workload_leaves_the_others() -> None:
    truth = WorkloadModels(
        tuple(replace(w, speed=replace(w.speed, second_node_s=1.0)) for w in MODELS.workloads)
    )
    policy = Listening()
    jobs = some_jobs(gpus=[2, 2], model=["resnet50"] * 2, gpu_kind=["a100"] * 2, batch=[64, 64])
    wattline.run(wattline.Sim(jobs, nodes("a100", count=2, gpus=1), truth=truth), policy, MODELS)
    learnt = policy.believed[-1]
    assert isinstance(learnt, WorkloadModels)
    assert [a is b for a, b in zip(learnt.workloads, MODELS.workloads, strict=True)] == [True, False, True]


# -- observations

JOBS = some_jobs(gpus=[2, 1, 1], batch=[64, 32, 32])
CLUSTER = nodes("a100", count=2, gpus=1)


def holding(*leases: tuple[int, int, int, int]) -> Leases:
    """Build leases from (job, group, node, gpus)."""
    return Leases.of(*zip(*leases, strict=True))


def test_the_rate_of_a_job_on_two_nodes_is_learnt() -> None:
    leases = holding((0, 0, 0, 1), (0, 0, 1, 1))
    models = MODELS
    for _ in range(4):
        models = models.observe(build_events(Event(RAN, 0, 1.0, 0.0, 0.4)), JOBS, leases, CLUSTER)
    assert speed(models, JOBS, 0, 2, on=2) == pytest.approx(0.4, rel=0.1)


def test_a_rate_as_expected_returns_the_very_same_models() -> None:
    leases = holding((0, 0, 0, 1), (0, 0, 1, 1))
    expected = speed(MODELS, JOBS, 0, 2, on=2)
    for rate in (expected, 0.93 * expected, 1.08 * expected):
        assert MODELS.observe(build_events(Event(RAN, 0, 1.0, 0.0, rate)), JOBS, leases, CLUSTER) is MODELS


@pytest.mark.parametrize(
    "events",
    [
        build_events(),
        build_events(Event(ARRIVED, 1, 1.0)),
        build_events(Event(RAN, 1, 1.0, 0.0, 5.0)),  # without a lease
        build_events(Event(RAN, 0, 1.0, 0.0, 0.0)),  # not running
        build_events(Event(FINISHED, 1, 1.0, 1000.0)),
    ],
)
def test_events_without_a_running_job_change_nothing(events: np.ndarray) -> None:
    assert MODELS.observe(events, JOBS, holding((0, 0, 0, 1), (0, 0, 1, 1)), CLUSTER) is MODELS


def test_packed_jobs_change_nothing() -> None:
    leases = holding((1, 1, 0, 1), (2, 1, 0, 1))
    seen = build_events(Event(RAN, 1, 1.0, 0.0, 0.2), Event(RAN, 2, 1.0, 0.0, 0.2))
    assert MODELS.observe(seen, JOBS, leases, CLUSTER) is MODELS


def test_a_packed_rate_is_not_taken_for_that_of_the_job_alone() -> None:
    # Job 2 shared GPUs with job 1 until it ended: both rates of job 1 are in the events of that end.
    seen = build_events(
        Event(RAN, 1, 0.0, 0.0, 0.6),
        Event(RAN, 2, 0.0, 0.0, 0.6),
        Event(FINISHED, 2, 1.0, 1000.0),
        Event(RAN, 1, 1.0, 0.6, 1.0),
    )
    assert MODELS.observe(seen, JOBS, holding((1, 1, 0, 1), (2, 1, 0, 1)), CLUSTER) is MODELS


def test_packed_jobs_do_not_lower_the_speed_of_a_job_alone() -> None:
    policy = p.Gandiva(slice_s=100.0)
    seen: list[Models] = []

    def listening(snapshot: Snapshot, models: Models) -> Plan:
        seen.append(models)
        return policy(snapshot, models)

    jobs = Jobs.of(
        submit_s=[0.0] * 4, gpus=[1] * 4, duration_s=[90.0, 250.0, 400.0, 700.0],
        model=["resnet50"] * 4, gpu_kind=["a100"] * 4, batch=[64] * 4,
    )  # fmt: skip
    wattline.run(wattline.Sim(jobs, nodes("a100", gpus=2), truth=MODELS), listening, MODELS)
    assert all(models is MODELS for models in seen)


def test_unmeasured_jobs_change_nothing() -> None:
    models = WorkloadModels(())
    assert (
        models.observe(
            build_events(Event(RAN, 0, 1.0, 0.0, 0.3)), JOBS, holding((0, 0, 0, 1), (0, 0, 1, 1)), CLUSTER
        )
        is models
    )


def test_learning_does_not_change_the_earlier_models() -> None:
    before = speed(MODELS, JOBS, 0, 2, on=2)
    MODELS.observe(
        build_events(Event(RAN, 0, 1.0, 0.0, 0.1)), JOBS, holding((0, 0, 0, 1), (0, 0, 1, 1)), CLUSTER
    )
    assert speed(MODELS, JOBS, 0, 2, on=2) == before
    assert max_relative_error([before], [1.0]) > 0.02


def test_a_job_is_as_fast_on_each_kind_as_the_source_of_its_trace_measured() -> None:
    timed = replace(wattline.library(), timed_on="v100")
    jobs = Jobs.of(submit_s=[0], gpus=[1], steps=[1000], step_s=[0.5], model=["ResNet-50"], batch=[64])
    row, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)

    def speed(models: WorkloadModels, kind: str) -> float:
        return float(models.speed(jobs, Grants.of(row, one, kind=kind))[0])

    assert speed(timed, "v100") == pytest.approx(1.0)
    assert speed(timed, "k80") < speed(timed, "p100") < 1.0
    fast = timed.predict("gavel/ResNet-50", "v100", gpus=1, batch=64).samples_s
    slow = timed.predict("gavel/ResNet-50", "k80", gpus=1, batch=64).samples_s
    assert speed(timed, "k80") == pytest.approx(float(slow[0] / fast[0]))
    assert speed(wattline.library(), "k80") == speed(wattline.library(), "v100") == pytest.approx(1.0)
