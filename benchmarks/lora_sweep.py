"""Eight LoRA fine-tunings of one frozen transformer as one array against eight separate ones, on the CPU.

    python benchmarks/lora_sweep.py              three sides in turn, five rounds
    python benchmarks/lora_sweep.py --rounds 9 --ranks 2,4,8,16

Sides: separate peft models under torch.optim.AdamW, one after another; an array, operator by operator; an
array under `fusion.train_step`, compiled. Every run is a process of its own, so that the peak memory
(ru_maxrss) is that of one side; the rounds are interleaved. The time of a step is the median over the steps
of a run after the first three, for all eight members; that of separate models is the sum of their medians.
Members differ in seed, learning rate and, with several ranks, in rank (padded to the largest in the array).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from wattline import fusion
from wattline.fusion.integrations.peft import pad_lora

MEMBERS, VOCABULARY, BATCH, LENGTH = 8, 1000, 4, 32
RATES = [1e-3 * (1 + member) for member in range(MEMBERS)]
SIDES = ("separate", "array", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", choices=SIDES, help="run one side and print its figures as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", default="8", help="one rank, or several to go round the members")
    args = parser.parse_args()
    if args.side is None:
        compare(args)
        return
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    print(json.dumps(run_side(args)))


def compare(args: argparse.Namespace) -> None:
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side]
            for name in ("steps", "threads", "hidden", "layers", "ranks"):
                command += [f"--{name}", str(getattr(args, name))]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            runs[side].append(json.loads(out.splitlines()[-1]))
    base = statistics.median(run["step_s"] for run in runs["separate"])
    print(f"load average {os.getloadavg()[0]:.1f}, {args.rounds} rounds, {args.steps} steps")
    print("| side | step of all members, ms | least to most | ratio | peak memory, MB | before models |")
    print("|---|---|---|---|---|---|")
    for side, of_side in runs.items():
        times = sorted(run["step_s"] * 1e3 for run in of_side)
        median = statistics.median(times)
        peak, start = (statistics.median(run[key] for run in of_side) for key in ("peak_mb", "start_mb"))
        print(
            f"| {side} | {median:.0f} | {times[0]:.0f} to {times[-1]:.0f} | {base * 1e3 / median:.2f} "
            f"| {peak:.0f} | {start:.0f} |"
        )
    for side, of_side in runs.items():
        first, last = (" ".join(f"{loss:.4f}" for loss in of_side[0][key]) for key in ("first", "last"))
        print(f"losses, {side}: first {first}; last {last}")
        theirs = zip(of_side[0]["last"], runs["separate"][0]["last"], strict=True)
        print(f"largest difference of the last loss from separate: {max(abs(a - b) for a, b in theirs):.2e}")


def run_side(args: argparse.Namespace) -> dict[str, Any]:
    start = peak_mb()
    ranks = [int(rank) for rank in args.ranks.split(",")]
    base = build_base(args)
    batches = [draw_batch(step) for step in range(args.steps)]
    if args.side == "separate":
        each = []
        for member in range(MEMBERS):
            model = build(member, ranks, base)
            trained = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.AdamW(trained, lr=RATES[member])
            each.append(train_plainly(model, optimiser, batches))
        seconds = sum(statistics.median(times[3:]) for times, _ in each)
        losses = torch.stack([torch.stack(own) for _, own in each], 1)
    else:
        models = [build(member, ranks, base) for member in range(MEMBERS)]
        array = fusion.fuse(pad_lora(models) if len(set(ranks)) > 1 else models)
        del models
        optimiser = fusion.AdamW([p for p in array.parameters() if p.requires_grad], lr=RATES)
        if args.side == "array":
            times, own = train_plainly(array, optimiser, batches)
        else:
            times, own = train_compiled(array, optimiser, batches)
        seconds, losses = statistics.median(times[3:]), torch.stack(own)
    return {
        "step_s": seconds,
        "start_mb": start,
        "peak_mb": peak_mb(),
        "first": losses[0].tolist(),
        "last": losses[-1].tolist(),
    }


def build_base(args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(0)
    heads = args.hidden // 32
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=args.hidden,
            intermediate_size=4 * args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


def build(member: int, ranks: list[int], base: LlamaForCausalLM) -> Any:
    """Return an adapter over *base*; all share its parameters."""
    torch.manual_seed(1 + member)
    config = LoraConfig(
        r=ranks[member % len(ranks)],
        lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(copy.deepcopy(base, {id(p): p for p in base.parameters()}), config)


def draw_batch(step: int) -> Tensor:
    """Return sentences of a small vocabulary, so that the loss falls."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY // 20, (BATCH, LENGTH), generator=generator)


def token_loss(out: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train_plainly(model: Any, optimiser: Any, batches: list[Tensor]) -> tuple[list[float], list[Tensor]]:
    times, losses = [], []
    for ids in batches:
        start = time.perf_counter()
        optimiser.zero_grad()
        out = model(input_ids=ids)
        loss = (
            model.loss(token_loss, out, ids) if isinstance(model, fusion.FusedArray) else token_loss(out, ids)
        )
        loss.sum().backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.detach())
    return times, losses


def train_compiled(array: Any, optimiser: Any, batches: list[Tensor]) -> tuple[list[float], list[Tensor]]:
    step = fusion.train_step(array, token_loss, optimiser)
    times, losses = [], []
    for ids in batches:
        start = time.perf_counter()
        losses.append(step(ids, ids).detach().clone())
        times.append(time.perf_counter() - start)
    return times, losses


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
