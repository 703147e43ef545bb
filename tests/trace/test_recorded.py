"""The recorded schedule stays beside its jobs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import RecordedSchedule, Trace, read, write_trace

SACCT = (
    "JobID|JobIDRaw|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|Timelimit|Partition|QOS|"
    "JobName|NodeList\n"
    "7_1|8|u|a|COMPLETED|2026-01-01T00:00:05|2026-01-01T00:01:00|2026-01-01T00:02:00|60|gres/gpu=2|"
    "1-00:00:00|main|high|train|n[1-2]\n"
    "2|2|u|b|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T00:03:00|120|gres/gpu:a100=1|"
    "UNLIMITED|debug|low|test|n3\n"
)


def trace(folder: Path, text: str) -> Trace:
    path = folder / "some.file"
    path.write_text(text)
    return read(path)


def schedule(found: Trace) -> RecordedSchedule:
    assert found.recorded is not None
    assert len(found.recorded) == len(found.jobs)
    return found.recorded


def test_sacct_keeps_times_limits_partitions_and_names_in_the_order_of_jobs(tmp_path: Path) -> None:
    found = trace(tmp_path, SACCT)
    recorded = schedule(found)
    assert found.jobs.id.tolist() == ["2", "8"]
    assert recorded.start_s.tolist() == [60.0, 60.0]
    assert recorded.end_s.tolist() == [180.0, 120.0]
    assert recorded.time_limit_s.tolist() == [np.inf, 86_400.0]
    assert recorded.partition.words() == ["debug", "main"]
    assert recorded.qos.words() == ["low", "high"]
    assert recorded.name.words() == ["test", "train"]
    assert recorded.array.words() == ["", "7"]
    assert recorded.nodes.words() == ["n3", "n[1-2]"]
    assert recorded.has_times


def test_a_part_of_a_trace_keeps_its_schedule(tmp_path: Path) -> None:
    part = trace(tmp_path, SACCT).take(np.array([False, True]))
    assert part.jobs.id.tolist() == ["8"]
    assert schedule(part).partition.words() == ["main"]


def test_a_trace_without_records_has_no_schedule(tmp_path: Path) -> None:
    assert trace(tmp_path, "submit_s,gpus,duration_s\n0,1,60\n").recorded is None
    assert read("synth:count=3").recorded is None


def test_helios_and_its_likes_keep_start_and_end(tmp_path: Path) -> None:
    header = "job_id,user,gpu_num,node_num,type,state,submit_time,start_time,end_time,duration,queue\n"
    row = "a,u,8,1,pretrain,COMPLETED,2023-04-01 00:00:10,2023-04-01 00:00:15,2023-04-01 00:00:45,30,5\n"
    recorded = schedule(trace(tmp_path, header + row))
    assert (recorded.start_s.tolist(), recorded.end_s.tolist()) == ([5.0], [35.0])
    assert recorded.nodes.words() == ["1"]


def test_philly_spans_its_attempts_and_counts_those_before_the_last(tmp_path: Path) -> None:
    attempts = [
        {"start_time": f"2017-10-09 {a}", "end_time": f"2017-10-09 {b}", "detail": [{"ip": n, "gpus": ["g"]}]}
        for a, b, n in (("07:10:00", "07:20:00", "m1"), ("09:00:00", "09:00:30", "m2"))
    ]
    job = {"jobid": "a", "vc": "v", "user": "u", "status": "Pass", "submitted_time": "2017-10-09 07:00:00"}
    recorded = schedule(trace(tmp_path, json.dumps([job | {"attempts": attempts}])))
    assert (recorded.start_s.tolist(), recorded.end_s.tolist()) == ([600.0], [7230.0])
    assert (recorded.requeues.tolist(), recorded.nodes.words()) == ([1], ["m2"])


def test_swf_waits_and_requested_times_are_kept_and_may_be_unknown(tmp_path: Path) -> None:
    rows = "1 100 20 60 4 -1 -1 4 3600 -1 1 3 1 9 1 5 -1 -1\n2 110 -1 60 4 -1 -1 4 -1 -1 1 3 1 9 1 -1 -1 -1\n"
    recorded = schedule(trace(tmp_path, "; Version: 2.2\n" + rows))
    assert recorded.start_s[0] == 120.0
    assert recorded.end_s[0] == 180.0
    assert np.isnan([recorded.start_s[1], recorded.end_s[1], recorded.time_limit_s[1]]).all()
    assert recorded.time_limit_s[0] == 3600.0
    assert recorded.partition.words() == ["5", ""]


def test_pai_and_openb_keep_start_and_end(tmp_path: Path) -> None:
    pai = schedule(trace(tmp_path, "task,start_s,gpus,duration_s\na,10,8,100\n"))
    assert (pai.start_s.tolist(), pai.end_s.tolist()) == ([10.0], [110.0])
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    header += "creation_time,deletion_time,scheduled_time\n"
    pods = schedule(trace(tmp_path, header + "p,1,1,1,1000,,LS,Running,5,90,7\n"))
    assert (pods.start_s.tolist(), pods.end_s.tolist(), pods.qos.words()) == ([7.0], [90.0], ["LS"])


def test_a_written_schedule_reads_back_equal(tmp_path: Path) -> None:
    found = trace(tmp_path, SACCT)
    path = tmp_path / "own.csv"
    write_trace(found.jobs, path, found.recorded)
    again = read(path)
    for name, column in vars(schedule(found)).items():
        mine = getattr(schedule(again), name)
        if hasattr(column, "words"):
            assert mine.words() == column.words(), name
        else:
            np.testing.assert_array_equal(mine, column, name)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("start_s", "4", "start_s is '4', expected not before submit_s, '5'"),
        ("end_s", "6", "end_s is '6', expected not before start_s, '7'"),
        ("time_limit_s", "0", "time_limit_s is '0', expected a number of seconds above 0"),
        ("requeues", "-1", "requeues is '-1', expected a whole number, at least 0"),
    ],
)
def test_our_own_csv_rejects_records_that_cannot_be(
    tmp_path: Path, column: str, value: str, problem: str
) -> None:
    fields = {"submit_s": "5", "gpus": "1", "duration_s": "9", "start_s": "7"} | {column: value}
    with pytest.raises(TraceError) as caught:
        trace(tmp_path, f"{','.join(fields)}\n{','.join(fields.values())}\n")
    assert caught.value.problem.startswith(problem)
