"""Readers of published measurements under $WATTLINE_DATA, as profile tables.

Files are found by pattern and GPU kinds are read from their names or columns, so that the same code reads
any kind of GPU.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wattline import Profile

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data"))

# Examples in the public training set of each data set that Zeus trained on; only the unit of samples
# depends on them. How Zeus' own loaders cut them is not published with the data.
ZEUS = {
    "cifar100": ("shufflenetv2", 50_000),
    "imagenet": ("resnet50", 1_281_167),
    "squad": ("bert-squad", 87_599),
    "librispeech": ("deepspeech2", 281_241),
    "movielens-1m": ("neumf", 1_000_209),
    "sentiment140": ("bert-sentiment", 1_600_000),
}
NODE_GPUS = 8  # of ElasticFlow's testbed


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return csv.DictReader(text.decode().splitlines())


def build_profile(model: str, gpu: str, points: list[dict[str, float]]) -> Profile:
    return Profile.of(model=model, gpu=gpu, **{k: np.array([p[k] for p in points]) for k in points[0]})


def read_zeus_curves(data: Path = DATA) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (GPU, name, columns cap W, epoch s, W) of every curve against the power limit."""
    for path in sorted(data.glob("zeus/summary_power_*.csv")):
        curves = defaultdict(list)
        for row in read_rows(path):
            name = "-".join((row["dataset"], row["network"], row["optimizer"], row["batch_size"]))
            curves[name].append([float(row[k]) for k in ("power_limit", "time_per_epoch", "average_power")])
        for name, points in sorted(curves.items()):
            yield path.stem.removeprefix("summary_power_"), name, np.array(sorted(points))


def read_zeus(data: Path = DATA) -> Iterator[Profile]:
    """Yield batch size × power limit of six trainings; of two optimisers the one that reached the target."""
    trained = {(r["dataset"], r["optimizer"]) for r in read_rows(data / "zeus/summary_train.csv")}
    for path in sorted(data.glob("zeus/summary_power_*.csv")):
        found = defaultdict(list)
        for row in read_rows(path):
            if (row["dataset"], row["optimizer"]) in trained:
                examples = ZEUS.get(row["dataset"], ("", 1))[1]
                found[row["dataset"]].append(
                    {
                        "batch": float(row["batch_size"]),
                        "cap_w": float(row["power_limit"]),
                        "samples_s": examples / float(row["time_per_epoch"]),
                        "watts": float(row["average_power"]),
                    }
                )
        for dataset, points in sorted(found.items()):
            yield build_profile(
                ZEUS.get(dataset, (dataset, 1))[0], path.stem.removeprefix("summary_power_"), points
            )


def read_elasticflow(data: Path = DATA) -> Iterator[Profile]:
    """Yield global batch × number of GPUs of the ElasticFlow models."""
    for folder in sorted(data.glob("elasticflow/throughputs_*")):
        for path in sorted(folder.glob("*.csv")):
            points = []
            for row in read_rows(path):
                batch = float(row.pop("global_batch_size"))
                points += [
                    {
                        "gpus": float(gpus),
                        "nodes": np.ceil(float(gpus) / NODE_GPUS),
                        "batch": batch,
                        "samples_s": batch * float(speed),
                    }
                    for gpus, speed in row.items()
                    if speed and float(speed) > 0
                ]
            yield build_profile(path.stem, folder.name.removeprefix("throughputs_").lower(), points)


def read_perseus_stages(data: Path = DATA) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (GPU, name, columns clock MHz, s, J) of every pipeline stage against the SM clock."""
    curves = defaultdict(list)
    for path in sorted(data.glob("perseus/stage_profile_freq*.csv*")):
        for row in read_rows(path):
            name = "-".join((row["model"], row["stage"], row["instruction"]))
            point = [float(row[k]) for k in ("frequency_mhz", "time_s", "energy_J")]
            curves[row["gpu"], name].append(point)
    for (gpu, name), points in sorted(curves.items()):
        yield gpu, name, np.array(sorted(points))


def read_perseus(data: Path = DATA) -> Iterator[Profile]:
    """Yield the mean stage of a large model against the clock, and caps on four PCIe GPUs."""
    sums: dict[tuple[str, str], dict[float, np.ndarray]] = defaultdict(
        lambda: defaultdict(lambda: np.zeros(2))
    )
    stages: dict[tuple[str, str], set[str]] = defaultdict(set)
    for gpu, name, points in read_perseus_stages(data):
        model, stage, _ = name.rsplit("-", 2)
        stages[gpu, model].add(stage)
        for clock, seconds, joules in points.tolist():
            sums[gpu, model][clock] += seconds, joules
    for (gpu, model), clocks in sorted(sums.items()):
        count = len(stages[gpu, model])
        points = [
            {"batch": 1.0, "clock_mhz": clock, "samples_s": count / seconds, "watts": joules / seconds}
            for clock, (seconds, joules) in sorted(clocks.items())
        ]
        yield build_profile(f"{model}-stage", gpu.removesuffix("_sxm"), points)
    for path in sorted(data.glob("perseus/*_zeus_global.csv")):
        found = defaultdict(list)
        for row in read_rows(path):
            found[row["model_name"]].append(
                {
                    "gpus": 4.0,
                    "batch": float(row["batch_size"]),
                    "cap_w": float(row["power_limit_0"]),
                    "samples_s": float(row["batch_size"]) / float(row["time"]),
                    "watts": float(row["energy"]) / float(row["time"]),
                }
            )
        for model, points in sorted(found.items()):
            yield build_profile(f"{model}-pipeline", f"{path.name.partition('_')[0].lower()}-pcie", points)


def read_synergy_matrices(data: Path = DATA) -> Iterator[tuple[str, dict[tuple[float, float], float], float]]:
    """Yield (model, {(cores, GB): samples/s}, batch) of one GPU, at three cores per GPU of the server."""
    batch, step_s = {}, {}
    for row in read_rows(data / "synergy/model_profiles.csv"):
        if (row["cpu_gpu_ratio"], row["gpus_profiled"], row["used_by_simulator"]) == ("3", "1", "1"):
            batch[row["model"]] = float(row["batch_per_gpu"])
            step_s[row["model"]] = float(row["iter_time_s_at_proportional"])
    matrices: dict[str, dict[tuple[float, float], float]] = defaultdict(dict)
    for row in read_rows(data / "synergy/sensitivity_matrices.csv"):
        model = row["model"]
        if (row["cpu_gpu_ratio"], row["gpus_profiled"]) == ("3", "1") and model in batch:
            cell = float(row["cpus_per_gpu"]), float(row["mem_gb_per_gpu"])
            matrices[model][cell] = float(row["norm_throughput"]) * batch[model] / step_s[model]
    for model, matrix in sorted(matrices.items()):
        yield model, matrix, batch[model]


def read_synergy(data: Path = DATA) -> Iterator[Profile]:
    """Yield cores × memory of one V100, with an eighth of the 500 MB/s of its server's storage."""
    read_mib_s = 500e6 / 8 / 2**20
    for model, matrix, batch in read_synergy_matrices(data):
        points = [
            {"batch": batch, "cpus": cores, "mem_gib": gb, "read_mib_s": read_mib_s, "samples_s": speed}
            for (cores, gb), speed in sorted(matrix.items())
        ]
        name = model.replace("res", "resnet") if re.fullmatch(r"res\d+", model) else model
        yield build_profile(name, "v100", points)


def read_gavel(data: Path = DATA) -> Iterator[Profile]:
    """Yield batch per GPU × number of GPUs, on one node or one node each; steps of all GPUs count."""
    found = defaultdict(list)
    for row in read_rows(data / "gavel/isolated_throughputs.csv"):
        if row["table"] != "physical_cluster" or float(row["steps_per_s"]) <= 0:
            continue
        family, _, rest = row["job_type"].partition(" (batch size ")
        batch, gpus = float(rest.rstrip(")") or 1), float(row["gpus"])
        if gpus > 1 or row["consolidated"] == "1":
            found[family, row["gpu"]].append(
                {
                    "gpus": gpus,
                    "nodes": 1.0 if row["consolidated"] == "1" else gpus,
                    "batch": batch * gpus,
                    "samples_s": float(row["steps_per_s"]) * batch,
                }
            )
    for (family, gpu), points in sorted(found.items()):
        yield build_profile(family, gpu, points)


def read_pollux(data: Path = DATA) -> Iterator[Profile]:
    """Yield batch per GPU × GPUs and nodes of four T4s; equal placements are averaged."""
    for path in sorted(data.glob("pollux/traces/*/placements.csv")):
        steps = defaultdict(list)
        for row in read_rows(path):
            place = float(sum(map(int, row["placement"]))), float(len(row["placement"]))
            steps[*place, float(row["local_bsz"])].append(float(row["step_time"]))
        for row in read_rows(path.with_name("scalability.csv")):
            place = float(row["num_replicas"]), float(row["num_nodes"])
            steps[*place, float(row["local_bsz"])].append(float(row["step_time"]))
        points = [
            {
                "gpus": gpus,
                "nodes": nodes,
                "batch": local * gpus,
                "samples_s": local * gpus / float(np.mean(seconds)),
                "n": float(len(seconds)),
            }
            for (gpus, nodes, local), seconds in sorted(steps.items())
        ]
        yield build_profile(path.parent.name, "t4", points)
