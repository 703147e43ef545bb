"""Names of docs/fusion.md: small models, batches and frameworks."""

import copy  # noqa: F401

import torch
import torch.nn.functional as F  # noqa: N812
from lightning import LightningModule, Trainer  # noqa: F401
from peft import LoraConfig, get_peft_model  # noqa: F401
from torch import nn
from transformers import AutoModelForSequenceClassification  # noqa: F401
from transformers import TrainingArguments as _TrainingArguments

from support.small_transformers import CLASSES, VOCABULARY, build_classifier, build_llama
from wattline import fusion

REPLACE = {
    'width="auto"': "compile=False",
    "optimiser)\nlosses = array": "optimiser, compile=False)\nlosses = array",
    "optimiser)\n    with": "optimiser, compile=False)\n    with",
    "@fusion.compile\n": "",
    "LoraConfig(r=r, lora_alpha=16)": 'LoraConfig(r=r, lora_alpha=16, target_modules=["q_proj"])',
}
x, target = torch.randn(16, 4), torch.randint(3, (16,))
loader = [(x, target)] * 3
config = build_classifier(0).config
sentences = torch.randint(VOCABULARY, (12, 6))
train = test = [{"input_ids": ids, "labels": torch.tensor(n % CLASSES)} for n, ids in enumerate(sentences)]
base = build_llama(0)


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def compute_metrics(prediction):
    return {"accuracy": 0.5}


def TrainingArguments(folder, **more):  # noqa: N802
    """Return arguments for a short training on the CPU."""
    return _TrainingArguments(folder, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, **more)


def use_three_members(page):
    page.setup.array = fusion.fuse([build_network(seed) for seed in range(3)])
    page.setup.optimiser = fusion.Adam(page.setup.array, lr=1e-3)


def prepare_gan(page):
    names = page.setup
    names.generators = fusion.fuse([nn.Linear(2, 4) for _ in range(3)])
    names.critics = fusion.fuse([nn.Linear(4, 1) for _ in range(3)])
    names.d_optimiser = fusion.Adam(names.critics, lr=1e-3)
    names.g_optimiser = fusion.Adam(names.generators, lr=1e-3)
    names.real_loss = lambda output: F.softplus(-output).mean()
    names.fake_loss = lambda output: F.softplus(output).mean()


def run_gan(page):
    d_losses, g_losses = page.setup.step(torch.randn(8, 4), torch.randn(8, 2))
    assert d_losses.shape == g_losses.shape == (3,)


def run_train(page):
    use_three_members(page)
    page.setup.accuracy = torch.tensor([0.1, 0.2, 0.3])
    page.setup.train(page.setup.array, [{"lr": 1e-3, "seed": seed} for seed in range(3)])


def restore_names(page):
    page.setup.build, page.setup.train = build_network, train_data


def run_lightning(page):
    trainer = Trainer(max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      accelerator="cpu", enable_model_summary=False)  # fmt: skip
    trainer.fit(page.setup.Net(), torch.utils.data.DataLoader(list(zip(x, target, strict=True)), 8))


build_network, train_data = build, train
BEFORE = {
    "criteria =": use_three_members,
    "def step(images": prepare_gan,
    "fusion.Muon": use_three_members,
    "FusedTrainer": restore_names,
}
AFTER = {
    "fusion.main(build, train)": restore_names,
    "def step(images": run_gan,
    "fusion.Session(array": run_train,
    "FusedLightningMixin": run_lightning,
}
