"""Second start of the same training: what the compile cache saves.

python benchmarks/fusion_restart.py [--models mlp cnn transformer] [--width 8]

Each model is trained in two fresh processes with one cache folder, which is empty at first. Printed are the
versions that were compiled (misses) or loaded (hits), the seconds of compiling or loading, and the first
compiled step against the first uncompiled step of the same process and against the median of later
uncompiled steps. Imports are made before and not counted. A loaded step is not compared with an uncompiled
one at its first call, only from the second on; a compiled one is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion

STEPS = 8


class Transformer(nn.Module):
    """Two encoder layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.layers(self.embed(x)).mean(1))  # type: ignore[no-any-return]


def build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def build_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (build_mlp, (32, 20)),
    "cnn": (build_cnn, (32, 3, 32, 32)),
    "transformer": (Transformer, (32, 16, 16)),
}


def train(name: str, width: int) -> None:
    """Train one model in this process and print the times as JSON."""
    import torch._inductor.async_compile
    import torch._inductor.codecache
    import torch._inductor.compile_fx
    import torch._inductor.standalone_compile

    torch.manual_seed(0)
    build, shape = MODELS[name]
    x, y = torch.randn(shape), torch.randint(0, 10, (shape[0],))
    array = fusion.fuse([build() for _ in range(width)])
    if name == "cnn":
        array.ways = fusion.Ways(last=True)
    optimiser = fusion.Adam(array, lr=1e-3)
    step = fusion.train_step(array, F.cross_entropy, optimiser)
    uncompiled: list[float] = []
    first_compiled_s = 0.0
    for _ in range(STEPS):
        start_s, before = time.perf_counter(), step.cache_hits + step.cache_misses
        step(x, y)
        seconds = time.perf_counter() - start_s
        if step.cache_hits + step.cache_misses > before:
            first_compiled_s = seconds
        elif not before:
            uncompiled.append(seconds)
    plain = fusion.train_step(array, F.cross_entropy, optimiser, compile=False)
    later = []
    for _ in range(STEPS):
        start_s = time.perf_counter()
        plain(x, y)
        later.append(time.perf_counter() - start_s)
    print(
        json.dumps(
            {
                "misses": step.cache_misses,
                "hits": step.cache_hits,
                "compile_s": step.compile_s,
                "first_compiled_s": first_compiled_s,
                "first_uncompiled_s": uncompiled[0],
                "later_uncompiled_s": statistics.median(later[2:]),
            }
        )
    )


def main() -> None:
    """Start two processes for each model and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, args.width)
        return
    print("model        start  misses  hits  compile s  first compiled ms  / first uncompiled  / later ones")
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            for start in (1, 2):
                inductor = os.path.join(folder, f"inductor{start}")
                environment = {
                    **os.environ,
                    "WATTLINE_CACHE_DIR": folder,
                    "TORCHINDUCTOR_CACHE_DIR": inductor,
                }
                command = [sys.executable, __file__, "--train", name, "--width", str(args.width)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                first_s = row["first_compiled_s"]
                print(
                    f"{name:12} {start:5} {row['misses']:7} {row['hits']:5} {row['compile_s']:10.3f} "
                    f"{first_s * 1e3:18.1f} {first_s / row['first_uncompiled_s']:20.2f} "
                    f"{first_s / row['later_uncompiled_s']:13.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
