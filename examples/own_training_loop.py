"""A training loop of one's own with a session: energy windows, the best cap, and a stop at the target.

A framework that owns the loop (Keras, Lightning, the Trainer of transformers, JAX) calls the same three
names from its callbacks. The GPU is simulated, and only its steps take time.
"""

import tempfile

import torch

import wattline

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.001)
meter = "simulated:1xv100,model=resnet50,batch=64,time=virtual"

with (
    tempfile.TemporaryDirectory() as folder,
    wattline.Session(meter=meter, aim="energy", target="loss<=0.001", memory=f"{folder}/m.db") as run,
    wattline.timeline() as power,
):
    run.expect(epochs=20, steps=400)
    while not run.should_stop:
        with wattline.window("epoch") as w:
            for _ in range(400):
                batch = torch.randn(64, 4)
                loss = ((model(batch) - 2 * batch.sum(1, keepdim=True)) ** 2).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                run.step(len(batch))
        power.sample()
        run.epoch(loss=loss.item())
        print(f"epoch {run.position.epoch}: {w.time_s:.2f} s, {w.energy_j:.0f} J, {w.power_w:.0f} W")
    print(f"cap {run.gpus[0].cap_w():.0f} W saves {run.caps.saves:.0%}; reached: {run.reached}")
    print(f"{len(power.at_s)} samples of power, {power.power_w[0][-1]:.0f} W at the end")
print(f"method: {w.method}")
