from __future__ import annotations

from wattline.backend.engine.slurm.submission import (
    NodeShare,
    SlurmOptions,
    build_flags,
    build_srun_flags,
    slurm_time_s,
)

EVEN = [NodeShare("n1", "10.0.0.1", 2, 8, 32000), NodeShare("n2", "10.0.0.2", 2, 8, 32000)]
UNEVEN = [NodeShare("n1", "10.0.0.1", 3, 12, 48000), NodeShare("n2", "10.0.0.2", 1, 4, 16000)]


def flags_of(shares: list[NodeShare], after: tuple[str, ...] = ()) -> list[str]:
    options = SlurmOptions("main", account="vision")
    return build_flags(
        shares, options, name="wl-1", comment="wl:a:1:1", output="/x/log", time_s=90.0, after=after
    )


def test_an_even_split_is_one_job_on_named_nodes() -> None:
    flags = flags_of(EVEN)
    assert ":" not in flags
    for flag in ("--nodes=2", "--nodelist=n1,n2", "--gres=gpu:2", "--cpus-per-task=8", "--mem=32000M"):
        assert flag in flags
    for flag in ("--partition=main", "--account=vision", "--comment=wl:a:1:1", "--no-requeue", "--time=2"):
        assert flag in flags
    assert build_srun_flags(EVEN) == [["--nodes=2", "--cpus-per-task=8", "--gres=gpu:2"]]


def test_an_uneven_split_is_a_heterogeneous_job_with_a_component_per_node() -> None:
    flags = flags_of(UNEVEN)
    first, second = flags[: flags.index(":")], flags[flags.index(":") + 1 :]
    assert {"--nodelist=n1", "--gres=gpu:3", "--comment=wl:a:1:1"} <= set(first)
    assert {"--nodelist=n2", "--gres=gpu:1", "--comment=wl:a:1:1"} <= set(second)
    assert [flags[0] for flags in build_srun_flags(UNEVEN)] == ["--het-group=0", "--het-group=1"]


def test_one_node_needs_no_srun() -> None:
    assert build_srun_flags(EVEN[:1]) == []


def test_a_new_attempt_starts_after_the_old_one() -> None:
    assert "--dependency=afterany:7:9" in flags_of(EVEN, ("7", "9"))


def test_slurm_ends_a_job_only_after_its_supervisor_could_have() -> None:
    assert slurm_time_s(None, 30.0, None) is None
    assert slurm_time_s(None, 30.0, 3600.0) == 3600.0
    assert slurm_time_s(600.0, 30.0, None) == 750.0
    assert slurm_time_s(3600.0, 30.0, 3600.0) == 3600.0
