"""The nodes of a Slurm partition, with their GPUs, cores and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from wattline.backend.engine.slurm.commands import SlurmRefused, parse_records, run_command
from wattline.cluster import join_nodes, nodes
from wattline.core.nodes import Nodes
from wattline.errors import ConfigError
from wattline.measurement.devices import device
from wattline.measurement.gpu_names import find_gpu_kind

_MIN_MEM_MIB = 512
_MAX_INDEX = 1024  # of a GPU of one node


@dataclass(frozen=True, eq=False)
class NodeList:
    """The nodes with GPUs of a partition; row *n* of *nodes* has the name and address *n*."""

    partition: str
    nodes: Nodes
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    max_time_s: float | None  # of a job in the partition; None: unlimited
    version: str

    def row(self, name: str) -> int:
        """Return the row of a node; -1: it is not in the partition."""
        return self.names.index(name) if name in self.names else -1


def read_nodes(partition: str, gpu_kind: str = "") -> NodeList:
    """Ask Slurm for the nodes of a partition; *gpu_kind* is that of GPUs with an unknown type."""
    try:
        records = parse_records(run_command(["scontrol", "show", "partition", partition, "--oneliner"]))
    except SlurmRefused as error:
        known = run_command(["sinfo", "-h", "-a", "-o", "%R"]).split()
        raise ConfigError(
            f"partition {partition!r}: {error.message}", f"partitions are {', '.join(sorted(set(known)))}"
        ) from None
    if not records:
        raise ConfigError(f"partition {partition!r} does not exist")
    names = run_command(["sinfo", "-h", "-N", "-p", partition, "-o", "%N"]).split()
    wanted = dict.fromkeys(names)
    every = parse_records(run_command(["scontrol", "show", "nodes", "--oneliner"]))
    found = {record["NodeName"]: record for record in every if record.get("NodeName") in wanted}
    rows = [found[name] for name in wanted if name in found and count_gpus(found[name].get("Gres", "")) > 0]
    if not rows:
        raise ConfigError(
            f"partition {partition!r} has no node with GPUs", "its nodes need Gres=gpu:… in slurm.conf"
        )
    return NodeList(
        partition,
        join_nodes(*(_build_node(record, gpu_kind) for record in rows)),
        tuple(record["NodeName"] for record in rows),
        tuple(record.get("NodeAddr", record["NodeName"]) for record in rows),
        parse_time_limit(records[0].get("MaxTime", "UNLIMITED")),
        next((record["Version"] for record in rows if "Version" in record), ""),
    )


def _build_node(record: Mapping[str, str], gpu_kind: str) -> Nodes:
    gres, name = record["Gres"], record["NodeName"]
    kind = _find_kind(gres, gpu_kind, name)
    memory_mib = int(record.get("RealMemory", "0")) - int(record.get("MemSpecLimit", "0"))
    node = nodes(
        kind,
        gpus=count_gpus(gres),
        cpus=float(record.get("CPUEfctv") or record.get("CPUTot") or 1),
        mem_gib=max(memory_mib, _MIN_MEM_MIB) / 1024,
    )
    column = np.empty(1, dtype=np.object_)
    column[0] = name
    return replace(node, name=column)


def _find_kind(gres: str, gpu_kind: str, name: str) -> str:
    kind = (re.search(r"gpu:([A-Za-z][\w.-]*)", gres) or ["", ""])[1]
    known = find_gpu_kind(kind)
    if known:
        return known
    if not gpu_kind:
        raise ConfigError(
            f"node {name} has GPUs of the type {kind or '(none)'!r}, which is not in the library",
            "give --gpu-kind KIND; wattline library list shows the kinds",
        )
    return device(gpu_kind).name


def count_gpus(gres: str) -> int:
    """Return the number of GPUs in a text such as gpu:a100:8(S:0-1),shard:32."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[A-Za-z][^:,(]*)?:(\d+)", gres))


def parse_time_limit(text: str) -> float | None:
    """Return a limit of Slurm, such as 2-12:00:00 or 30, in seconds; None: unlimited."""
    if text.upper() in ("UNLIMITED", "INFINITE", "NONE", "(NULL)", ""):
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(word) for word in clock.split(":")]
    if len(parts) == 1:
        parts = [parts[0], 0, 0] if dash else [0, parts[0], 0]
    elif len(parts) == 2:
        parts = [*parts, 0] if dash else [0, *parts]
    hours, minutes, seconds = parts
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_indices(text: str) -> tuple[int, ...]:
    """Return the indices of a text such as 0-2,5; empty: it is not a list of indices."""
    if not re.fullmatch(r"\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?){0,1000}", text):
        return ()
    pairs = [word.partition("-") for word in text.split(",")]
    ranges = [range(int(low), int(high or low) + 1) for low, _, high in pairs]
    return tuple(n for one in ranges for n in one) if all(one.stop <= _MAX_INDEX for one in ranges) else ()


def host_share(node_list: NodeList, node: int, gpus: int, mcpus: int, mem_mib: int) -> tuple[int, int]:
    """Return cores and MiB of memory on a node for *gpus* GPUs; 0: the proportional share."""
    share = node_list.nodes.host_share[:, node]
    cores = int((mcpus or int(share[0])) * gpus // 1000)
    return max(cores, 1), int(max((mem_mib or int(share[1])) * gpus, 1))
