"""docs/slurm.md, on a real Slurm cluster with a partition of another name."""

from support.page_samples import TRAIN

FILES = {"train.py": TRAIN, "job.yaml": "run: python train.py\nresources: {gpus: 1, time: 5m}\n"}
REPLACE = {
    "--partition gpu": "--partition main",
    "/shared/wattline": "FOLDER/shared",
    "--for 8h": "--for 3s",
    "/etc/slurm/": "",
    "--licence watts ": "",
}
