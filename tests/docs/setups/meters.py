"""Names of docs/meters.md, on a simulated GPU."""

import wattline  # noqa: F401

ENV = {"WATTLINE_METER": "simulated:1xv100,model=resnet50,batch=64,state=FOLDER/gpus"}


def train_one_epoch():
    return sum(range(1000))


def train():
    return sum(range(1000))


def plot(*columns):
    assert len(columns) == 3
