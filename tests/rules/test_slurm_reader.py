"""Rules as Slurm 22.05 prints them; the texts are its own."""

import math

import pytest

from wattline.core.quotas import QuotaRule
from wattline.errors import TraceError
from wattline.rules.reader import read_rules
from wattline.rules.rule_set import RuleSet
from wattline.rules.slurm_reader import read_slurm_rules

PARTITIONS = """\
PartitionName=main
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   AllocNodes=ALL Default=YES QoS=N/A
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-4]
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=CANCEL
   State=UP TotalCPUs=32 TotalNodes=4 SelectTypeParameters=NONE
   JobDefaults=(null)
   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
   TRES=cpu=32,mem=125G,node=4,billing=32,gres/gpu=8

PartitionName=short
   AllowGroups=staff AllowAccounts=vision,nlp AllowQos=ALL
   AllocNodes=ALL Default=NO QoS=high
   DefaultTime=00:30:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=2 MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=n[1,3]
   PriorityJobFactor=5 PriorityTier=10 RootOnly=NO ReqResv=NO OverSubscribe=FORCE:4
   State=UP TotalCPUs=8 TotalNodes=1 SelectTypeParameters=NONE
"""
RESERVATIONS = """\
ReservationName=service StartTime=2026-11-17T19:33:10 EndTime=2026-11-17T21:33:10 Duration=02:00:00
   Nodes=n[3-4] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES
   TRES=cpu=16
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

ReservationName=class StartTime=2026-11-18T18:33:10 EndTime=2026-11-18T19:33:10 Duration=01:00:00
   Nodes=n1 NodeCnt=1 CoreCnt=8 Features=(null) PartitionName=main Flags=DAILY,SPEC_NODES
   TRES=cpu=8
   Users=(null) Groups=(null) Accounts=vision Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a
"""
QOS = """\
Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|GrpTRES|GrpJobs|MaxTRES|MaxWall|MaxTRESPU|MaxJobsPU|MaxSubmitPU|MinTRES
normal|0|00:00:00|||cluster|||1.000000||||||||
low|1|00:00:00|||cluster|||0.500000||||1-00:00:00||||
high|100|00:00:00|low,normal|00:10:00|cluster|OverPartQOS||1.000000|cpu=8,gres/gpu=6|3|gres/gpu=2||gres/gpu=4|2|50|
"""
ASSOCIATIONS = """\
Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|MaxJobs|QOS|Def QOS
wattline|root|||1|||||normal|
wattline|vision|||3|||gres/gpu=4||normal|
wattline|vision|ann||2|||||normal|
"""
SWITCHES = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
"""
CONFIG = """\
Configuration data as of 2026-11-17T18:33:16
AccountingStorageBackupHost = (null)
PreemptType             = preempt/partition_prio
PriorityType            = priority/multifactor
PriorityWeightPartition = 1000
PriorityWeightQOS       = 5000
"""


def read(*parts: str) -> RuleSet:
    return read_slurm_rules("rules.txt", "\n".join(parts))


def test_partitions_keep_the_meaning_of_slurm() -> None:
    main, short = read(PARTITIONS, QOS).partitions
    assert (main.nodes, main.default, main.max_time_s, main.max_nodes) == ("n[1-4]", True, math.inf, None)
    assert math.isnan(main.default_time_s)
    assert (short.nodes, short.priority_tier, short.priority_job_factor) == ("n[1,3]", 10, 5)
    assert (short.max_time_s, short.default_time_s, short.max_nodes) == (86_400.0, 1800.0, 2)
    assert (short.qos, short.allow_accounts) == ("high", ("vision", "nlp"))


def test_fields_without_effect_are_named_and_those_without_meaning_are_not() -> None:
    ignored = dict(read(PARTITIONS, QOS).ignored)
    assert ignored["partition: OverSubscribe"] == 1
    assert ignored["partition: AllowGroups"] == 1
    assert ignored["qos: UsageFactor"] == 1
    assert ignored["qos: MaxSubmitPU"] == 1
    assert ignored["qos: GrpTRES of cpu"] == 1
    assert "partition: TotalCPUs" not in ignored
    assert "partition: LLN" not in ignored


def test_a_reservation_is_not_taken_for_a_partition() -> None:
    rules = read(RESERVATIONS)
    assert not rules.partitions
    service, lesson = rules.reservations
    assert (service.start, service.duration_s, service.maintenance) == ("2026-11-17T19:33:10", 7200.0, True)
    assert (service.users, service.nodes, service.every_s) == (("root",), "n[3-4]", math.inf)
    assert (lesson.accounts, lesson.every_s, lesson.maintenance) == (("vision",), 86_400.0, False)
    assert dict(rules.ignored) == {"reservation: PartitionName": 1}


def test_qos_have_their_limits_and_rights() -> None:
    normal, low, high = read(QOS).qos
    assert (normal.priority, low.max_wall_s) == (0, 86_400.0)
    assert (high.limits.user_gpus, high.limits.user_jobs, high.limits.group_gpus) == (4, 2, 6)
    assert (high.limits.group_jobs, high.max_gpus) == (3, 2)
    assert (high.preempts, high.exempt_s, high.over_partition) == (("low", "normal"), 600.0, True)


def test_associations_are_quotas_and_shares() -> None:
    vision, ann = read(ASSOCIATIONS).quotas
    assert vision == QuotaRule("team", "vision", gpus=4, share=3.0)
    assert ann == QuotaRule("user", "ann", share=2.0)


def test_switches_are_racks_and_pods() -> None:
    assert [(rack.name, rack.nodes, rack.pod) for rack in read(SWITCHES).racks] == [
        ("s0", "n[1-2]", "top"),
        ("s1", "n[3-4]", "top"),
    ]


def test_weights_come_from_the_configuration() -> None:
    priority = read(CONFIG).priority
    assert priority is not None
    assert (priority.weight_qos, priority.weight_partition, priority.preempt) == (5000.0, 1000.0, "partition")


def test_all_outputs_may_follow_each_other_in_one_file() -> None:
    rules = read(PARTITIONS, RESERVATIONS, QOS, CONFIG, ASSOCIATIONS)
    assert [len(part) for part in (rules.partitions, rules.reservations, rules.qos, rules.quotas)] == [
        2,
        2,
        3,
        2,
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing here", "rules.txt: no rules"),
        ("PartitionName=a Nodes=n1\n   MaxTime=soon", "rules.txt:1: partition: MaxTime is 'soon'"),
        ("\nPartitionName=a Nodes=n1 MaxNodes=-1", "rules.txt:2: partition: MaxNodes is '-1'"),
    ],
)
def test_bad_text_names_line_field_and_value(text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_slurm_rules("rules.txt", text)


def test_several_files_are_joined(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "a.txt").write_text(PARTITIONS)
    (folder / "b.txt").write_text(QOS)
    rules = read_rules([str(folder / "a.txt"), str(folder / "b.txt")])
    assert (len(rules.partitions), len(rules.qos)) == (2, 3)
