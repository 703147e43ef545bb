"""A loop of one's own with Accelerate: its state is that of the session, and its tracker gets the energy."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environment import isolate_environment
from support.sessions import describe_gpus


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_session_saves_and_loads_the_state_of_accelerate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate")
    import torch

    import wattline
    from wattline.integrations.framework_run import describe_energy

    isolate_environment(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)

    def train(epochs: int) -> tuple[int, float, dict[str, float]]:
        accelerator = accelerate.Accelerator(cpu=True)
        model = torch.nn.Linear(1, 1)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        model, optimiser = accelerator.prepare(model, optimiser)
        settings = {"save": accelerator.save_state, "load": accelerator.load_state, "aim": "none"}
        gpus = describe_gpus(tmp_path)
        steps = 0
        with wattline.Session(checkpoints=tmp_path / "saved", meter=gpus, **settings) as run:
            for _ in run.epochs(epochs):
                for x in run.steps(torch.ones(4, 2, 1)):
                    accelerator.backward(model(x).sum())
                    optimiser.step()
                    optimiser.zero_grad()
                    steps += 1
            energy = describe_energy(run)
        return steps, float(model.weight.detach()), energy

    steps, weight, energy = train(1)
    assert steps == 4
    assert energy["wattline/energy_j"] > 0
    steps, continued, _ = train(2)
    assert steps == 4  # the first epoch was in the checkpoint
    assert continued == pytest.approx(weight - 4 * 0.1 * 2, abs=1e-4)
