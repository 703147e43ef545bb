"""Names and files of docs/integrations.md."""

import optuna
import torch
from accelerate import Accelerator
from lightning import LightningModule
from lightning import Trainer as _LightningTrainer
from lightning.pytorch.loggers import MLFlowLogger  # noqa: F401
from torch import nn
from transformers import Trainer as _HuggingFaceTrainer
from transformers import TrainingArguments

import wattline  # noqa: F401
from support.page_samples import TRAIN
from support.small_transformers import CLASSES, VOCABULARY, build_classifier

optuna.logging.set_verbosity(optuna.logging.ERROR)
SERVICE = True
ENV = {"WATTLINE_METER": "simulated:1xv100,model=resnet50,batch=64,state=FOLDER/gpus"}
REPLACE = {
    "n_trials=20": "n_trials=2",
    "/usr/local/share/man/man1/": "",
    "train.py -m": "hydra_train.py -m",
    "Trainer(callbacks": "LightningTrainer(callbacks",
    "--set-caps ": "--set-caps -y ",
}
FILES = {
    "train.py": TRAIN,
    "train.sh": "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --time=10\n#SBATCH --gpus=1\necho $1\n",
    "conf/config.yaml": "lr: 1e-3\nseed: 0\n",
    "hydra_train.py": (
        "import hydra\n\n\n@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(config):\n    return config.lr * config.seed\n\n\nif __name__ == '__main__':\n    main()\n"
    ),
}
space = {"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1)}
data = [{"input_ids": ids, "labels": torch.tensor(n % CLASSES)}
        for n, ids in enumerate(torch.randint(VOCABULARY, (8, 6)))]  # fmt: skip
model = build_classifier(0)
args = TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_steps=1)
accelerator = Accelerator(cpu=True)
loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)


def add(a, b):
    return a + b


def objective(trial):
    return trial.suggest_float("lr", 1e-4, 1e-1)


def train(parameters):
    return parameters["lr"]


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, index):
        return (self.layer(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


module = Module()


def Trainer(*words, **more):  # noqa: N802
    return _HuggingFaceTrainer(*words, **more)


def LightningTrainer(**more):  # noqa: N802
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return _LightningTrainer(max_epochs=1, accelerator="cpu", log_every_n_steps=1, **quiet, **more)


def check_results(page):
    assert page.setup.job.result() == 12
    assert [job.result() for job in page.setup.jobs] == [11, 22, 33]


AFTER = {"wattline.Executor(folder": check_results}
