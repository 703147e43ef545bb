"""Durations of the jobs of Pollux' workloads, for simulators that have no speeds."""

ALONE_S = {
    "bert": {6: 3092, 8: 2459, 12: 1594, 16: 1324},
    "cifar10": {6: 910, 8: 865, 12: 624, 16: 482},
    "deepspeech2": {6: 4142, 8: 3530, 12: 2477},
    "imagenet": {24: 31805, 32: 27431, 48: 19689},
    "ncf": {1: 47},
    "yolov3": {4: 14102},
}
"""Seconds alone with the requested GPUs, packed, by application and GPUs: from Pollux' tables."""
