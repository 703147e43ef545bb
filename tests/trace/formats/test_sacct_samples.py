"""Tables that sacct 22.05 printed on a cluster of four nodes with four GPUs each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import Trace, read

DUPLICATES = """\
JobID|JobIDRaw|JobName|User|State|Submit|Start|End|Elapsed|Timelimit|NodeList|ReqTRES|AllocTRES
1|1|train|root|COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:45|00:00:03|00:10:00|n1\
|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1
1.batch|1.batch|batch||COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:45|00:00:03||n1\
||cpu=1,gres/gpu=2,mem=1000M,node=1
3|3|cpuonly|root|COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:43|00:00:01|365-00:00:00\
|n1|billing=1,cpu=1,mem=1000M,node=1|billing=1,cpu=1,mem=1000M,node=1
4|4|long|root|NODE_FAIL|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:44|00:00:02|365-00:00:00\
|n[3-4]|billing=2,cpu=2,gres/gpu=8,mem=2000M,node=2|billing=2,cpu=2,gres/gpu=8,mem=2000M,node=2
5|5|requeued|root|REQUEUED|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:44|00:00:02|00:05:00\
|n2|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
6+0|6|het|root|COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:44|2026-11-17T15:38:45|00:00:01|00:02:00\
|n2|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
8|8|big|root|COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:46|2026-11-17T15:38:47|00:00:01|UNLIMITED|n[1-4]\
|billing=4,cpu=4,gres/gpu=16,mem=4000M,node=4|billing=64,cpu=64,gres/gpu=16,mem=62.50G,node=4
9|9|cancelled|root|CANCELLED by 0|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:42|00:00:00\
|Partition_Limit|None assigned|billing=4,cpu=4,gres/gpu=16,mem=4000M,node=4|
2_3|2|sweep|root|COMPLETED|2026-11-17T15:38:42|2026-11-17T15:38:42|2026-11-17T15:38:44|00:00:02|1-00:00:00|n2\
|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
4|4|long|root|RUNNING|2026-11-17T15:38:44|2026-11-17T15:38:50|Unknown|00:00:03|365-00:00:00|n[1-2]\
|billing=2,cpu=2,gres/gpu=8,mem=2000M,node=2|billing=2,cpu=2,gres/gpu=8,mem=2000M,node=2
5|5|requeued|root|COMPLETED|2026-11-17T15:38:44|2026-11-17T15:38:50|2026-11-17T15:38:54|00:00:04|00:05:00|n3\
|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
"""

TRES = '[{"type": "cpu", "name": null, "id": 1, "count": 1}, {"type": "energy", "name": null, "id": 3,'
TRES += ' "count": null}, {"type": "gres", "name": "gpu", "id": 1001, "count": 2}]'


def json_job(number: int, array: str, state: str, times: str, allocated: str, limit: str = "10") -> str:
    """Return a job as `sacct --json` has it, without the parts that are not read."""
    return (
        f'{{"account": "root", "allocation_nodes": 1, "array": {array}, "association": {{"user": "root"}},'
        f' "het": {{"job_id": 0, "job_offset": null}}, "job_id": {number}, "name": "sweep", "nodes": "n1",'
        f' "partition": "main", "qos": "normal", "state": {{"current": {state}, "reason": "None"}},'
        f' "time": {{{times}, "submission": 1794932188, "limit": {limit}}}, "working_directory": "/tmp",'
        f' "tres": {{"allocated": {allocated}, "requested": {TRES}}}, "user": "root", "steps": []}}'
    )


ALONE = '{"job_id": 0, "task": null, "task_id": null}'
JSON = (
    '{"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "jobs": [\n'
    + ",\n".join(
        (
            json_job(
                *(1, '{"job_id": 1, "task": null, "task_id": 2}', '"COMPLETED"'),
                *('"elapsed": 1, "start": 1794932188, "end": 1794932189', TRES),
            ),
            json_job(2, ALONE, '"RUNNING"', '"elapsed": 6, "start": 1794932188, "end": 0', TRES, "525600"),
            json_job(3, ALONE, '"CANCELLED"', '"elapsed": 0, "start": null, "end": 1794932192', "[]", "null"),
        )
    )
    + "]}"
)

FIXED = """\
JobID             State              Submit               Start                 End TimelimitR  Timelimit\
                                AllocTRES
------------ ---------- ------------------- ------------------- ------------------- ---------- ----------\
 ----------------------------------------
3             COMPLETED 2026-11-17T15:38:42 2026-11-17T15:38:42 2026-11-17T15:38:43     525600 365-00:00+\
         billing=1,cpu=1,mem=1000M,node=1
8             COMPLETED 2026-11-17T15:38:42 2026-11-17T15:38:46 2026-11-17T15:38:47  UNLIMITED  UNLIMITED\
     billing=64,cpu=64,gres/gpu=16,node=4
9            CANCELLED+ 2026-11-17T15:38:42 2026-11-17T15:38:42 2026-11-17T15:38:42 Partition+ Partition+
2_1           COMPLETED 2026-11-17T15:38:42 2026-11-17T15:38:42 2026-11-17T15:38:44       1440 1-00:00:00\
         billing=1,cpu=1,gres/gpu=1,mem=1
"""


def trace(folder: Path, text: str) -> Trace:
    path = folder / "jobs.txt"
    path.write_text(text)
    return read(path)


def test_an_export_with_duplicates_has_each_job_once(tmp_path: Path) -> None:
    found = trace(tmp_path, DUPLICATES)
    assert found.jobs.id.tolist() == ["1", "6", "8", "2", "4", "5"]
    assert found.jobs.gpus.tolist() == [2, 1, 16, 1, 8, 1]
    assert found.jobs.duration_s.tolist() == [3.0, 1.0, 1.0, 2.0, 3.0, 4.0]
    assert found.recorded is not None
    assert found.recorded.requeues.tolist() == [0, 0, 0, 0, 1, 1]
    assert found.recorded.time_limit_s.tolist() == [600.0, 120.0, np.inf, 86_400.0, 31_536_000.0, 300.0]
    assert found.recorded.array.words() == ["", "", "", "2", "", ""]
    assert found.counts.as_dict() == {
        "rows": 11,
        "jobs": 6,
        "joined": 2,
        "repaired": {
            "part of a heterogeneous job, simulated on its own": 1,
            "still running, with the work done so far": 1,
            "requeued, with the work of the last run": 2,
        },
        "dropped": {"job steps": 1, "without GPUs": 1, "never started": 1},
    }


def test_columns_of_fixed_width_may_be_cut_off_in_header_and_limit(tmp_path: Path) -> None:
    found = trace(tmp_path, FIXED)
    assert found.jobs.id.tolist() == ["8", "2_1"]
    assert found.recorded is not None
    assert found.recorded.time_limit_s.tolist() == [np.inf, 86_400.0]
    assert found.counts.dropped == {"without GPUs": 1, "never started": 1}
    days = FIXED.replace("billing=1,cpu=1,mem=1000M,node=1", "billing=1,cpu=1,gres/gpu=1,node=")
    limited = trace(tmp_path, days.replace("TimelimitR ", "ReservedXX ")).recorded
    assert limited is not None
    assert limited.time_limit_s.tolist() == [31_536_000.0, np.inf, 86_400.0]


def test_json_has_the_same_jobs(tmp_path: Path) -> None:
    found = trace(tmp_path, JSON)
    assert found.format == "sacct"
    assert found.jobs.id.tolist() == ["1", "2"]
    assert found.jobs.gpus.tolist() == [2, 2]
    assert found.jobs.duration_s.tolist() == [1.0, 6.0]
    assert found.recorded is not None
    assert found.recorded.array.words() == ["1", ""]
    assert found.recorded.time_limit_s.tolist() == [600.0, 31_536_000.0]
    assert np.isnan(found.recorded.end_s[1])
    assert found.counts.dropped == {"never started": 1}
    newer = JSON.replace('"RUNNING"', '["RUNNING"]').replace(
        '"limit": 525600', '"limit": {"set": true, "infinite": true, "number": 0}'
    )
    recorded = trace(tmp_path, newer).recorded
    assert recorded is not None
    assert recorded.time_limit_s.tolist() == [600.0, np.inf]


def test_json_that_is_cut_short_or_odd_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not the output of sacct --json"):
        trace(tmp_path, JSON[:-5])
    with pytest.raises(TraceError, match="job 1 of the list cannot be read"):
        trace(tmp_path, '{"meta": {}, "jobs": [{"job_id": 1}]}')


@pytest.mark.parametrize(
    "text",
    [
        "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode|\n1|train|main|root|1|COMPLETED|0:0|\n",
        "JobID           JobName  Partition      State \n------------ ---------- ---------- ---------- \n",
    ],
)
def test_what_sacct_prints_by_default_is_refused_with_the_call_to_type(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="the column Submit is missing") as caught:
        trace(tmp_path, text)
    assert "sacct -a -X -D -P -o JobID" in caught.value.hint
