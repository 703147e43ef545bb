"""Power, limits and memory of GPUs and their nodes, by GPU kind.

*max_w*, caps, clocks and memory are the vendor's; *source* names the data sheet where it is not the product's
page. *idle_w*, *busy_w* and *base_w* (the rest of an 8-GPU server) are measured where *measured* names a
source, see `benchmarks/fit_devices.py`; else they are round guesses, and a GPU that trains is taken to draw
three quarters of its limit. No power or speed curve of the kinds with *source* was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wattline.errors import ConfigError, did_you_mean
from wattline.measurement.gpu_names import MIG_SLICES, find_mig_slice, resolve_gpu_kind


@dataclass(frozen=True)
class Device:
    """Watts of one GPU kind (idle, training, at its limit, and of the node around eight), caps and clocks."""

    name: str
    idle_w: float
    busy_w: float
    max_w: float
    base_w: float
    min_cap_w: float
    min_clock_mhz: float
    max_clock_mhz: float
    mem_gib: float  # of the smaller one, where a kind was sold with two sizes
    measured: str = ""  # source of the measured watts; "": assumed
    source: str = ""  # of limit and memory

    @property
    def max_cap_w(self) -> float:
        """The largest power cap that can be set."""
        return self.max_w


_ACME = "Acme, NSDI'24"
_MLPERF = "MLPerf Training 4.0, idle assumed"
_A10G = "NVIDIA data sheet of the A10; 300 W as set by AWS in G5 instances"
_RTX3090 = "NVIDIA's page of the GeForce RTX 3090"
_RTX4090 = "NVIDIA's page of the GeForce RTX 4090; smallest cap by nvidia-smi of a user"
_GH200 = "NVIDIA data sheet of the GH200; 900 of the module's 450 to 1000 W for the GPU"


def _sheet(product: str) -> str:
    return f"NVIDIA data sheet of the {product}"


DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        #      name      idle   busy   max    base   cap    clocks        memory
        # A K80 is one of the two chips of a board.
        Device("k80", 30.0, 112.5, 150.0, 300.0, 100.0, 324.0, 875.0, 12.0),
        Device("p100", 30.0, 187.5, 250.0, 350.0, 125.0, 544.0, 1328.0, 16.0),
        Device("v100", 40.0, 225.0, 300.0, 500.0, 100.0, 135.0, 1530.0, 16.0),
        Device("t4", 10.0, 52.5, 70.0, 250.0, 60.0, 300.0, 1590.0, 16.0),
        Device("rtx6000", 25.0, 195.0, 260.0, 350.0, 100.0, 300.0, 2100.0, 24.0),
        Device("a40", 30.0, 225.0, 300.0, 500.0, 100.0, 210.0, 1740.0, 48.0),
        Device("a100-pcie", 45.0, 225.0, 300.0, 600.0, 150.0, 210.0, 1410.0, 40.0),
        Device("a100", 59.0, 354.0, 400.0, 918.0, 100.0, 210.0, 1410.0, 40.0, _ACME),
        Device("h100", 70.0, 690.0, 700.0, 1632.0, 200.0, 210.0, 1980.0, 80.0, _MLPERF),
        # Limit and memory by NVIDIA; idle, base, clocks and most of the smallest caps are assumed.
        Device("a10g", 20.0, 225.0, 300.0, 400.0, 100.0, 210.0, 1710.0, 24.0, source=_A10G),
        Device("a30", 25.0, 123.75, 165.0, 500.0, 100.0, 210.0, 1440.0, 24.0, source=_sheet("A30")),
        Device("l4", 12.0, 54.0, 72.0, 250.0, 40.0, 210.0, 2040.0, 24.0, source=_sheet("L4")),
        Device("l40s", 35.0, 262.5, 350.0, 500.0, 100.0, 210.0, 2520.0, 48.0, source=_sheet("L40S")),
        Device("rtx3090", 25.0, 262.5, 350.0, 300.0, 100.0, 210.0, 2100.0, 24.0, source=_RTX3090),
        Device("rtx4090", 20.0, 337.5, 450.0, 300.0, 150.0, 210.0, 3105.0, 24.0, source=_RTX4090),
        Device(
            "h100-pcie", 50.0, 262.5, 350.0, 900.0, 200.0, 210.0, 1755.0, 80.0, source=_sheet("H100 PCIe")
        ),
        Device("gh200", 90.0, 675.0, 900.0, 800.0, 200.0, 345.0, 1980.0, 96.0, source=_GH200),
        Device("h200", 75.0, 525.0, 700.0, 1632.0, 200.0, 345.0, 1980.0, 141.0, source=_sheet("H200 SXM")),
        Device("b200", 140.0, 750.0, 1000.0, 2000.0, 200.0, 120.0, 1965.0, 180.0, source=_sheet("HGX B200")),
    )
}


def find_max_cap_w(kind: str) -> float:
    """Return the largest cap of a kind of GPU; 0: it is not known."""
    return DEVICES[kind].max_cap_w if kind in DEVICES else 0.0


def device(name: str) -> Device:
    """Return the built-in device of that name, in any spelling that `gpu_names` knows.

    A MIG slice such as `a100-1g.5gb` draws its share of the whole GPU; its power limit cannot be set.
    """
    kind = resolve_gpu_kind(name)
    found = DEVICES.get(kind) or _build_mig_slice(kind)
    if found is None:
        raise ConfigError(
            f"unknown GPU kind {name!r}, expected one of {', '.join(DEVICES)}",
            hint=did_you_mean(name.casefold(), DEVICES),
        )
    return found


def _build_mig_slice(kind: str) -> Device | None:
    slice_of = find_mig_slice(kind)
    if slice_of is None or slice_of[0] not in DEVICES:
        return None
    whole, slices, mem_gb = DEVICES[slice_of[0]], slice_of[2], slice_of[3]
    share = min(slices / MIG_SLICES.get(whole.name, 7), 1.0)
    return replace(
        whole,
        name=kind,
        idle_w=share * whole.idle_w,
        busy_w=share * whole.busy_w,
        max_w=share * whole.max_w,
        min_cap_w=share * whole.max_w,
        mem_gib=float(mem_gb),
        measured="",
        source=f"the share of {slices} of {MIG_SLICES.get(whole.name, 7)} slices of the {whole.name}",
    )
