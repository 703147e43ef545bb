"""What this machine has: GPUs, real or simulated, cores and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wattline.backend.engine.job_spec import Given
from wattline.cluster import join_nodes, nodes
from wattline.core.nodes import Nodes
from wattline.errors import ConfigError, MeterError, WattlineError
from wattline.meter import Meter, open_meter

_UNKNOWN = "v100"  # whose watts stand for GPUs that no table knows
_KEEP_GIB = 1.0  # of the host's memory, for everybody else


@dataclass(frozen=True, eq=False)
class Machine:
    """One node for each kind of GPU; *places* are the numbers of its GPUs."""

    text: str
    meter: Meter
    nodes: Nodes
    places: tuple[tuple[int, ...], ...]
    cores: tuple[int, ...]
    simulated: str = ""  # how jobs open the meter, if it is simulated

    @classmethod
    def open(cls, text: str, root: Path) -> Machine:
        """`auto` is what NVML finds; `simulated:4xa100` are GPUs that are not there."""
        simulated = ""
        if text.startswith("simulated:"):
            if "state=" not in text:
                text = f"{text},state={root / 'gpus'}"
            simulated = text
            meter = open_meter(text)
        elif text in ("auto", "nvml"):
            meter = _real()
        else:
            raise ConfigError(f"gpus are {text!r}, expected auto, or simulated:4xa100")
        kinds: dict[str, list[int]] = {}
        for number, gpu in enumerate(meter.gpus):
            kinds.setdefault(gpu.kind or gpu.name, []).append(number)
        cores = tuple(sorted(os.sched_getaffinity(0)))
        mem_gib = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 - _KEEP_GIB, 0.5)
        parts = []
        for kind, places in kinds.items():
            share = len(places) / len(meter.gpus)
            parts.append(
                nodes(
                    _named(kind),
                    gpus=len(places),
                    cpus=len(cores) * share,
                    mem_gib=mem_gib * share,
                    base_w=0.0,  # the host is not metered
                    name=os.uname().nodename,
                )
            )
        return cls(text, meter, join_nodes(*parts), tuple(map(tuple, kinds.values())), cores, simulated)

    def gpus_of(self, node: int) -> tuple[int, ...]:
        """The numbers of a node's GPUs."""
        return self.places[node]

    def kind_of(self, node: int) -> str:
        """What they are."""
        return self.nodes.kind.word(node)

    def share(self, node: int, given: Given) -> tuple[tuple[int, ...], int]:
        """The cores that a job may use, and its bytes of memory.

        Cores beside its GPUs' places, so that neighbours do not share caches more than they must; where
        there are fewer cores than GPUs several jobs share one.
        """
        share = self.nodes.share[:, node]
        mcpus, mem_mib = given.mcpus or int(share[0]), given.mem_mib or int(share[1])
        count = min(max(round(mcpus * len(given.gpus) / 1000), 1), len(self.cores))
        first = given.gpus[0] * len(self.cores) // max(len(self.meter.gpus), 1)
        chosen = sorted(self.cores[(first + n) % len(self.cores)] for n in range(count))
        return tuple(chosen), mem_mib * len(given.gpus) * 2**20

    def meter_text(self, given: Given, rank: int | None, model: str = "", batch: int = 0) -> str:
        """How a job opens the meter of its GPUs; empty: as any program does."""
        if not self.simulated:
            return ""
        words = [self.simulated, f"gpus={'/'.join(map(str, given.gpus))}"]
        if rank is not None:
            words.append(f"gpu={given.gpus[rank % len(given.gpus)]}")
        if model and "model=" not in self.simulated:
            words.append(f"model={model}")
            if batch:
                words.append(f"batch={batch}")
        return ",".join(words)


def _real() -> Meter:
    try:
        meter = open_meter("nvml")
        if meter.gpus:
            return meter
        meter.close()
        problem = "it has no GPUs"
    except MeterError as error:
        problem = error.message
    raise ConfigError(
        f"no GPU can be used on this machine: {problem}", "try --gpus simulated:4xa100, which needs none"
    )


def _named(kind: str) -> str:
    """A kind whose watts are known."""
    try:
        nodes(kind)
    except WattlineError:
        return _UNKNOWN
    return kind
