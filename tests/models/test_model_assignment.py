"""Random assignment of models to jobs with an unknown model."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import wattline as wl
from wattline.core.table import Labels
from wattline.errors import ConfigError
from wattline.models.model_assignment import assign_models
from wattline.models.workload_models import WorkloadModels

A100 = {
    f"elasticflow/{name}"
    for name in ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "resnet50_cifar10", "vgg16")
}


def jobs(*models: str, gpu_kind: list[str] | None = None) -> wl.Jobs:
    count = len(models)
    return wl.Jobs.of(
        submit_s=np.arange(count, dtype=np.float64),
        gpus=[1] * count,
        duration_s=[60.0] * count,
        batch=[48] * count,
        max_batch=[96] * count,
        noise=[9.0] * count,
        model=models,
        gpu_kind=gpu_kind,
    )


def test_jobs_of_unknown_models_get_one_that_was_measured_on_many_gpus_and_known_ones_keep_theirs() -> None:
    drawn = assign_models(jobs("resnet50", "", "my-net", "ResNet-50 (batch 64)"), wl.library(), "a100", 0)
    words = drawn.model.words()
    assert (words[0], words[3]) == ("resnet50", "ResNet-50 (batch 64)")
    assert {words[1], words[2]} <= A100
    assert all(wl.library().find(name, "a100") for name in (words[1], words[2]))


def test_batch_and_noise_of_an_unknown_model_are_reset() -> None:
    drawn = assign_models(jobs("resnet50", "my-net"), wl.library(), "a100", 0)
    assert drawn.batch.tolist() == [48, 0]
    assert drawn.max_batch.tolist() == [96, 0]
    assert drawn.noise.tolist() == [9, 0]


def test_all_that_qualify_are_drawn_about_equally_often() -> None:
    counts = Counter(assign_models(jobs(*[""] * 7000), wl.library(), "A100", 3).model.words())
    assert set(counts) == A100
    assert all(900 < count < 1100 for count in counts.values())


def test_the_model_of_a_row_depends_on_the_seed_and_the_row_only() -> None:
    many, few = (assign_models(jobs(*[""] * count), wl.library(), "a100", 5) for count in (90, 30))
    assert many.model.words()[:30] == few.model.words()
    known_first = assign_models(jobs(*["gpt2"] * 10, *[""] * 20), wl.library(), "a100", 5)
    assert known_first.model.words()[10:] == few.model.words()[10:]
    assert assign_models(jobs(*[""] * 30), wl.library(), "a100", 6).model.words() != few.model.words()


@pytest.mark.slow
def test_another_process_draws_the_same() -> None:
    code = (
        "import wattline as wl; from wattline.models.model_assignment import assign_models\n"
        "jobs = wl.Jobs.of(submit_s=[0.0] * 40, gpus=[1] * 40, duration_s=[1.0] * 40)\n"
        "print(*assign_models(jobs, wl.library(), 'a100', 11).model.words())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = wl.Jobs.of(submit_s=[0.0] * 40, gpus=[1] * 40, duration_s=[1.0] * 40)
    assert done.stdout.split() == assign_models(here, wl.library(), "a100", 11).model.words()


def test_on_several_kinds_only_what_was_measured_on_each_is_drawn() -> None:
    drawn = assign_models(jobs("LM", "gpt2", ""), wl.library(), ("v100", "k80"), 0)
    assert drawn.model.word(0) == "LM"
    assert all(name.startswith("gavel/") for name in drawn.model.words()[1:])


def test_a_job_that_accepts_one_kind_keeps_a_model_that_is_known_there() -> None:
    asked = jobs("bert-squad", "bert-squad", gpu_kind=["v100", ""])
    drawn = assign_models(asked, wl.library(), ("v100", "k80"), 0)
    assert drawn.model.word(0) == "bert-squad"
    assert drawn.model.word(1).startswith("gavel/")


def test_jobs_that_are_all_known_are_left_alone() -> None:
    asked = jobs("gpt2", "bert")
    assert assign_models(asked, wl.library(), "a100", 0) is asked


def test_a_kind_without_measurements_of_scaling_is_refused_with_the_kinds_that_have_some() -> None:
    with pytest.raises(ConfigError, match=r"on h100 with 1 to 8 GPUs .* a100, k80, p100, v100, t4"):
        assign_models(jobs(""), wl.library(), "h100", 0)
    with pytest.raises(ConfigError, match="on a100 and v100"):
        assign_models(jobs(""), wl.library(), ("a100", "v100"), 0)
    with pytest.raises(ConfigError, match="none of these models was"):
        assign_models(jobs(""), WorkloadModels(()), "a100", 0)


def test_workloads_without_a_source_are_drawn_by_their_name() -> None:
    found = wl.library().find("vgg16", "a100")
    mine = WorkloadModels((replace(found, source=replace(found.source, name="")),))
    assert assign_models(jobs("", ""), mine, "a100", 0).model.words() == ["vgg16", "vgg16"]


def test_jobs_that_may_be_fused_get_the_same_model() -> None:
    many = replace(jobs(*[""] * 60), fuse=Labels.of(["a", "", "b"] * 20))
    words = np.array(assign_models(many, wl.library(), "a100", 5).model.words())
    assert len(set(words[0::3])) == len(set(words[2::3])) == 1
    assert len(set(words[1::3])) > 1
    assert (
        words[1::3].tolist() == assign_models(jobs(*[""] * 60), wl.library(), "a100", 5).model.words()[1::3]
    )
