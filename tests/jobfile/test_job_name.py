from __future__ import annotations

import shlex

import pytest

from wattline.jobfile.job_name import default_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("/usr/bin/python3.11 -u src/train.py --config x.py", "train"),
        ("torchrun --nproc-per-node 4 train.py --lr 1", "train"),
        ("python -m torch.distributed.run --nproc_per_node=2 finetune.py", "finetune"),
        ("accelerate launch --mixed_precision bf16 run_clm.py", "run_clm"),
        ("deepspeed --num_gpus 2 pretrain.py", "pretrain"),
        ("bash x.sh", "x"),
        ("./x.sh 3", "x"),
        ("python -m pkg.mod", "mod"),
        ("python -m pkg.__main__", "pkg"),
        ("python -um pkg.mod", "python"),
        ("uv run train.py", "train"),
        ("uv run --with torch python train.py", "train"),
        ("conda run -n env python train.py", "train"),
        ("env A=b python train.py", "train"),
        ("A=b nice -n 10 python train.py", "train"),
        ("timeout 30m python train.py", "train"),
        ("bash -c 'cd /x && python train.py'", "train"),
        ("sh -c 'python train.py; exit 3'", "train"),
        ("bash -c '(true)'", "bash"),
        ("bash -c ';'", "bash"),
        ("bash -c 'echo \"'", "bash"),
        ("python -c 'print(1)'", "python"),
        ("python", "python"),
        ("sleep 5", "sleep"),
        ("/opt/bin/trainer --script foo.py", "trainer"),
        ("env", "env"),
        ("/", "/"),
        (".py", ".py"),
    ],
)
def test_the_name_is_that_of_the_script_or_program(command: str, name: str) -> None:
    assert default_name(shlex.split(command)) == name
