"""Every trace reader keeps the contract."""

import json

from wattline.testing import TraceContract
from wattline.trace import FORMATS


class TestCsv(TraceContract):
    format, jobs, line = "csv", 2, 3
    text = "submit_s,gpus,duration_s\n5,1,10\n0,2,20\n"
    broken = "submit_s,gpus,duration_s\n5,1,10\n0,0,20\n7,1,1\n"


class TestPhillyCsv(TraceContract):
    format, jobs, line = "philly-csv", 2, 3
    text = (
        "job_id,vc,submit_time,submit_s,gpus,duration_s\n"
        "a,v,2017-09-04 10:30:41,0,8,22\nb,v,2017-09-04 10:30:42,1,1,7\n"
    )
    broken = text.replace(",1,1,7", ",1,1,nan")


def _philly(*ends: int) -> str:
    return json.dumps(
        [
            {
                "status": "Pass",
                "vc": "v",
                "jobid": f"j{row}",
                "user": "u",
                "submitted_time": "2017-10-09 07:00:00",
                "attempts": [
                    {
                        "start_time": "2017-10-09 07:10:00",
                        "end_time": f"2017-10-09 07:{end:02}:00",
                        "detail": [{"ip": "m", "gpus": ["gpu0"]}],
                    }
                ],
            }
            for row, end in enumerate(ends)
        ],
        indent=1,
    )


class TestPhilly(TraceContract):
    format, jobs = "philly", 2
    text = _philly(20, 30)
    broken = _philly(20, 5)  # ends before it starts
    line = 1 + next(n for n, row in enumerate(broken.splitlines()) if '"jobid": "j1"' in row)


class TestHelios(TraceContract):
    format, jobs, line = "helios", 2, 3
    text = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "a,u,v,8,4,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:00:15,2020-04-01 00:00:45,30,5\n"
        "b,u,v,1,4,1,COMPLETED,2020-04-01 00:00:20,2020-04-01 00:00:25,2020-04-01 00:00:45,20,5\n"
    )
    broken = text.replace("b,u,v,1,", "b,u,v,-1,")


class TestPai(TraceContract):
    format, jobs, line = "pai", 2, 3
    text = "task,orig_row,start_s,gpus,duration_s,clamped_48h\na-w,1,10,8,100,0\nb-w,2,20,1,200,0\n"
    broken = text.replace("20,1,200", "20,1,-200")


class TestOpenb(TraceContract):
    format, jobs, line = "openb", 2, 3
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,12000,16384,1,1000,,LS,Running,0,100,0\np1,6000,12288,1,460,T4,LS,Running,5,90,5\n"
    )
    broken = text.replace("Running,5,90,5", "Running,5,3,5")


class TestItp(TraceContract):
    format, jobs, line = "itp", 2, 3
    text = "job_id,submission_time,duration,num_gpu\na,100,604,16\nb,200,767,2\n"
    broken = text.replace("767,2", "767,x")


class TestMuri(TraceContract):
    format, jobs, line = "muri", 2, 3
    text = (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\n"
        "0,1,0,5853,dqn,128,2868294,46122,490,446,8,0,1\n1,8,201694,8787,dqn,128,4472936,201694,509,435,8,0.5,0\n"
    )
    broken = text.replace("1,8,201694", "1,0,201694")


class TestGavel(TraceContract):
    format, jobs, line = "gavel", 2, 2
    text = (
        "ResNet-18 (batch size 128)\tpython3 main.py\tcifar10\t--num_steps\t1\t925982\t4\t1\t-1.000000\t0\n"
        "Transformer (batch size 128)\tpython3 train.py\ttranslation\t-step\t1\t44334\t2\t1\t-1.000000\t7\n"
    )
    broken = text.replace("44334", "-5")


class TestPollux(TraceContract):
    format, jobs, line = "pollux", 2, 3
    text = (
        "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\nncf-1,110,ncf,1,256\n"
    )
    broken = text.replace("ncf,1,256", "unheard-of,1,256")


def _swf(job: int, submit: int, procs: int, runtime: int) -> str:
    return f"{job} {submit} 5 {runtime} {procs} -1 -1 {procs} 100 -1 1 3 1 9 1 1 -1 -1\n"


class TestSwf(TraceContract):
    format, jobs, line = "swf", 2, 3
    text = "; Version: 2.2\n" + _swf(1, 0, 2, 60) + _swf(2, 10, 1, 30)
    broken = (
        "; Version: 2.2\n" + _swf(1, 0, 2, 60) + _swf(2, 10, 1, 30).replace(" 30 ", " x ") + _swf(3, 11, 1, 9)
    )


class TestSacct(TraceContract):
    format, jobs, line = "sacct", 2, 3
    text = (
        "JobIDRaw|User|Account|State|Submit|Start|End|ElapsedRaw|AllocTRES\n"
        "1|u|a|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T00:02:00|60|cpu=8,gres/gpu=2\n"
        "2|u|a|COMPLETED|2026-01-01T00:00:05|2026-01-01T00:01:00|2026-01-01T00:03:00|120|cpu=8,gres/gpu:a100=1\n"
    )
    broken = text.replace("00:03:00|120", "00:00:30|120")


class TestSacctFixedWidth(TestSacct):
    text = "\n".join(
        f"{a:>8} {b:>19} {c:>19} {d:>19} {e:>20} "
        for a, b, c, d, e in (
            ("JobID", "Submit", "Start", "End", "AllocTRES"),
            ("-" * 8, "-" * 19, "-" * 19, "-" * 19, "-" * 20),
            ("1", "2026-01-01T00:00:00", "2026-01-01T00:01:00", "2026-01-01T00:02:00", "cpu=8,gres/gpu=2"),
            ("2", "2026-01-01T00:00:05", "2026-01-01T00:01:00", "2026-01-01T00:03:00", "cpu=8,gres/gpu=1"),
        )
    )
    broken, line = text.replace("00:03:00", "00:00:30"), 4


class TestTable(TraceContract):
    format, jobs, line = "table", 2, 3
    text = "job;arrival_s;service_sec;gpu_count\na;10;00:01:00;2\nb;5;120;1\n"
    broken = text.replace("b;5;120;1", "b;5;soon;1") + "c;6;7;1\n"


class TestJsonLines(TraceContract):
    format, jobs, line = "table", 2, 2
    text = (
        '{"id": 1, "submit": 0, "runtime": 60, "gpus": 2}\n{"id": 2, "submit": 5, "runtime": 6, "gpus": 1}\n'
    )
    broken = text.replace('"gpus": 1', '"gpus": -1')


class TestSynergy(TraceContract):
    format, jobs, line = "synergy", 2, 2
    text = "0,alexnet,307,8176,1\n1,gnmt,353,204160,1\n"
    broken = "0,alexnet,307,8176,1\n1,unheard-of,353,204160,1\n"


def test_every_format_has_a_contract() -> None:
    held = {
        thing.format
        for thing in globals().values()
        if isinstance(thing, type) and issubclass(thing, TraceContract) and thing is not TraceContract
    }
    assert held == set(FORMATS) - {"synth"}
