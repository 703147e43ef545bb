from __future__ import annotations

import pytest

from wattline.backend.engine.slurm.refusals import classify_refusal, describe_wait, find_limit


@pytest.mark.parametrize(
    ("sentence", "meaning"),
    [
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "limit"),
        ("AssocMaxSubmitJobLimit: Job violates accounting/QOS policy (job submit limit)", "limit"),
        ("Invalid account or account/partition combination specified", "final"),
        ("Invalid qos specification", "final"),
        ("Access/permission denied", "final"),
        ("User's group not permitted to use this partition", "final"),
        ("Requested node configuration is not available", ""),
    ],
)
def test_refusals_of_sbatch(sentence: str, meaning: str) -> None:
    assert classify_refusal(f"sbatch: Batch job submission failed: {sentence}") == meaning


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("None", ""),
        ("QOSMaxGRESPerUser", "Slurm lets it wait: a limit of its QOS (QOSMaxGRESPerUser)."),
        ("AssocGrpGRES", "Slurm lets it wait: a limit of its account (AssocGrpGRES)."),
        ("InvalidAccount", "Slurm lets it wait: its account (InvalidAccount)."),
        ("Resources", "It waits in Slurm's queue (Resources)."),
        ("JobHeldAdmin", "It waits in Slurm's queue (JobHeldAdmin)."),
    ],
)
def test_pending_reasons_of_squeue(reason: str, sentence: str) -> None:
    assert describe_wait(reason) == sentence
    assert bool(find_limit(reason)) == sentence.startswith("Slurm lets it wait")
