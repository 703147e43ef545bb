from __future__ import annotations

import math
import time

import pytest

from wattline.backend.engine.slurm import recorded_jobs
from wattline.backend.engine.slurm.commands import only_reading, run_command
from wattline.backend.engine.slurm.recorded_jobs import (
    PartitionHistory,
    expand_hosts,
    parse_jobs_of,
    parse_moment,
)
from wattline.errors import BackendError

TEXT = """\
JobId=7 JobName=evil UserId=root(0) NumNodes=9
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=4294901757 Nice=0 Account=vision QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:04 TimeLimit=1-00:30:00 TimeMin=N/A
   SubmitTime=2026-11-17T10:00:00 EligibleTime=2026-11-17T10:01:00
   AccrueTime=2026-11-17T10:01:00
   StartTime=2026-11-17T10:02:00 EndTime=2026-11-18T10:32:00 Deadline=N/A
   Partition=gpu AllocNode:Sid=login:1
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-3]
   NumNodes=3 NumCPUs=6 NumTasks=3 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   TRES=cpu=6,mem=6000M,node=3,billing=6
   JOB_GRES=gpu:a100:4
     Nodes=n[1-2] CPU_IDs=0-1 Mem=2000 GRES=gpu:a100:1(IDX:0)
     Nodes=n3 CPU_IDs=0-1 Mem=2000 GRES=gpu:a100:2(IDX:0-1)
   Command=/home/ann/NodeList=n9 JobState=FAILED
   TresPerNode=gres:gpu:1

JobId=8 ArrayJobId=8 ArrayTaskId=2-9 JobName=sweep
   UserId=eve(1001) GroupId=eve(1001) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=normal
   JobState=PENDING Reason=Dependency Dependency=afterok:7
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=2026-11-17T10:00:00 EligibleTime=Unknown
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   Partition=gpu,big AllocNode:Sid=login:1
   NodeList=(null)
   NumNodes=2-2 NumCPUs=2 NumTasks=2 CPUs/Task=1
   TresPerNode=gres:gpu:a100:2

JobId=9 JobName=elsewhere
   UserId=eve(1001)
   JobState=RUNNING
   Partition=big
"""


def test_times_gpus_and_nodes_of_jobs_are_read() -> None:
    running, pending = parse_jobs_of(TEXT, "gpu")
    assert (running.id, running.user, running.account, running.state) == ("7", "ann", "vision", "RUNNING")
    assert running.allocation == (("n1", 1), ("n2", 1), ("n3", 2))
    assert (running.gpus, running.limit_s) == (4, 88_200.0)
    assert running.start_s - running.eligible_s == 60
    assert running.has_run
    assert not running.is_over
    assert (pending.id, pending.account, pending.gpus, pending.gpu_type) == ("8", "", 4, "a100")
    assert pending.limit_s is None
    assert math.isnan(pending.eligible_s)
    assert not pending.has_run


@pytest.mark.parametrize(
    ("request_", "gpus"),
    [
        ("TresPerNode=gres:gpu:2", 4),
        ("TresPerNode=gres/gpu:a100:2", 4),
        ("TresPerJob=gres:gpu:5", 5),
        ("TresPerTask=gres:gpu:1", 6),
        ("TresPerNode=gres:gpu", 2),
        ("ReqTRES=cpu=4,gres/gpu=3,gres/gpu:a100=3", 3),
        ("TresPerNode=gres:shard:2", 0),
    ],
)
def test_requests_for_gpus_are_counted(request_: str, gpus: int) -> None:
    lines = ("JobId=1 JobName=x", "JobState=PENDING", "Partition=p", "NumNodes=2 NumTasks=6", request_)
    assert parse_jobs_of("\n   ".join(lines), "p")[0].gpus == gpus


def test_a_job_that_was_cancelled_while_it_waited_has_not_run() -> None:
    times = "SubmitTime=2026-11-17T10:00:00 EligibleTime=2026-11-17T10:00:00"
    ended = "StartTime=2026-11-17T10:01:00 EndTime=2026-11-17T10:01:00"
    lines = ("JobId=1 JobName=x", "JobState=CANCELLED", "Partition=p", times, ended, "NodeList=(null)")
    (job,) = parse_jobs_of("\n   ".join((*lines, "TresPerNode=gres:gpu:1")), "p")
    assert job.is_over
    assert not job.has_run


@pytest.mark.parametrize(
    ("text", "limit_s"), [("00:10:00", 600.0), ("UNLIMITED", None), ("365-00:00:00", None)]
)
def test_a_job_may_have_no_time_limit(text: str, limit_s: float | None) -> None:
    lines = ("JobId=1 JobName=x", "JobState=PENDING", "Partition=p", f"RunTime=00:00:00 TimeLimit={text}")
    assert parse_jobs_of("\n   ".join(lines), "p")[0].limit_s == limit_s


def test_a_job_that_slurm_forgets_before_its_end_has_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter((TEXT, ""))
    monkeypatch.setattr(recorded_jobs, "read_jobs", lambda partition: parse_jobs_of(next(texts), partition))
    history = PartitionHistory("gpu", accounted=False)
    history.update()
    assert not history.unknown_ends
    history.update()
    assert history.unknown_ends == {"7", "8"}
    assert [job.state for job in history.jobs] == ["RUNNING", "PENDING"]


def test_lists_of_nodes_are_expanded() -> None:
    assert list(expand_hosts("a,n[1-3],r[08-10]c[1,3]")) == [
        *("a", "n1", "n2", "n3", "r08c1", "r08c3", "r09c1", "r09c3", "r10c1", "r10c3")
    ]


def test_times_of_slurm_are_local_times() -> None:
    assert parse_moment(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_700_000_000))) == 1_700_000_000
    assert math.isnan(parse_moment("Unknown"))


@pytest.mark.parametrize("command", [["sbatch", "x"], ["scontrol", "update", "x"], ["scancel", "1"]])
def test_a_command_that_changes_something_is_refused_where_only_reading_is_allowed(
    command: list[str],
) -> None:
    with only_reading(), pytest.raises(BackendError, match="could change something in Slurm"):
        run_command(command)
