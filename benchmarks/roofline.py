"""Least time of a training step of PointNet on this machine, and how far the measured steps are from it.

    python benchmarks/roofline.py [--width 8] [--threads 1 2] [--no-compile]

Measured: the peak of float32 matrix products (best of several shapes); the rate of the products of PointNet's
own shapes, for one member (mm) and for all at once (bmm); the memory bandwidth, which is the better of a copy
and a triad a = b + s*c over tensors of 256 MiB, bytes read plus bytes written.

Counted, for all members: 2*M*N*K FLOPs of every matrix product of the forward pass, of the gradients of the
weights, and of the gradients of the inputs except the first layer's. Batch norm, ReLU, maximum, loss and Adam
count no FLOPs.

Counted bytes are the least that must move to or from memory with a cache of the size of this machine's last
level. z is the output of a convolution, y what batch norm and ReLU make of it. Only z is stored (y can be
computed while it is read); batch norm needs its statistics first, and so does its gradient.
    forward    z written, then read once, counted if the z of one layer does not fit the cache
    backward   z read once, counted if the z of all layers together do not fit
               gradient of y written, then read once, counted if it does not fit; the last layer's is sparse
               (maximum over the points) and is not counted
    update     parameter and Adam's two averages read and written, counted if they do not fit together
A layer means the tensors of all members in a fused step, of one member in the serial loop, which visits its
parameters once a round: they are counted for all members in both.

The bound of a step is the larger of FLOPs / peak and bytes / bandwidth. The bound with PointNet's own shapes
takes the measured rate of each product instead of the peak. The estimate of the serial loop is the time of
its products, one after another, plus the passes of the eager operators between them, at the bandwidth of
tensors of that size. Passes are reads or writes of a tensor like z: 5 forward (batch norm 3, ReLU 2), 9
backward (ReLU 3, batch norm 5, bias 1), and 18 of Adam over each parameter. The time of Python is not in it.
"Largest ratio" is the measured serial loop over the bound.

Other algebra may have fewer FLOPs. Behind batch norm the gradient of the last convolution is a sparse tensor
plus a linear function of z, so its products follow from the Gram matrix of the input, with half the FLOPs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from fusion_speed import run_cell

BATCH, POINTS = 16, 256
CHANNELS = (3, 64, 128, 256)
FEATURES = (256, 128, 10)
FLOAT = 4  # bytes
PEAK_SHAPES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 256, 128), (256, 4096, 256))
FORWARD_PASSES, BACKWARD_PASSES, ADAM_PASSES = 5, 9, 18


@dataclass(frozen=True)
class Product:
    """A matrix product [rows, inner] x [inner, columns] of one member."""

    name: str
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


def list_products() -> list[Product]:
    """List the products of a step of one member: forward, gradients of weights, gradients of inputs."""
    products = []
    layers = [("conv", BATCH * POINTS, CHANNELS), ("fc", BATCH, FEATURES)]
    for kind, rows, sizes in layers:
        for number, (inner, columns) in enumerate(pairwise(sizes), 1):
            name = f"{kind}{number}"
            products.append(Product(f"{name} forward", rows, inner, columns))
            products.append(Product(f"{name} weight", inner, rows, columns))
            if name != "conv1":
                products.append(Product(f"{name} input", rows, columns, inner))
    return products


def count_parameters() -> int:
    """Count the parameters of one member."""
    convs = sum(a * b + 3 * b for a, b in pairwise(CHANNELS))  # bias, batch norm
    return convs + sum(a * b + b for a, b in pairwise(FEATURES))


def count_bytes(width: int, cache: int, at_once: int) -> int:
    """Count the least bytes of a step of *width* members of which *at_once* are in each operator."""
    layers = [BATCH * POINTS * channels * FLOAT for channels in CHANNELS[1:]]  # z of one member
    fits_all = sum(layers) * at_once <= cache
    moved = 0
    for number, size in enumerate(layers, 1):
        fits = size * at_once <= cache
        moved += 0 if fits else 2 * size  # forward: written and read
        moved += 0 if fits_all else size  # backward: read
        moved += 0 if fits or number == len(layers) else 2 * size  # gradient: written and read
        if fits and not fits_all:
            moved += size  # forward: written, for the backward pass
    state = 3 * count_parameters() * FLOAT
    return moved * width + (0 if state * width + sum(layers) * at_once <= cache else 2 * state * width)


def read_cache_bytes() -> int:
    """Return the size of the last-level cache, 32 MiB if unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]])
    return max(sizes, default=32 * 2**20)


def time_best(run: Callable[[], object], seconds: float = 0.15) -> float:
    """Return the seconds of the fastest of at least 20 calls, and of at least *seconds*."""
    best, end_s, calls = math.inf, time.perf_counter() + seconds, 0
    run()
    while calls < 20 or time.perf_counter() < end_s:
        calls += 1
        start_s = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start_s)
    return best


def measure_product(rows: int, inner: int, columns: int, members: int | None = None) -> float:
    """Return the seconds of a product, or of *members* of them in one bmm."""
    head = () if members is None else (members,)
    a, b = torch.randn(*head, rows, inner), torch.randn(*head, inner, columns)
    out = torch.empty(*head, rows, columns)
    multiply = torch.mm if members is None else torch.bmm
    return time_best(lambda: multiply(a, b, out=out))


def measure_bandwidth(size: int) -> float:
    """Return bytes a second of the better of copy and triad over tensors of *size* bytes."""
    a, b, c = (torch.ones(size // FLOAT) for _ in range(3))
    copy = 2 * size / time_best(lambda: a.copy_(b))
    return max(copy, 3 * size / time_best(lambda: torch.add(b, c, alpha=2.0, out=a)))


def measure_machine(threads: int, width: int) -> dict[str, float]:
    """Measure peak, bandwidths and the products of all members at *threads* threads."""
    torch.set_num_threads(threads)
    peak = max(2 * m * n * k / measure_product(m, n, k) for m, n, k in PEAK_SHAPES)
    products = list_products()
    alone = [measure_product(p.rows, p.inner, p.columns) for p in products]
    together = [measure_product(p.rows, p.inner, p.columns, width) for p in products]
    peak = max(peak, *(p.flops / s for p, s in zip(products, alone, strict=True)))
    passes = 0.0
    for channels in CHANNELS[1:]:
        size = BATCH * POINTS * channels * FLOAT
        passes += (FORWARD_PASSES + BACKWARD_PASSES) * size / measure_bandwidth(size)
    state = count_parameters() * FLOAT
    return {
        "peak": peak,
        "bandwidth": measure_bandwidth(256 * 2**20),
        "products_alone_s": width * sum(alone),
        "products_together_s": sum(
            min(s, width * one) for s, one in zip(together, alone, strict=True)
        ),  # the faster way of each
        "passes_s": width * (passes + ADAM_PASSES * state / measure_bandwidth(state)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled step")
    parser.add_argument("--machine", action="store_true", help=argparse.SUPPRESS)  # for the subprocess
    args = parser.parse_args()
    if args.machine:
        print(json.dumps(measure_machine(args.threads[0], args.width)))
        return
    flops = args.width * sum(product.flops for product in list_products())
    cache = read_cache_bytes()
    fused, serial = (count_bytes(args.width, cache, at_once) for at_once in (args.width, 1))
    print(f"PointNet, width {args.width}, batch {BATCH}, {POINTS} points, cache {cache / 2**20:.0f} MiB")
    print(f"  products of a step {flops / 1e9:.2f} GFLOP")
    print(f"  least bytes: fused {fused / 1e6:.0f} MB, serial {serial / 1e6:.0f} MB", flush=True)
    ways = ["serial", "HFTA", "uncompiled"] + ([] if args.no_compile else ["compiled"])
    for threads in args.threads:
        machine = run_machine(threads, args.width)
        cell = run_cell("PointNet", args.width, threads, ways, rounds=args.rounds)
        print_bounds(threads, machine, flops, fused, serial, cell["median_ms"])
        for way, reason in cell["failed"].items():
            print(f"  {way} failed: {reason}", flush=True)


def run_machine(threads: int, width: int) -> dict[str, float]:
    """Measure the machine in a process of its own, so that its libraries start with *threads* threads."""
    command = [sys.executable, __file__, "--machine", "--threads", str(threads), "--width", str(width)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


def print_bounds(
    threads: int,
    machine: dict[str, float],
    flops: int,
    fused: int,
    serial: int,
    measured_ms: dict[str, float],
) -> None:
    peak, bandwidth = machine["peak"], machine["bandwidth"]
    compute_ms = 1e3 * flops / peak
    fused_ms, serial_ms = (1e3 * moved / bandwidth for moved in (fused, serial))
    bound_ms, own_ms = max(compute_ms, fused_ms), max(1e3 * machine["products_together_s"], fused_ms)
    estimate_ms = 1e3 * (machine["products_alone_s"] + machine["passes_s"])
    print(f"\nthreads {threads}: peak {peak / 1e9:.0f} GFLOP/s, bandwidth {bandwidth / 1e9:.1f} GB/s")
    rows = [
        ("bound, fused", bound_ms, f"products {compute_ms:.1f}, memory {fused_ms:.1f}"),
        ("bound, own shapes", own_ms, f"products {1e3 * machine['products_together_s']:.1f}"),
        (
            "bound, serial",
            max(compute_ms, serial_ms),
            f"products {compute_ms:.1f}, memory {serial_ms:.1f}",
        ),
        (
            "estimate, serial",
            estimate_ms,
            f"products {1e3 * machine['products_alone_s']:.1f}, passes {1e3 * machine['passes_s']:.1f}",
        ),
    ]
    for label, step_ms, text in rows:
        print(f"  {label:20s}{step_ms:9.1f} ms   {text}")
    base = measured_ms.get("serial")
    for way, step_ms in measured_ms.items():
        ratio = f"{base / step_ms:5.2f} x serial, " if base else ""
        print(f"  measured {way:11s}{step_ms:9.1f} ms   {ratio}{bound_ms / step_ms:.0%} of the bound's speed")
    if base:
        print(
            f"  largest ratio to serial: {base / bound_ms:.2f} at the peak, "
            f"{base / own_ms:.2f} at the rates of the own shapes",
            flush=True,
        )


if __name__ == "__main__":
    main()
