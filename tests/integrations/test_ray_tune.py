"""The callback of Ray Tune, where Ray is installed; it is not a dependency of the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SCRIPT = """
import ray
from ray import tune
from wattline.integrations.ray_tune import WattlineCallback

def train(config):
    for k in range(2):
        tune.report({"loss": config["x"] / (k + 1)})

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
callback = WattlineCallback()
settings = tune.RunConfig(callbacks=[callback], verbose=0, storage_path=__file__ + ".out")
space = {"x": tune.grid_search([1.0, 2.0])}
for result in tune.Tuner(train, param_space=space, run_config=settings).fit():
    print("loss", result.metrics["loss"], sorted(name for name in result.metrics if "wattline" in name))
print("steps", callback.run.session.position.steps, callback.run.session.metrics["loss"])
"""


@pytest.mark.slow
def test_results_of_ray_tune_have_the_energy_of_the_job(run_script: Callable[..., str]) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    output = run_script(
        SCRIPT, WATTLINE_METER="simulated:1xa100", WATTLINE_JOB_ID="12", RAY_USAGE_STATS_ENABLED="0"
    )
    names = [f"wattline/{name}" for name in ("cap_w", "energy_j", "job_id", "power_w")]
    assert f"loss 0.5 {names}" in output
    assert f"loss 1.0 {names}" in output
    assert "steps 4 1.0" in output
