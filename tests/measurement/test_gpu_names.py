"""GPU names of drivers, Slurm and traces are the kinds of the library."""

from __future__ import annotations

import pytest

from wattline.cluster import parse_cluster
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES, device
from wattline.measurement.gpu_names import find_mig_slice, resolve_gpu_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvidia_a100_80gb_pcie", "a100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("a100-sxm4-40gb", "a100"),
        ("tesla_v100-sxm2-32gb", "v100"),
        ("Tesla T4", "t4"),
        ("tesla_t4", "t4"),
        ("geforce_rtx_3090", "rtx3090"),
        ("nvidia_geforce_rtx_4090", "rtx4090"),
        ("h100_80gb_hbm3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("quadro_rtx_6000", "rtx6000"),
        ("P100", "p100"),
        ("gh200_480gb", "gh200"),
        ("rtx_2080_ti", "rtx_2080_ti"),  # not in the library, so that it keeps its name
        ("NVIDIA GeForce RTX 2080 Ti", "rtx_2080_ti"),
        ("rtx_a6000", "rtx_a6000"),
        ("rtx_6000_ada", "rtx_6000_ada"),
        ("A10", "a10"),
        ("my-own_kind", "my-own_kind"),
        ("1g.5gb", "a100-1g.5gb"),
        ("a100_1g.5gb", "a100-1g.5gb"),
        ("nvidia_a100-sxm4-80gb_3g.39gb", "a100-3g.39gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-1g.5gb"),
        ("1g.10gb", "1g.10gb"),  # an A100 or an H100
        ("", ""),
    ],
)
def test_a_gpu_name_becomes_a_kind(name: str, kind: str) -> None:
    assert resolve_gpu_kind(name) == kind
    assert resolve_gpu_kind(kind) == kind


def test_every_kind_of_the_library_is_its_own_name() -> None:
    assert {kind: resolve_gpu_kind(kind) for kind in DEVICES} == {kind: kind for kind in DEVICES}


def test_a_cluster_may_name_its_gpus_as_slurm_does() -> None:
    nodes = parse_cluster("2xnvidia_a100_80gb_pcie:4+1xtesla_v100-sxm2-32gb:8")
    assert nodes.kind.words() == ["a100-pcie", "a100-pcie", "v100"]


def test_a_mig_slice_draws_its_share_of_the_gpu() -> None:
    whole, part = device("a100"), device("a100_1g.5gb")
    assert part.name == "a100-1g.5gb"
    assert part.busy_w == pytest.approx(whole.busy_w / 7)
    assert (part.mem_gib, part.min_cap_w) == (5.0, part.max_cap_w)
    assert device("2g.12gb").busy_w == pytest.approx(device("a30").busy_w / 2)
    assert parse_cluster("1xa100-1g.5gb:56").gpus.tolist() == [56]


def test_a_slice_of_an_unknown_gpu_is_no_device() -> None:
    assert find_mig_slice("1g.10gb") == ("", "1g.10gb", 1, 10)
    assert find_mig_slice("a100") is None
    with pytest.raises(ConfigError, match=r"unknown GPU kind '1g\.10gb'"):
        device("1g.10gb")
