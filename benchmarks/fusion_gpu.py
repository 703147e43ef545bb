"""HFTA's tables on this machine's GPU: PointNet (classification, segmentation) and DCGAN.

    python benchmarks/fusion_gpu.py [--seconds 10] [--amp]

Samples per second, summed over jobs, against one job that has the GPU to itself, for more and more jobs until
memory is full: as concurrent processes (under MPS if its daemon runs), and as one array. Needs a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion

WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32)


class Transform(nn.Module):
    """PointNet's T-Net: a matrix for each cloud."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        wide = (64, 128, 1024)
        self.convs = nn.ModuleList(nn.Conv1d(a, b, 1) for a, b in zip((size, *wide), wide, strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in wide)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.out = nn.Linear(256, size * size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, size, points] → [N, size, size]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        found = self.out(self.head(torch.max(x, 2)[0]))
        eye = torch.eye(self.size, device=x.device, dtype=found.dtype).flatten()
        return (found + eye).reshape(-1, self.size, self.size)


class Features(nn.Module):
    """PointNet's features of each point, and of the whole cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.stn, self.fstn = Transform(3), Transform(64)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(3, 64, 1),
            nn.Conv1d(64, 128, 1),
            nn.Conv1d(128, 1024, 1),
        )
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(1024)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, points] → [N, 1024], [N, 64, points]."""
        x = torch.bmm(x.transpose(2, 1), self.stn(x)).transpose(2, 1)
        x = F.relu(self.norm1(self.conv1(x)))
        points = torch.bmm(x.transpose(2, 1), self.fstn(x)).transpose(2, 1)
        x = F.relu(self.norm2(self.conv2(points)))
        return torch.max(self.norm3(self.conv3(x)), 2)[0], points


class Classifier(nn.Module):
    """PointNet for whole clouds."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        self.head = nn.Sequential(
            nn.Linear(1024, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.Dropout(0.3),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, 16),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, points] → [N, 16]."""
        return self.head(self.features(x)[0])  # type: ignore[no-any-return]


class Segmenter(nn.Module):
    """PointNet for each point."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        self.head = nn.Sequential(
            *(
                layer
                for a, b in ((1088, 512), (512, 256), (256, 128))
                for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
            ),
            nn.Conv1d(128, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, points] → [N, 4, points]."""
        whole, points = self.features(x)
        return self.head(torch.cat([whole.unsqueeze(2).expand(-1, -1, x.shape[2]), points], 1))  # type: ignore[no-any-return]


def build_generator() -> nn.Module:
    """Build DCGAN's generator of 64×64 pictures."""
    layers: list[nn.Module] = []
    for a, b, stride, pad in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        layers += [nn.ConvTranspose2d(a, b, 4, stride, pad, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def build_discriminator() -> nn.Module:
    """Build DCGAN's discriminator of 64×64 pictures."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for a, b in ((64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def make_supervised(
    build: Callable[[], nn.Module], target: tuple[int, ...], classes: int, batch: int
) -> Callable[..., object]:
    def make(width: int, amp: bool) -> tuple[Callable[[], object], int]:
        array = fusion.fuse([build().cuda() for _ in range(width)])
        step = fusion.train_step(
            array, F.cross_entropy, fusion.Adam(array), amp=torch.bfloat16 if amp else None
        )
        x = torch.randn(batch, 3, 2500, device="cuda")
        y = torch.randint(0, classes, (batch, *target), device="cuda")
        return lambda: step(x, y), batch * width

    return make


def make_gan(width: int, amp: bool) -> tuple[Callable[[], object], int]:
    g = fusion.fuse([build_generator().cuda() for _ in range(width)])
    d = fusion.fuse([build_discriminator().cuda() for _ in range(width)])
    opt_g, opt_d = (fusion.Adam(a, lr=2e-4, betas=(0.5, 0.999)) for a in (g, d))
    real = torch.randn(64, 3, 64, 64, device="cuda")
    ones, zeros = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    judge = F.binary_cross_entropy_with_logits

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            fake = g(torch.randn(64, 100, 1, 1, device="cuda"))
            on_d = d.loss(judge, d(real), ones) + d.loss(judge, d(fake.detach(), members=True), zeros)
        opt_d.zero_grad()
        on_d.sum().backward()
        opt_d.step()
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            on_g = g.loss(judge, d(fake, members=True), ones)
        opt_g.zero_grad()
        on_g.sum().backward()
        opt_g.step()

    return run, 64 * width


WORKLOADS = {
    "PointNet classification": make_supervised(Classifier, (), 16, 32),
    "PointNet segmentation": make_supervised(Segmenter, (2500,), 4, 32),
    "DCGAN": make_gan,
}


def measure_rate(name: str, width: int, amp: bool, seconds: float) -> float:
    """Return the samples per second of an array."""
    run, samples = WORKLOADS[name](width, amp)  # type: ignore[misc]
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    start_s, count = time.perf_counter(), 0
    while time.perf_counter() - start_s < seconds:
        run()
        torch.cuda.synchronize()
        count += 1
    return count * samples / (time.perf_counter() - start_s)


def measure_processes(name: str, count: int, amp: bool, seconds: float) -> float:
    """Return the samples per second of *count* processes that share the GPU; nan where one failed."""
    command = [
        sys.executable,
        __file__,
        "--one",
        name,
        "--seconds",
        str(seconds),
        *(["--amp"] if amp else []),
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    results = [(process.communicate()[0], process.returncode) for process in running]
    return float("nan") if any(code for _, code in results) else sum(float(text) for text, _ in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--amp", action="store_true", help="bfloat16")
    parser.add_argument("--one", choices=WORKLOADS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "fusion_gpu.py: PyTorch finds no CUDA GPU, which these tables need; for the CPU run fusion.py"
        )
    if args.one:
        print(measure_rate(args.one, 1, args.amp, args.seconds))
        return
    print(f"{torch.cuda.get_device_name()}, {'bfloat16' if args.amp else 'float32'}")
    for name in WORKLOADS:
        alone = measure_rate(name, 1, args.amp, args.seconds)
        print(f"\n{name}: {alone:.1f} samples/s alone\n  jobs  processes  array   GiB")
        for width in WIDTHS:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                fused = measure_rate(name, width, args.amp, args.seconds)
            except torch.cuda.OutOfMemoryError:
                print(f"  {width:4d}  the array does not fit")
                break
            beside = measure_processes(name, width, args.amp, args.seconds)
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(f"  {width:4d}  {beside / alone:9.2f}  {fused / alone:5.2f}  {peak:5.1f}")


if __name__ == "__main__":
    main()
