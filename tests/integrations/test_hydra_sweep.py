"""The Hydra launcher, with real Hydra applications against a service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wattline.errors import ConfigError
from wattline.service.controller import Controller

pytest.importorskip("hydra")
from wattline.integrations.hydra_sweep import build_matrix

APPLICATION = """
import os
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=None, config_name=None)
def train(cfg):
    if cfg.x == 3:
        raise ValueError("x is three")
    print("number", HydraConfig.get().job.num, "job", os.environ["WATTLINE_JOB_ID"])
    return cfg.x ** 2

train()
"""

FUSIBLE = """
import torch
from wattline import fusion

def build(config):
    torch.manual_seed(config["seed"])
    return torch.nn.Linear(2, 1)

def train(array, configs):
    with fusion.Session(array, configs) as run:
        for epoch in run.epochs(1):
            for _ in run.steps([torch.ones(1)]):
                pass
            run.report(score=[config["lr"] + config["seed"] for config in configs])

fusion.main(build, train)
"""


@pytest.mark.slow
def test_a_sweep_is_one_group_of_jobs(
    run_script: Callable[..., str], service: Controller, here: Path
) -> None:
    before = {job.id for job in service.store.jobs()}
    output = run_script(APPLICATION, "-m", "hydra/launcher=wattline", "+x=1,2", "hydra.launcher.team=vision")
    jobs = [job for job in service.store.jobs() if job.id not in before]
    assert len(jobs) == 2
    assert len({job.sweep for job in jobs}) == 1
    assert {(job.name, job.team, job.state) for job in jobs} <= {
        ("script", "vision", state) for state in ("SUCCEEDED", "RUNNING")
    }
    assert f"job {jobs[0].id} : +x=1" in output
    assert len(list(here.glob("multirun/*/*/*/.hydra/config.yaml"))) == 2


@pytest.mark.slow
def test_an_error_in_a_job_of_a_sweep_comes_back(run_script: Callable[..., str]) -> None:
    output = run_script(APPLICATION, "-m", "hydra/launcher=wattline", "+x=1,3", code=1)
    assert "ValueError: x is three" in output
    assert "Error executing job with overrides: ['+x=3']" in output


@pytest.mark.slow
def test_a_fusible_script_becomes_a_matrix_that_may_be_fused(
    run_script: Callable[..., str], service: Controller, here: Path
) -> None:
    (here / "fusible.py").write_text(FUSIBLE)
    before = {job.id for job in service.store.jobs()}
    words = ("hydra.launcher.script=fusible.py", "hydra.launcher.metric=score", "hydra.launcher.fuse=2")
    run_script(APPLICATION, "-m", "hydra/launcher=wattline", "+lr=1,3", "+seed=5", *words)
    jobs = [job for job in service.store.jobs() if job.id not in before]
    assert [job.submission["spec"]["config"] for job in jobs] == [
        {"lr": 1, "seed": 5},
        {"lr": 3, "seed": 5},
    ]
    assert len({job.fuse for job in jobs} - {""}) == 1
    assert {job.state for job in jobs} == {"SUCCEEDED"}


def test_only_all_combinations_are_a_matrix() -> None:
    rows = [["+lr=1", "seed=0"], ["+lr=1", "seed=1"], ["+lr=2", "seed=0"], ["+lr=2", "seed=1"]]
    assert build_matrix(rows) == {"lr": ["1", "2"], "seed": ["0", "1"]}
    with pytest.raises(ConfigError, match="3 jobs are not all combinations of the values of lr, seed"):
        build_matrix(rows[:3])
    with pytest.raises(ConfigError, match=r"override 'a\.b=1' cannot be passed"):
        build_matrix([["a.b=1"]])
