"""`WattlineCallback` for Ray Tune, for a driver that runs as a job.

    tuner = tune.Tuner(train, run_config=tune.RunConfig(callbacks=[WattlineCallback()]))

Each result of a trial counts as a step of the job, its numbers are reported to the service, and it gets the
joules, watts, cap and id of the whole job. The energy of trials is not separated.
"""

from __future__ import annotations

from typing import Any

from ray.tune import Callback

from wattline.integrations.framework_run import FrameworkRun, describe_energy


class TuneEnergyCallback(Callback):
    """Progress and energy of a driver of Ray Tune; *settings* are those of `wattline.Session`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {"aim": "none", **settings}  # one cap for unlike trials would be a compromise
        self.run: FrameworkRun | None = None

    def setup(
        self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **more: Any
    ) -> None:
        """Start the session before the first trial."""
        self.run = FrameworkRun(**self._settings)
        self.run.open(0, 0, 0, "tune.Tuner.restore(...)")

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **more: Any
    ) -> None:
        """Report the numbers of a result, and add the energy to it."""
        assert self.run is not None
        self.run.step(0)
        self.run.report(result)
        result.update(describe_energy(self.run.session))

    def on_experiment_end(self, trials: Any, **more: Any) -> None:
        """End the session."""
        if self.run is not None:
            self.run.close()


WattlineCallback = TuneEnergyCallback
