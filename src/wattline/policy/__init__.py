"""Policies: which jobs should run, on how many GPUs and under which power cap.

A policy exported here can be named on the command line.
"""

from wattline.policy.andreas import Andreas
from wattline.policy.chain import Chain, Stage, chain, plan_as_requested, rank_rows, spell
from wattline.policy.elastic.afs import Afs
from wattline.policy.elastic.elasticflow import ElasticFlow
from wattline.policy.elastic.pollux import Pollux
from wattline.policy.elastic.powerflow import PowerFlow
from wattline.policy.first_principle import FirstPrinciple
from wattline.policy.gandiva import Gandiva
from wattline.policy.gavel.policy import Gavel
from wattline.policy.gittins import Gittins
from wattline.policy.market.policy import Market
from wattline.policy.multi_resource import drf, tetris
from wattline.policy.ordering import Ftf, Las, Tiresias, edf, fifo, keep, preempt, priority, sjf, srsf, srtf
from wattline.policy.sia.policy import Sia
from wattline.policy.stages.batch import Batch
from wattline.policy.stages.cap import Cap
from wattline.policy.stages.demand import Demand
from wattline.policy.stages.fairshare import FairShare
from wattline.policy.stages.fuse import Fuse
from wattline.policy.stages.quota import Quota

ORDERS = ("fifo", "sjf", "srtf", "srsf", "las", "tiresias", "ftf", "edf", "priority", "gandiva")
"""Policies that only order jobs: every job gets the GPUs that it requested."""

ELASTIC = ("afs", "pollux", "powerflow", "market")
"""Policies that choose the number of GPUs, too."""

DEADLINE = ("andreas", "elasticflow", "firstprinciple")
"""Policies for jobs with deadlines, which choose the number of GPUs, too; some take long to decide."""

PROGRAMS = ("sia",)
"""Policies that choose the number of GPUs, too, by a program that takes long to solve."""

__all__ = [
    "Afs",
    "Andreas",
    "Batch",
    "Cap",
    "Chain",
    "Demand",
    "ElasticFlow",
    "FairShare",
    "FirstPrinciple",
    "Ftf",
    "Fuse",
    "Gandiva",
    "Gavel",
    "Gittins",
    "Las",
    "Market",
    "Pollux",
    "PowerFlow",
    "Quota",
    "Sia",
    "Stage",
    "Tiresias",
    "chain",
    "drf",
    "edf",
    "fifo",
    "keep",
    "plan_as_requested",
    "preempt",
    "priority",
    "rank_rows",
    "sjf",
    "spell",
    "srsf",
    "srtf",
    "tetris",
]
