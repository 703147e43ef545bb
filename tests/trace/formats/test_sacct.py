"""The shapes of `sacct`, and what becomes of requeued, running, pending, array and heterogeneous jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.errors import TraceError
from wattline.trace import Trace, read
from wattline.trace.formats.sacct_gpus import _parse as parse_gpus

FIELDS = ("JobID", "JobName", "User", "Partition", "State", "Submit", "Start", "End", "Elapsed", "ReqTRES")
FIELDS = (*FIELDS, "AllocTRES")
ROWS = (
    (
        *("101", "train", "ann", "main", "COMPLETED"),
        *("2026-03-01T10:00:00", "2026-03-01T10:05:00", "2026-03-02T11:06:07", "1-01:01:07"),
        *("billing=8,cpu=8,gres/gpu=2,mem=16G,node=1", "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1"),
    ),
    (
        *("101.batch", "batch", "", "", "COMPLETED"),
        *("2026-03-01T10:05:00", "2026-03-01T10:05:00", "2026-03-02T11:06:07", "1-01:01:07", ""),
        "cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=1",
    ),
    (
        *("102_1", "sweep", "bob", "main", "CANCELLED by 1000"),
        *("2026-03-01T10:00:10", "2026-03-01T10:00:12", "2026-03-01T10:01:12", "00:01:00"),
        *("billing=1,cpu=1,gres/gpu=1", "billing=1,cpu=1,gres/gpu:a100=1,gres/gpu=1"),
    ),
    (
        *("103", "cpu", "bob", "main", "COMPLETED"),
        *("2026-03-01T10:00:20", "2026-03-01T10:00:22", "2026-03-01T10:01:22", "00:01:00"),
        *("billing=1,cpu=1", "billing=1,cpu=1"),
    ),
    (
        *("104", "later", "bob", "main", "PENDING"),
        *("2026-03-01T10:00:30", "Unknown", "Unknown", "00:00:00", "billing=1,cpu=1,gres/gpu=4", ""),
    ),
)


def separated(delimiter: str, end: str = "") -> str:
    return "".join(delimiter.join(row) + end + "\n" for row in (FIELDS, *ROWS))


def fixed_width(width: int = 60) -> str:
    widths = [width if "TRES" in name else 20 for name in FIELDS]

    def line(values: tuple[str, ...]) -> str:
        cells = (v if len(v) <= w else v[: w - 1] + "+" for v, w in zip(values, widths, strict=True))
        return " ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) + " \n"

    return line(FIELDS) + " ".join("-" * w for w in widths) + " \n" + "".join(map(line, ROWS))


def trace(folder: Path, text: str, **options: bool) -> Trace:
    path = folder / "jobs.txt"
    path.write_text(text)
    found = read(path, **options)  # type: ignore[arg-type]
    assert found.format == "sacct"
    return found


@pytest.mark.parametrize(
    "text",
    [separated("|"), separated("|", "|"), separated(","), separated(";"), separated("\t"), fixed_width()],
    ids=["-P", "-p", "comma", "semicolon", "tab", "fixed width"],
)
def test_every_shape_reads_the_same(tmp_path: Path, text: str) -> None:
    found = trace(tmp_path, text)
    assert found.jobs.id.tolist() == ["101", "102_1"]
    assert found.jobs.gpus.tolist() == [2, 1]
    assert found.jobs.gpu_kind.words() == ["a100", "a100"]
    assert found.jobs.duration_s.tolist() == [90_067.0, 60.0]
    assert found.jobs.status.words() == ["COMPLETED", "CANCELLED"]
    assert found.recorded is not None
    assert found.recorded.array.words() == ["", "102"]
    assert found.recorded.start_s.tolist() == [300.0, 12.0]
    assert dict(found.counts.dropped) == {"job steps": 1, "without GPUs": 1, "never started": 1}
    assert found.counts.rows == len(ROWS)


def test_a_list_that_a_narrow_column_cuts_off_is_no_job_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"AllocTRES is 'billing=8\+', cut off.*use sacct -P") as caught:
        trace(tmp_path, fixed_width(10))
    assert caught.value.line == 3


def test_names_that_are_not_ascii_do_not_shift_columns_of_fixed_width(tmp_path: Path) -> None:
    text = "JobID        User       Submit              Start               End                 AllocTRES \n"
    text += (
        "------------ ---------- ------------------- ------------------- ------------------- --------------\n"
    )
    text += "1                 müll "  # padded to ten bytes
    text += "2026-03-01T10:00:00 2026-03-01T10:00:00 2026-03-01T10:01:00 gres/gpu=1    \n"
    assert trace(tmp_path, text).jobs.user.words() == ["müll"]


def test_two_exports_in_one_file_read_as_one(tmp_path: Path) -> None:
    once = separated("|")
    found = trace(tmp_path, once + once)
    assert len(found.jobs) == 2
    assert found.counts.repaired["listed twice"] == 2
    assert found.counts.joined == 2
    assert found.counts.rows == 2 * len(ROWS)


MINIMAL = "JobID|User|JobName|State|Submit|Start|End|ElapsedRaw|AllocTRES\n"


def run(
    name: str, submit: str, start: str, end: str, elapsed: int, state: str = "COMPLETED", owner: str = "u|n"
) -> str:
    times = "|".join(t if t == "Unknown" else f"2026-03-01T{t}" for t in (submit, start, end))
    return f"{name}|{owner.split('|')[0]}|{owner.split('|')[1]}|{state}|{times}|{elapsed}|gres/gpu=1\n"


def test_a_requeued_job_is_one_job_with_the_work_of_its_last_run(tmp_path: Path) -> None:
    text = MINIMAL + run("7", "10:00:00", "10:00:10", "10:10:10", 600, "NODE_FAIL")
    text += run("7", "10:10:10", "10:20:00", "10:20:30", 30, "PREEMPTED")
    text += run("8", "10:00:05", "10:00:06", "10:00:07", 1) + run("7", "10:20:30", "11:00:00", "11:01:00", 60)
    found = trace(tmp_path, text)
    assert found.jobs.id.tolist() == ["7", "8"]
    assert found.jobs.submit_s.tolist() == [0.0, 5.0]
    assert found.jobs.duration_s.tolist() == [60.0, 1.0]
    assert found.recorded is not None
    assert found.recorded.start_s[0] == 3600.0
    assert found.recorded.end_s[0] == 3660.0
    assert found.recorded.requeues.tolist() == [2, 0]
    assert found.counts.joined == 2
    assert found.counts.repaired == {"requeued, with the work of the last run": 1}


def test_an_id_that_another_user_had_before_is_no_requeue(tmp_path: Path) -> None:
    text = MINIMAL + run("7", "10:00:00", "10:00:10", "10:10:10", 600)
    text += run("7", "12:00:00", "12:00:10", "12:10:10", 600, owner="v|n")
    with pytest.raises(TraceError, match="id '7' is already used in line 2"):
        trace(tmp_path, text)


def test_a_running_job_counts_with_its_work_so_far_and_can_be_dropped(tmp_path: Path) -> None:
    text = MINIMAL + run("7", "10:00:00", "10:00:10", "Unknown", 3000, "RUNNING")
    found = trace(tmp_path, text + run("8", "10:00:00", "10:00:10", "10:00:20", 10))
    assert found.jobs.duration_s.tolist() == [3000.0, 10.0]
    assert found.recorded is not None
    assert np.isnan(found.recorded.end_s[0])
    assert found.counts.repaired == {"still running, with the work done so far": 1}
    ended = found.drop_running()
    assert ended.jobs.id.tolist() == ["8"]
    assert (ended.counts.jobs, ended.counts.dropped, ended.counts.repaired) == (1, {"still running": 1}, {})


def test_a_running_job_of_unknown_length_is_counted_as_not_ended(tmp_path: Path) -> None:
    text = "JobID|State|Submit|Start|End|AllocTRES\n"
    text += "1|RUNNING|2026-03-01T10:00:00|2026-03-01T10:00:10|Unknown|gres/gpu=1\n"
    text += "2|COMPLETED|2026-03-01T10:00:00|2026-03-01T10:00:10|2026-03-01T10:00:20|gres/gpu=1\n"
    found = trace(tmp_path, text)
    assert found.jobs.id.tolist() == ["2"]
    assert found.counts.dropped == {"not ended": 1}


def test_parts_of_a_heterogeneous_job_are_jobs_and_announced(tmp_path: Path) -> None:
    text = MINIMAL + run("12+0", "10:00:00", "10:00:10", "10:00:20", 10)
    found = trace(tmp_path, text + run("12+1", "10:00:00", "10:00:10", "10:00:20", 10))
    assert found.jobs.id.tolist() == ["12+0", "12+1"]
    assert list(found.counts.repaired.values()) == [2]


def test_times_may_be_seconds_since_1970_or_have_a_zone(tmp_path: Path) -> None:
    header = "JobID|Submit|Start|End|Elapsed|AllocTRES\n"
    epoch = trace(tmp_path, header + "1|1772359200|1772359210|1772359270|00:01:00|gres/gpu=1\n")
    zone = "2026-03-01T12:00:00+0200|2026-03-01T12:00:10+0200|2026-03-01T12:01:10+0200"
    zoned = trace(tmp_path, header + f"1|{zone}|00:01:00|gres/gpu=1\n")
    for found in (epoch, zoned):
        assert found.recorded is not None
        assert found.recorded.start_s.tolist() == [10.0]
        assert found.origin_s == 1772359200.0


def test_an_hour_that_the_clock_was_set_back_is_repaired(tmp_path: Path) -> None:
    found = trace(tmp_path, MINIMAL + run("1", "02:30:00", "02:50:00", "02:10:00", 1200))
    assert found.recorded is not None
    assert found.recorded.end_s.tolist() == [2400.0]
    assert list(found.counts.repaired.values()) == [1]


def test_limits_are_clocks_minutes_or_none(tmp_path: Path) -> None:
    header = "JobIDRaw|Submit|ElapsedRaw|AllocTRES|{}\n"
    row = "{}|2026-03-01T10:00:00|5|gres/gpu=1|{}\n"
    clocks = header.format("Timelimit") + row.format(1, "2-00:00:00") + row.format(2, "UNLIMITED")
    found = trace(tmp_path, clocks + row.format(3, "Partition_Limit")).recorded
    assert found is not None
    np.testing.assert_array_equal(found.time_limit_s, [172_800.0, np.inf, np.nan])
    minutes = trace(tmp_path, header.format("TimelimitRaw") + row.format(1, "90")).recorded
    assert minutes is not None
    assert minutes.time_limit_s.tolist() == [5400.0]
    with pytest.raises(TraceError, match="Timelimit is 'soon', expected seconds or"):
        trace(tmp_path, header.format("Timelimit") + row.format(1, "soon"))


@pytest.mark.parametrize(
    ("text", "gpus", "kind"),
    [
        ("gpu:2", 2, ""),
        ("gpu", 1, ""),
        ("gpu:tesla_t4:2", 2, "t4"),
        ("gres/gpu:tesla_v100-sxm2-32gb:2", 2, "v100"),
        ("gres:gpu:2", 2, ""),
        ("gres:gpu:a100:2(S:0-1)", 2, "a100"),
        ("7696487:4", 4, ""),
        ("gpu:a100:2,gpu:v100:1,craynetwork:1", 3, "a100|v100"),
        ("cpu=8,gres/gpu=4,gres/gpu:nvidia_a100_80gb_pcie=4,node=1", 4, "a100-pcie"),
        ("gres/gpu:1g.5gb=2", 2, "a100-1g.5gb"),
        ("gres/gpumem=80G,gres/gpuutil=50", 0, ""),
        ("gres/shard=4", 0, ""),
        ("billing=8,cpu=8", 0, ""),
        ("(null)", 0, ""),
        ("", 0, ""),
        ("gres/gpu=0", 0, ""),
    ],
)
def test_gpus_are_found_in_lists_of_resources(text: str, gpus: int, kind: str) -> None:
    assert parse_gpus(text) == (gpus, kind)


@pytest.mark.parametrize("text", ["1=8,2=16000,1001=2", "gres/gpu=many", "gres/gpu=9999999999", "billing=1+"])
def test_lists_that_cannot_be_read_are_no_jobs_without_gpus(tmp_path: Path, text: str) -> None:
    row = f"1|2026-03-01T10:00:00|5|{text}\n"
    with pytest.raises(TraceError, match="AllocTRES is"):
        trace(tmp_path, "JobIDRaw|Submit|ElapsedRaw|AllocTRES\n" + row)


def test_requested_gpus_are_per_node_and_allocated_ones_are_not(tmp_path: Path) -> None:
    header = "JobIDRaw|Submit|ElapsedRaw|NNodes|ReqGRES|AllocGRES\n"
    found = trace(
        tmp_path, header + "1|2026-03-01T10:00:00|5|2|gpu:4|\n2|2026-03-01T10:00:00|5|2|gpu:4|gpu:8\n"
    )
    assert found.jobs.gpus.tolist() == [8, 8]
    assert list(found.counts.repaired.values()) == [1]


def test_a_slice_of_a_gpu_is_announced(tmp_path: Path) -> None:
    text = "JobIDRaw|Submit|ElapsedRaw|AllocTRES\n1|2026-03-01T10:00:00|5|gres/gpu:a100_1g.5gb=1\n"
    found = trace(tmp_path, text)
    assert found.jobs.gpu_kind.words() == ["a100-1g.5gb"]
    assert "MIG" in str(found.counts)


def test_shards_of_a_gpu_count_as_a_whole_one_and_are_announced(tmp_path: Path) -> None:
    text = "JobIDRaw|Submit|ElapsedRaw|AllocTRES\n1|2026-03-01T10:00:00|5|cpu=1,gres/shard=4\n"
    text += "2|2026-03-01T10:00:00|5|cpu=1,gres/gpu=2,gres/shard=0\n"
    text += "3|2026-03-01T10:00:00|5|cpu=1,gres/mps=50\n"
    found = trace(tmp_path, text)
    assert found.jobs.gpus.tolist() == [1, 2, 1]
    assert found.counts.repaired == {"with a share of a GPU, counted as a whole one": 2}


def test_dependencies_are_read_from_their_column_or_the_command_line(tmp_path: Path) -> None:
    header = "JobIDRaw|Submit|ElapsedRaw|AllocTRES|{}\n"
    row = "{}|2026-03-01T10:00:00|5|gres/gpu=1|{}\n"
    column = header.format("Dependency") + row.format(1, "(null)") + row.format(2, "afterok:1(unfulfilled)")
    line = header.format("SubmitLine") + row.format(1, "sbatch a") + row.format(2, "sbatch -d afterok:1 a")
    for text, words in ((column, ["", "afterok:1(unfulfilled)"]), (line, ["", "afterok:1"])):
        found = trace(tmp_path, text).recorded
        assert found is not None
        assert found.dependency.words() == words


@pytest.mark.parametrize(("name", "words"), [("ConsumedEnergyRaw", "5400"), ("ConsumedEnergy", "5.40K")])
def test_recorded_energy_is_joules_and_0_is_unmetered(tmp_path: Path, name: str, words: str) -> None:
    header = f"JobIDRaw|Submit|ElapsedRaw|AllocTRES|Reservation|{name}\n"
    row = "{}|2026-03-01T10:00:00|5|gres/gpu=1|lesson|{}\n"
    found = trace(tmp_path, header + row.format(1, words) + row.format(2, "0")).recorded
    assert found is not None
    np.testing.assert_array_equal(found.energy_j, [5400.0, np.nan])
    assert found.reservation.words() == ["lesson", "lesson"]
    with pytest.raises(TraceError, match=f"{name} is 'much', expected joules"):
        trace(tmp_path, header + row.format(1, "much"))


def test_jobs_of_several_clusters_keep_their_ids_apart(tmp_path: Path) -> None:
    text = "Cluster|JobIDRaw|Submit|ElapsedRaw|AllocTRES\n"
    text += "a|1|2026-03-01T10:00:00|5|gres/gpu=1\nb|1|2026-03-01T10:00:00|5|gres/gpu=1\n"
    assert trace(tmp_path, text).jobs.id.tolist() == ["a/1", "b/1"]


def test_a_delimiter_in_a_command_line_is_a_part_of_it(tmp_path: Path) -> None:
    text = "JobIDRaw|SubmitLine|Submit|ElapsedRaw|AllocTRES\n"
    text += "1|sbatch --wrap 'a | b | c'|2026-03-01T10:00:00|5|gres/gpu=1\n"
    assert trace(tmp_path, text).jobs.key.words() == ["sbatch --wrap 'a | b | c'"]


words = st.sampled_from(
    ["", "1", "gres/gpu=1", "Unknown", "2026-03-01T10:00:00", "RUNNING", "gpu:2", "x+", "7_1"]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(words, min_size=9, max_size=9), min_size=1, max_size=6))
def test_every_row_is_a_job_or_counted(tmp_path: Path, rows: list[list[str]]) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(MINIMAL + "".join("|".join(row) + "\n" for row in rows))
    try:
        found = read(path, skip_bad=True)
    except TraceError:
        return
    assert found.counts.rows == len(rows)
    assert found.counts.jobs == len(found.jobs)
