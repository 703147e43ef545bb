"""Optimisers of stacked parameters; each hyper-parameter is one value for all members or one per member."""

from wattline.fusion.optim.adadelta import Adadelta
from wattline.fusion.optim.adagrad import Adagrad
from wattline.fusion.optim.adam import Adam, AdamW
from wattline.fusion.optim.lion import Lion
from wattline.fusion.optim.muon import Muon
from wattline.fusion.optim.nadam import NAdam
from wattline.fusion.optim.optimizer import ArrayOptimizer, find_optimisers
from wattline.fusion.optim.radam import RAdam
from wattline.fusion.optim.rmsprop import RMSprop
from wattline.fusion.optim.sgd import SGD
from wattline.fusion.optim.update import Update

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "ArrayOptimizer",
    "Lion",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Update",
    "find_optimisers",
]
