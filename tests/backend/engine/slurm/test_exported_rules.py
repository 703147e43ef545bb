"""Rules, records and node events that a real Slurm exports are read and simulated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import run_command
from support.slurm_cluster import SlurmCluster, require_slurm
from support.slurm_database import DATABASE_PROGRAMS
from wattline.rules.reader import read_rules
from wattline.trace import read
from wattline.trace.outages import read_outages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmdbd and MariaDB of this test need root"),
]
FIELDS = (
    "JobID,JobIDRaw,User,Account,Partition,QOS,State,Submit,Start,End,ElapsedRaw,Timelimit,NNodes,"
    "NodeList,ReqTRES,AllocTRES,Reservation,ConsumedEnergyRaw,JobName,SubmitLine"
)


@pytest.fixture(scope="module")
def ruled_cluster() -> Iterator[SlurmCluster]:
    """A cluster with two QOS, an account, a maintenance window and a daily reservation."""
    require_slurm(*DATABASE_PROGRAMS)
    with SlurmCluster(nodes=4, gpus=2, database=True) as cluster:
        for words in (
            "add qos low Priority=1 MaxWall=1-00:00:00",
            "add qos high Priority=100 Preempt=low MaxTRESPerUser=gres/gpu=4 MaxJobsPerUser=2"
            " GrpTRES=gres/gpu=6,cpu=8 PreemptExemptTime=00:10:00",
            "add account vision GrpTRES=gres/gpu=4 fairshare=3",
            "add user root account=vision qos=normal,low,high",
        ):
            cluster.run("sacctmgr", "-i", *words.split())
        reserve = ("scontrol", "create", "reservation")
        service = (
            "reservationname=service starttime=now+1hour duration=120 nodes=n[3-4] users=root flags=maint"
        )
        lesson = (
            "reservationname=class starttime=now+1day duration=01:00:00 nodes=n1 accounts=vision flags=daily"
        )
        for words in (service, lesson):
            cluster.run(*reserve, *words.split())
        yield cluster


def export(cluster: SlurmCluster, folder: Path, *commands: str) -> str:
    """Write the outputs of *commands* into one file, one after the other."""
    path = folder / f"export-{len(list(folder.iterdir()))}.txt"
    path.write_text("\n".join(cluster.run(*command.split()) for command in commands))
    return str(path)


def test_partitions_qos_and_reservations_are_those_of_the_cluster(
    ruled_cluster: SlurmCluster, tmp_path: Path
) -> None:
    path = export(
        ruled_cluster,
        tmp_path,
        "scontrol show partition",
        "scontrol show reservation",
        "sacctmgr show qos -P",
        "sacctmgr show assoc -P",
        "scontrol show config",
    )
    rules = read_rules([path])
    assert {p.name: p.nodes for p in rules.partitions} == {
        "main": "n[1-4]",
        "urgent": "n[1-4]",
        "one": "n1",
        "two": "n[1-2]",
    }
    assert [p.name for p in rules.partitions if p.default] == ["main"]
    assert {p.name: p.priority_tier for p in rules.partitions}["urgent"] == 10
    service, lesson = sorted(rules.reservations, key=lambda rule: rule.name, reverse=True)
    assert (service.maintenance, service.duration_s, service.nodes) == (True, 7200.0, "n[3-4]")
    assert (lesson.every_s, lesson.accounts, lesson.maintenance) == (86_400.0, ("vision",), False)
    high = next(qos for qos in rules.qos if qos.name == "high")
    assert (high.limits.user_gpus, high.limits.user_jobs, high.limits.group_gpus) == (4, 2, 6)
    assert (high.preempts, high.exempt_s) == (("low",), 600.0)
    assert [(quota.name, quota.gpus, quota.share) for quota in rules.quotas] == [("vision", 4, 3.0)]
    assert rules.priority is not None
    assert rules.priority.preempt == "partition"
    assert dict(rules.ignored)["qos: GrpTRES of cpu"] == 1


def test_recorded_dependencies_and_drains_are_simulated_under_these_rules(
    ruled_cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ruled_cluster
    submit = ("sbatch", "--parsable", "-A", "vision", "--gres=gpu:1", "-n1", "--mem=10", "-t", "5")
    quiet = ("-o", "/dev/null", "--wrap", "sleep 1")
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=disk")
    # Held, because Slurm records no dependency on a job that has already ended.
    first = cluster.run(*submit, "-H", "--qos=low", "-p", "two", *quiet).strip()
    second = cluster.run(*submit, "--qos=high", "-d", f"afterok:{first}", *quiet).strip()

    def list_states() -> list[str]:
        return cluster.run("sacct", "-a", "-X", "-n", "-P", "-j", f"{first},{second}", "-o", "State").split()

    # slurmctld reports new jobs every few seconds; of one that ends before, no submit line is recorded.
    cluster.wait_for(lambda: list_states() == ["PENDING", "PENDING"], timeout_s=120.0)
    cluster.run("scontrol", "release", first)
    cluster.wait_for(lambda: list_states() == ["COMPLETED", "COMPLETED"], timeout_s=120.0)
    cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    jobs = export(cluster, tmp_path, f"sacct -a -X -P -j {first},{second} -o {FIELDS}")
    events = export(cluster, tmp_path, "sacctmgr show event -P")
    rules = export(cluster, tmp_path, "scontrol show partition", "scontrol show reservation")
    trace = read(jobs)
    assert trace.recorded is not None
    assert trace.recorded.dependency.words() == ["", f"afterok:{first}"]
    assert trace.recorded.partition.words() == ["two", "main"]
    drains = read_outages(events)
    assert "n2" in [
        name for name, is_drain in zip(drains.node.words(), drains.drained, strict=True) if is_drain
    ]
    words = ["simulate", "--trace", jobs, "--cluster", "4xa100:2", "--rules", rules, "--outages", events]
    code, _, err = run_command(capsys, *words)
    assert code == 0, err
    assert "rules: 4 partitions, 2 reservations" in err
    assert "1 job waits for others, as dependencies say" in err
    assert "drained" in err
