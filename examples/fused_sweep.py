"""A sweep as one array: six trainings in one process, each of which ends when it reaches its target."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from wattline import fusion

torch.manual_seed(0)
X = torch.randn(512, 8, dtype=torch.float64)
Y = (X[:, 0] * X[:, 1] + 0.5 * X[:, 2] > 0).long()
BATCHES = list(zip(X.split(64), Y.split(64), strict=True))


def build(config):
    """Return the model of one member."""
    torch.manual_seed(config["seed"])
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).double()


def train(array, configs):
    """Train all members at once; the service may also start them one by one."""
    optimiser = fusion.Adam(array, lr=[config["lr"] for config in configs])
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
    with fusion.Session(array, configs, optimiser, target="accuracy>=0.95", aim="none") as run:
        for epoch in run.epochs(40):
            for x, y in run.steps(BATCHES):
                run.add(loss=step(x, y))
            with torch.no_grad():
                accuracy = (array(X).argmax(-1) == Y).float().mean(-1)
            for config, good, value in zip(run.configs, run.report(accuracy=accuracy), accuracy, strict=True):
                if good or epoch == 39:
                    print(f"lr {config['lr']:<5} seed {config['seed']}: {value:.2f} after {epoch + 1} epochs")


# A script that the service runs takes the values from its command line: fusion.main(build, train)
fusion.main(build, train, ["lr=0.003,0.01,0.03", "seed=1,2"])
