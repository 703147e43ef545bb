"""Optimisers of stacked parameters whose hyper-parameters are one for all members or one per member."""

from wattline.fusion.optim.adadelta import Adadelta
from wattline.fusion.optim.adam import Adam, AdamW
from wattline.fusion.optim.optimizer import ArrayOptimizer, optimisers_of
from wattline.fusion.optim.rmsprop import RMSprop
from wattline.fusion.optim.sgd import SGD
from wattline.fusion.optim.update import Update

__all__ = ["SGD", "Adadelta", "Adam", "AdamW", "ArrayOptimizer", "RMSprop", "Update", "optimisers_of"]
