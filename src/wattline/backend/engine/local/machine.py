"""The GPUs, real or simulated, the cores and the memory of this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattline.backend.engine.job_spec import AttemptSettings
from wattline.cluster import join_nodes, nodes
from wattline.core.nodes import Nodes
from wattline.errors import ConfigError, MeterError
from wattline.measurement.devices import DEVICES
from wattline.meter import Gpu, Meter, open_meter
from wattline.meter.gpu_facts import read_gpu_facts
from wattline.meter.gpu_names import name_gpu_kind

_logger = logging.getLogger(__name__)
_RESERVED_GIB = 1.0  # host memory that no job gets


@dataclass(frozen=True, eq=False)
class Machine:
    """This machine as one node per kind of GPU; *places* are the GPU indices of each node."""

    text: str
    meter: Meter
    nodes: Nodes
    places: tuple[tuple[int, ...], ...]
    cores: tuple[int, ...]
    simulated: str = ""  # how jobs open the simulated meter; empty: the GPUs are real

    @classmethod
    def open(cls, text: str, root: Path) -> Machine:
        """Open the GPUs that NVML finds ("auto"), or simulated ones ("simulated:4xa100")."""
        simulated = ""
        if text.startswith("simulated:"):
            if "state=" not in text:
                text = f"{text},state={root / 'gpus'}"
            simulated = text
            meter = open_meter(text)
        elif text in ("auto", "nvml"):
            meter = _open_nvml()
        else:
            raise ConfigError(f"gpus is {text!r}, expected auto, or for example simulated:4xa100")
        kinds: dict[str, list[int]] = {}
        for index, gpu in enumerate(meter.gpus):
            kinds.setdefault(name_gpu_kind(gpu), []).append(index)
        cores = tuple(sorted(os.sched_getaffinity(0)))
        host_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        mem_gib = max(host_gib - _RESERVED_GIB, 0.5)
        parts = []
        for kind, places in kinds.items():
            share = len(places) / len(meter.gpus)
            idle_w, busy_w = _read_watts(meter.gpus[places[0]])
            parts.append(
                nodes(
                    kind,
                    idle_w=idle_w,
                    busy_w=busy_w,
                    gpus=len(places),
                    cpus=len(cores) * share,
                    mem_gib=mem_gib * share,
                    base_w=0.0,  # the host is not metered
                    name=os.uname().nodename,
                )
            )
        return cls(text, meter, join_nodes(*parts), tuple(map(tuple, kinds.values())), cores, simulated)

    def gpus_of(self, node: int) -> tuple[int, ...]:
        """Return the GPU indices of a node."""
        return self.places[node]

    def share(self, node: int, gpus: Sequence[int], settings: AttemptSettings) -> tuple[tuple[int, ...], int]:
        """Return the cores and the bytes of memory for a job on *gpus*.

        Its cores are beside the place of its first GPU, so that neighbours share few caches; where there are
        fewer cores than GPUs, several jobs share a core.
        """
        share = self.nodes.host_share[:, node]
        mcpus, mem_mib = settings.mcpus or int(share[0]), settings.mem_mib or int(share[1])
        count = min(max(round(mcpus * len(gpus) / 1000), 1), len(self.cores))
        first = gpus[0] * len(self.cores) // max(len(self.meter.gpus), 1)
        chosen = sorted(self.cores[(first + n) % len(self.cores)] for n in range(count))
        return tuple(chosen), mem_mib * len(gpus) * 2**20

    def meter_text(self, gpus: Sequence[int], rank: int | None, model: str = "", batch: int = 0) -> str:
        """Return how a job opens the meter of its simulated GPUs; empty: they are real."""
        if not self.simulated:
            return ""
        words = [self.simulated, f"gpus={'/'.join(map(str, gpus))}"]
        if rank is not None:
            words.append(f"gpu={gpus[rank % len(gpus)]}")
        if model and "model=" not in self.simulated:
            words.append(f"model={model}")
            if batch:
                words.append(f"batch={batch}")
        return ",".join(words)


def _open_nvml() -> Meter:
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


def _read_watts(gpu: Gpu) -> tuple[float | None, float | None]:
    """Return idle and busy watts of an unlisted GPU, by its driver; None: it is listed with them."""
    if gpu.kind in DEVICES:
        return None, None
    facts = read_gpu_facts(gpu)
    _logger.warning(
        "%s is not in the library (wattline library list): %s, by its driver; "
        "its speed and draw under jobs are not known and are learnt from them",
        gpu.name,
        facts,
    )
    return facts.idle_w, facts.busy_w
