"""What pages of the documents take for granted: training scripts, traces, small models."""

from __future__ import annotations

TRAIN = "import sys\n\nprint('training', *sys.argv[1:])\n"
"""A training script that takes any arguments."""

JOBS = "id,submit_s,gpus,duration_s,deadline_s,late_per_h\n" + "".join(
    f"job-{n},{600 * n},{1 + n % 2},1800,{600 * n + 7200},1.0\n" for n in range(8)
)
"""A trace in the format of Wattline."""

SACCT = (
    "JobIDRaw|User|Account|Partition|QOS|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|JobName\n"
    + "".join(
        f"{100 + n}|ann|vision|gpu|normal|COMPLETED|2026-01-02T{8 + n // 6:02d}:{n % 6}0:00"
        f"|2026-01-02T{8 + n // 6:02d}:{n % 6}5:00|2026-01-02T{9 + n // 6:02d}:{n % 6}5:00|3600|120"
        "|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1|train\n"
        for n in range(24)
    )
)
"""Accounting records of Slurm."""
