"""What each format's columns become, and which rows are no jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import Trace, read


def trace(folder: Path, text: str, expected_format: str) -> Trace:
    path = folder / "some.file"
    path.write_text(text, newline="")
    found = read(path)
    assert found.format == expected_format
    return found


def problem(folder: Path, text: str, expected_format: str) -> TraceError:
    with pytest.raises(TraceError) as caught:
        trace(folder, text, expected_format)
    return caught.value


def philly_job(name: str, *attempts: dict[str, Any], **fields: object) -> dict[str, Any]:
    submitted = "2017-10-09 07:00:00"
    job = {"status": "Pass", "vc": "vc1", "jobid": name, "attempts": list(attempts)}
    return job | {"submitted_time": submitted, "user": "u1"} | fields


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


FIRST = attempt("2017-10-09 07:10:00", "2017-10-09 07:20:00", 1)
SECOND = attempt("2017-10-09 09:00:00", "2017-10-09 09:00:30", 8, 4)


def test_philly_sums_its_attempts_and_takes_the_most_gpus(tmp_path: Path) -> None:
    log = [philly_job("a", FIRST, SECOND), philly_job("b", FIRST, submitted_time="2017-10-09 06:59:00")]
    jobs = trace(tmp_path, json.dumps(log, indent=1), "philly").jobs
    assert jobs.id.tolist() == ["b", "a"]
    assert jobs.submit_s.tolist() == [0.0, 60.0]
    assert jobs.gpus.tolist() == [1, 12]
    assert jobs.duration_s.tolist() == [600.0, 630.0]
    assert (jobs.team.word(0), jobs.user.word(0), jobs.status.word(0)) == ("vc1", "u1", "Pass")


def test_philly_ignores_jobs_that_never_ran_or_had_no_gpu(tmp_path: Path) -> None:
    open_end = attempt("2017-10-09 07:10:00", None, 1)
    log = [philly_job("a", FIRST), philly_job("b"), philly_job("c", open_end)]
    log.append(philly_job("d", attempt("2017-10-09 07:10:00", "2017-10-09 07:20:00")))
    found = trace(tmp_path, json.dumps(log), "philly")
    assert len(found.jobs) == 1
    assert found.ignored == 3


def test_philly_finds_the_line_of_a_bad_job(tmp_path: Path) -> None:
    backwards = attempt("2017-10-09 07:10:00", "2017-10-09 07:00:00", 1)
    log = [philly_job("a", FIRST), philly_job("b", backwards)]
    text = json.dumps(log, indent=1)
    error = problem(tmp_path, text, "philly")
    assert error.line is not None
    assert '"jobid": "b"' in text.splitlines()[error.line - 1]
    assert "end_time is '2017-10-09 07:00:00'" in error.problem
    lone = json.dumps([philly_job("a", FIRST), {"jobid": "x"}])
    assert "no list of attempts" in problem(tmp_path, lone, "philly").problem


def test_philly_that_is_cut_short_is_a_trace_error(tmp_path: Path) -> None:
    text = json.dumps([philly_job("a", FIRST)], indent=1)
    assert "not valid JSON" in problem(tmp_path, text[:-20], "philly").problem


HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def helios_row(name: str, gpus: int, *times: str) -> str:
    submit, start, end = (f"2020-04-01 {t}" if t else "" for t in times)
    return f"{name},u,vcA,{gpus},4,1,COMPLETED,{submit},{start},{end},30,5\n"


def test_helios_ignores_cpu_jobs_and_jobs_that_never_started(tmp_path: Path) -> None:
    text = HELIOS + helios_row("a", 8, "00:00:10", "00:00:15", "00:00:45")
    text += helios_row("b", 0, "00:00:00", "00:00:15", "00:00:45") + helios_row("c", 1, "00:00:00", "", "")
    found = trace(tmp_path, text, "helios")
    assert found.ignored == 2
    assert found.jobs.gpus.tolist() == [8]
    assert found.jobs.submit_s.tolist() == [0.0]
    assert found.jobs.duration_s.tolist() == [30.0]
    assert (found.jobs.team.word(0), found.jobs.status.word(0)) == ("vcA", "COMPLETED")


def test_helios_rejects_negative_gpus_and_times_that_run_backwards(tmp_path: Path) -> None:
    negative = helios_row("a", -1, "00:00:10", "00:00:15", "00:00:45")
    assert "gpu_num is '-1'" in problem(tmp_path, HELIOS + negative, "helios").problem
    early = helios_row("a", 1, "00:00:10", "00:00:05", "00:00:45")
    assert "start_time is" in problem(tmp_path, HELIOS + early, "helios").problem
    ended = helios_row("a", 1, "00:00:10", "00:00:15", "00:00:12")
    assert "end_time is" in problem(tmp_path, HELIOS + ended, "helios").problem
    odd = helios_row("a", 1, "00:00:10", "tomorrow", "00:00:45")
    assert "expected a time such as" in problem(tmp_path, HELIOS + odd, "helios").problem


def test_a_cpu_only_trace_holds_no_jobs(tmp_path: Path) -> None:
    text = HELIOS + helios_row("b", 0, "00:00:00", "00:00:15", "00:00:45")
    assert problem(tmp_path, text, "helios").problem.startswith("no jobs: all 1 rows")


def test_pai_table_reads_with_and_without_header(tmp_path: Path) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    rows = (
        "j1,worker,3,Terminated,100.0,160.0,600,29.3,25.0,T4\n"
        "j2,tf,2,Failed,150.0,151.0,600,29.3,250.0,MISC\n"
        "j3,ps,1,Terminated,100.0,160.0,600,29.3,,\n"
        "j4,worker,1,Waiting,,,600,29.3,100,V100\n"
    )
    for text in (header + rows, rows):
        found = trace(tmp_path, text, "pai")
        assert found.ignored == 2
        assert found.jobs.id.tolist() == ["j1/worker", "j2/tf"]
        assert found.jobs.gpus.tolist() == [3, 6]
        assert found.jobs.duration_s.tolist() == [60.0, 1.0]
        assert found.jobs.submit_s.tolist() == [100.0, 150.0]
        assert found.jobs.gpu_kind.words() == ["t4", ""]
        assert found.jobs.key.words() == ["", ""]


def test_pai_group_is_the_recurrence_key(tmp_path: Path) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_gpu,gpu_type,group\n"
    jobs = trace(tmp_path, header + "j1,w,1,Terminated,0,9,100,T4,g7\n", "pai").jobs
    assert jobs.key.words() == ["g7"]


def test_pai_times_that_run_backwards_are_bad(tmp_path: Path) -> None:
    row = "j1,worker,3,Terminated,100.0,60.0,600,29.3,25.0,T4\n"
    assert "end_time is '60.0', expected not before start_time" in problem(tmp_path, row, "pai").problem


OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
OPENB += "creation_time,deletion_time,scheduled_time\n"


def test_openb_ignores_pods_without_gpu_or_schedule(tmp_path: Path) -> None:
    rows = "a,1,1,2,1000,T4|P100,LS,Running,10,100,20\n"
    rows += "b,1,1,0,0,,LS,Running,0,9,1\nc,1,1,1,500,,LS,Pending,0,9,\n"
    found = trace(tmp_path, OPENB + rows, "openb")
    assert found.ignored == 2
    assert found.jobs.submit_s.tolist() == [10.0]
    assert found.jobs.duration_s.tolist() == [80.0]
    assert found.jobs.gpu_kind.words() == ["t4|p100"]


def test_openb_without_times_says_so(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"
    assert "has no times" in problem(tmp_path, text, "openb").problem


def test_itp_reads_plain_rows(tmp_path: Path) -> None:
    jobs = trace(tmp_path, "job_id,submission_time,duration,num_gpu\nx,3793,1183,2\n", "itp").jobs
    assert jobs.submit_s.tolist() == [3793.0]
    assert jobs.duration_s.tolist() == [1183.0]
    assert not jobs.whole.any()


def test_itp_reads_models_batches_and_deadlines(tmp_path: Path) -> None:
    header = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    jobs = trace(tmp_path, header + "x,10,200,gpt2,4573,256,1,100\n", "itp").jobs
    assert jobs.steps.tolist() == [200.0]
    assert jobs.step_s.tolist() == [0.5]
    assert jobs.whole.all()
    assert jobs.deadline_s.tolist() == [4573.0]
    assert jobs.batch.tolist() == [256]
    assert jobs.model.words() == ["gpt2"]


def test_itp_takes_what_really_ran_and_no_deadline_at_best_effort(tmp_path: Path) -> None:
    header = (
        "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,"
        "real_duration,duration,iteration,best_effort\n"
    )
    rows = "0,1,40,vgg16,99,64,1,20,5,10,0\n1,1,40,vgg16,99,64,1,20,5,10,1\n"
    jobs = trace(tmp_path, header + rows, "itp").jobs
    assert jobs.steps.tolist() == [40.0, 40.0]
    assert jobs.step_s.tolist() == [0.5, 0.5]
    assert jobs.deadline_s.tolist() == [99.0, np.inf]


def gavel_row(*fields: object) -> str:
    return "\t".join(map(str, fields)) + "\n"


TYPE = "ResNet-50 (batch size 64)"


def test_gavel_tells_its_layouts_apart(tmp_path: Path) -> None:
    new = gavel_row(TYPE, "python3 main.py", "dir", "-n", 1, 1000, 2, 3, -1.0, 7)
    old = gavel_row(TYPE, "python3 main.py", "-n", 1, 1000, "7.000000", 2)
    shockwave = gavel_row(TYPE, "python3 main.py", "dir", "-n", 1, 1000, 2, "gns", 3, 2.0, 500, 7)
    for row in (new, old, shockwave):
        jobs = trace(tmp_path, row, "gavel").jobs
        assert (jobs.submit_s[0], jobs.gpus[0], jobs.steps[0], jobs.batch[0]) == (7.0, 2, 1000.0, 64)
        assert jobs.model.words() == ["ResNet-50"]
        assert jobs.id.tolist() == ["0"]
    assert jobs.duration_s[0] == 500.0
    assert jobs.deadline_s[0] == 7.0 + 2.0 * 500.0
    assert jobs.priority[0] == 3.0


def test_gavel_predicts_shorter_steps_on_more_gpus_and_longer_ones_for_larger_batches(tmp_path: Path) -> None:
    def step_s(batch: int, gpus: int) -> float:
        row = gavel_row(f"ResNet-50 (batch size {batch})", "python3 main.py", "-n", 1, 1000, 0, gpus)
        return float(trace(tmp_path, row, "gavel").jobs.step_s[0])

    assert step_s(64, 4) < step_s(64, 1) < step_s(128, 1)
    # Gavel's own V100s did 4.5 steps a second.
    assert step_s(64, 1) == pytest.approx(1 / 4.5, rel=0.25)


def test_an_unknown_job_type_names_the_known_ones(tmp_path: Path) -> None:
    row = gavel_row("Llama (batch size 8)", "python3 main.py", "-n", 1, 1000, 0, 1)
    error = problem(tmp_path, row, "gavel")
    assert "'Llama (batch size 8)'" in error.problem
    assert "ResNet-50" in error.problem


POLLUX = "name,time,application,num_replicas,batch_size\n"


def test_pollux_predicts_steps_and_their_seconds(tmp_path: Path) -> None:
    jobs = trace(tmp_path, POLLUX + "c-0,107,cifar10,1,128\nc-1,108,cifar10,8,2048\n", "pollux").jobs
    assert jobs.submit_s.tolist() == [107.0, 108.0]
    # The authors' validation runs took 39,062 and 3,178 iterations.
    assert jobs.steps == pytest.approx([39062, 3178], rel=0.2)
    assert jobs.duration_s[1] < jobs.duration_s[0]


def test_an_unknown_application_names_the_known_ones(tmp_path: Path) -> None:
    error = problem(tmp_path, POLLUX + "x,0,gpt9,1,8\n", "pollux")
    assert "'gpt9'" in error.problem
    assert "yolov3" in error.problem


def test_muri_counts_in_milliseconds(tmp_path: Path) -> None:
    header = (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\n"
    )
    jobs = trace(tmp_path, header + "0,8,2500,4,dqn,128,6000,1,1500,4,8,0.5,1\n", "muri").jobs
    assert jobs.submit_s.tolist() == [2.5]
    assert jobs.step_s.tolist() == [1.5]
    assert jobs.steps.tolist() == [4.0]
    assert jobs.priority.tolist() == [1.0]


def swf_row(**fields: int) -> str:
    names = ["job", "submit", "wait", "run", "used", "cpu", "mem", "asked", "time", "askmem", "status"]
    names += ["user", "group", "exe", "queue", "partition", "prev", "think"]
    return "  " + " ".join(str(fields.get(name, -1)) for name in names) + "\n"


def test_swf_takes_processors_for_gpus(tmp_path: Path) -> None:
    text = "; Version: 2.2\n;  UnixStartTime: 0\n"
    text += swf_row(job=1, submit=5, run=60, used=4, asked=8, status=1, user=3, exe=7, queue=2)
    text += swf_row(job=2, submit=6, run=60, used=4, status=5, user=3) + swf_row(job=3, submit=7, asked=1)
    found = trace(tmp_path, text, "swf")
    assert found.ignored == 1
    assert found.jobs.gpus.tolist() == [8, 4]
    assert found.jobs.key.words() == ["3/7", ""]
    assert found.jobs.team.words() == ["2", ""]
    assert found.jobs.status.words() == ["SUCCEEDED", "CANCELLED"]
    assert found.jobs.submit_s.tolist() == [5.0, 6.0]


def test_swf_finds_bad_lines_behind_comments(tmp_path: Path) -> None:
    text = "; Version: 2.2\n" + swf_row(job=1, submit=5, run=60, asked=8) + "; a note\n"
    assert problem(tmp_path, text + "2 3 4\n" + swf_row(job=3, submit=1, run=1, asked=1), "swf").line == 4
    assert "are -1" in problem(tmp_path, text + swf_row(job=2, submit=5, run=60), "swf").problem


SACCT = "JobIDRaw|JobName|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES|WorkDir|SubmitLine\n"


def sacct_row(name: str, tres: str, state: str = "COMPLETED", start: str = "2024-05-31T13:00:10") -> str:
    end = "2024-05-31T13:01:10" if start != "Unknown" else "Unknown"
    line = "sbatch --wrap 'a | b \" c'"
    return f"{name}|train|u|acc|{state}|2024-05-31T13:00:00|{start}|{end}|60|{tres}|/home/u|{line}\n"


def test_sacct_reads_gpus_kinds_states_and_keys(tmp_path: Path) -> None:
    text = SACCT + sacct_row("1", "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=1G", "CANCELLED by 99")
    text += sacct_row("2", "cpu=8,gres/gpu=4") + sacct_row("2.batch", "cpu=8,gres/gpu=4")
    text += sacct_row("3", "cpu=8") + sacct_row("4", "gres/gpu=1", "PENDING", "Unknown")
    found = trace(tmp_path, text, "sacct")
    assert found.ignored == 3
    assert found.jobs.gpus.tolist() == [2, 4]
    assert found.jobs.gpu_kind.words() == ["a100", ""]
    assert found.jobs.team.words() == ["acc", "acc"]
    assert found.jobs.status.words() == ["CANCELLED", "COMPLETED"]
    assert found.jobs.duration_s.tolist() == [60.0, 60.0]
    assert found.jobs.submit_s.tolist() == [0.0, 0.0]
    assert set(found.jobs.key.words()) == {"sbatch --wrap 'a | b \" c' @ /home/u @ train"}


def test_sacct_reads_few_columns(tmp_path: Path) -> None:
    times = "2024-05-31T13:00:00|2024-05-31T13:00:05|2024-05-31T13:00:15"
    text = f"JobID|Submit|Start|End|ReqTRES\n1|{times}|gres/gpu=1\n"
    jobs = trace(tmp_path, text, "sacct").jobs
    assert jobs.duration_s.tolist() == [10.0]
    assert jobs.key.words() == [""]


def test_sacct_says_what_is_missing(tmp_path: Path) -> None:
    assert (
        "AllocTRES and ReqTRES are both missing"
        in problem(tmp_path, "JobID|Submit|ElapsedRaw\n", "sacct").problem
    )
    assert "ElapsedRaw, or both" in problem(tmp_path, "JobID|Submit|AllocTRES\n", "sacct").problem


def test_sacct_rejects_a_start_before_the_submission(tmp_path: Path) -> None:
    row = sacct_row("1", "gres/gpu=1", start="2024-05-31T12:00:00")
    assert "Start is '2024-05-31T12:00:00'" in problem(tmp_path, SACCT + row, "sacct").problem


def test_synergy_knows_how_long_a_step_is_and_does_not_shift_the_clock(tmp_path: Path) -> None:
    jobs = trace(tmp_path, "0,alexnet,307,8176,1\n1,gnmt,353.5,204160,2\n", "synergy").jobs
    assert jobs.submit_s.tolist() == [307.0, 353.5]
    assert jobs.step_s.tolist() == [0.6, 0.12]
    assert jobs.steps.tolist() == [8176.0, 204160.0]
    assert jobs.whole.all()


def test_synergy_names_the_models_it_knows(tmp_path: Path) -> None:
    error = problem(tmp_path, "0,alexnet,307,8176,1\n1,bart,353,204160,1\n", "synergy")
    assert error.line == 2
    assert "model is 'bart', expected one of alexnet, deepspeech" in error.problem


def test_an_unknown_column_of_our_own_csv_names_the_nearest(tmp_path: Path) -> None:
    error = problem(tmp_path, "submit_s,gpu,duration_s\n0,1,60\n", "csv")
    assert (error.line, error.problem) == (1, "unknown column 'gpu', did you mean 'gpus'?")


def test_our_own_csv_wants_work_in_one_unit(tmp_path: Path) -> None:
    assert "column gpus is missing" in problem(tmp_path, "submit_s,duration_s\n", "csv").problem
    assert "either" in problem(tmp_path, "submit_s,gpus\n0,1\n", "csv").problem
    assert "either" in problem(tmp_path, "submit_s,gpus,duration_s,steps,step_s\n", "csv").problem
    assert "step_s is missing" in problem(tmp_path, "submit_s,gpus,steps\n0,1,5\n", "csv").problem


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "philly.json.gz"
    path.write_text("submit_s,gpus,duration_s\n5,1,60\n")
    found = read(path)
    assert (found.format, found.name, found.jobs.submit_s.tolist()) == ("csv", "philly", [5.0])
