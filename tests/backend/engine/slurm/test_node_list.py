from __future__ import annotations

import pytest

from wattline.backend.engine.slurm.commands import clean_message, parse_records
from wattline.backend.engine.slurm.node_list import count_gpus, parse_indices, parse_time_limit


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:8", 8),
        ("gpu:8", 8),
        ("gpu:a100:4(S:0-1),gpu:h100:4(S:2-3)", 8),
        ("gpu:a100_80gb:2,shard:a100_80gb:16", 2),
        ("gpu:nvidia_a100-sxm4-80gb:4(S:0)", 4),
        ("shard:32", 0),
        ("(null)", 0),
    ],
)
def test_gpus_are_counted_in_the_text_of_gres(gres: str, gpus: int) -> None:
    assert count_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("30", 1800.0),
        ("10:30", 630.0),
        ("01:00:00", 3600.0),
        ("2-00:00:00", 172800.0),
        ("1-12", 129600.0),
        ("1-12:30", 131400.0),
    ],
)
def test_time_limits_are_those_of_the_manual(text: str, seconds: float | None) -> None:
    assert parse_time_limit(text) == seconds


def test_gpu_indices() -> None:
    assert parse_indices("0-2,5") == (0, 1, 2, 5)
    assert parse_indices("3") == (3,)
    assert parse_indices("GPU-8a6f0000-uuid") == ()
    assert parse_indices("") == ()


def test_values_of_scontrol_may_contain_spaces() -> None:
    line = "NodeName=n1 OS=Linux 6.1 #1 SMP Gres=gpu:2 Reason=Not responding [slurm@2026-11-17T12:00:00]"
    (record,) = parse_records(line)
    assert (record["OS"], record["Gres"]) == ("Linux 6.1 #1 SMP", "gpu:2")
    assert record["Reason"].startswith("Not responding")


def test_messages_of_slurm_lose_their_prefixes() -> None:
    stderr = "sbatch: error: Batch job submission failed: Invalid qos specification\n"
    assert clean_message(stderr) == "Batch job submission failed: Invalid qos specification"
