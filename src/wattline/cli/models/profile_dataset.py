"""Data set and storage of a profiled job, from which its memory axis is derived."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

from wattline.cli.output import notify
from wattline.errors import ConfigError
from wattline.measurement.storage import storage

_FEWEST_FILES = 100  # a data set of fewer files is not taken to have one sample in each


@dataclass(frozen=True)
class DatasetSize:
    """Data set of a job: its size, the size of a sample, and the bandwidth of its storage."""

    dataset_gib: float
    sample_kib: float
    storage_mib_s: float


def read_dataset(args: argparse.Namespace) -> DatasetSize | None:
    """Return the data set that *args* describe; None if they describe none."""
    dataset_gib, sample_kib = args.dataset, args.sample and args.sample * 2**20
    if args.data is not None:
        sizes = _list_file_sizes(Path(args.data))
        dataset_gib = dataset_gib or sum(sizes) / 2**30
        if sample_kib is None and len(sizes) < _FEWEST_FILES:
            raise ConfigError(
                f"{args.data} has only {len(sizes)} files, too few to be one sample each", "add --sample 110K"
            )
        sample_kib = sample_kib or sum(sizes) / 1024 / len(sizes)
    if dataset_gib is None and sample_kib is None:
        notify("measuring cores only: for the memory axis add --data DIR, or --dataset and --sample")
        return None
    if dataset_gib is None or sample_kib is None:
        missing = "--sample" if sample_kib is None else "--dataset"
        raise ConfigError(f"{missing} is missing: memory needs both the size of the data set and of a sample")
    if min(dataset_gib, sample_kib) <= 0:
        raise ConfigError("the sizes of the data set and of a sample must be above 0")
    _warn_larger_than_memory(dataset_gib)
    return DatasetSize(dataset_gib, sample_kib, _find_bandwidth(args))


def _find_bandwidth(args: argparse.Namespace) -> float:
    """Return the MiB/s of `--storage`, else those measured for the data set now or earlier."""
    if args.storage is not None:
        if not args.storage > 0:
            raise ConfigError("--storage is 0, expected a bandwidth such as 500MB/s")
        return float(args.storage)
    data = Path(args.data or ".")
    folder = data if data.is_dir() else data.parent
    measured = storage(folder, time.perf_counter, again=args.measure_storage)
    how = "remembered (--measure-storage measures it again)" if measured.remembered else "measured"
    notify(f"storage: {measured.mib_s:.4g} MiB/s of {measured.device}, {how}")
    return measured.mib_s


def _list_file_sizes(data: Path) -> list[int]:
    """Return the bytes of all files under *data*."""
    if not data.exists():
        raise ConfigError(f"{data}: no such file or folder")
    files = [data] if data.is_file() else (Path(at, name) for at, _, names in os.walk(data) for name in names)
    sizes = [file.stat().st_size for file in files if file.is_file()]
    if not sum(sizes):
        raise ConfigError(f"{data}: contains no data")
    return sizes


def _warn_larger_than_memory(dataset_gib: float) -> None:
    try:
        memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, OSError, ValueError):
        return
    if dataset_gib > memory_gib:
        notify(
            f"warning: the data set of {dataset_gib:.4g} GiB is larger than the memory of this machine,"
            f" {memory_gib:.4g} GiB, so no point is measured with enough memory"
        )
