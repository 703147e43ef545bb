"""Names and files of docs/profiling.md."""

from torch.utils.data import DataLoader as _DataLoader

LOOP = (
    "import time\n\nfrom wattline.profiler.step_counter import steps\n\n"
    "for batch in steps(range(10**9)):\n    time.sleep(0.01)\n"
)
SWEEP = "model,gpu,batch,cap_w,samples_s,watts\n" + "".join(
    f"resnet50,v100,256,{cap},{speed},{cap - 2}\n"
    for cap, speed in ((100, 200), (125, 260), (150, 320), (175, 340), (200, 350), (225, 355), (250, 357))
)
FILES = {"train.py": LOOP, "sweep.csv": SWEEP, "imagenet/1": "x" * 4096, "imagenet/2": "x" * 4096}
REPLACE = {"/data/imagenet": "imagenet --sample 4K --storage 500MB/s"}
data = [0] * 8


def DataLoader(data, batch_size, num_workers):  # noqa: N802
    return _DataLoader(data, batch_size)
