"""Flags of sbatch, and the batch script, for an attempt on named nodes.

A split with equally many GPUs on all nodes is one job with `--gres`. An uneven one is a heterogeneous job
with a component per node: for `--gpus=4 --nodes=2` Slurm would choose the split itself.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.local.launch_file import User
from wattline.backend.engine.local.user_lookup import own_user
from wattline.backend.engine.slurm.accounts import NO_ACCOUNTS, AccountMap, SlurmAccount
from wattline.backend.engine.slurm.node_list import NodeList, host_share

_SLACK_S = 120.0  # between the supervisor's time limit and Slurm's


@dataclass(frozen=True)
class NodeShare:
    """GPUs, cores and memory of an attempt on one node."""

    name: str
    address: str
    gpus: int
    cpus: int
    mem_mib: int


@dataclass(frozen=True)
class SlurmOptions:
    """Partition, account and meter of a service's jobs; empty: not given."""

    partition: str
    reservation: str = ""
    account: str = ""
    qos: str = ""
    gpu_kind: str = ""  # of GPUs with a type in Slurm that is not in the library
    meter: str = "auto"  # as each node opens it; none: energy is not metered
    heartbeat_s: float = 5.0  # between two signs of life of an attempt
    accounts: AccountMap = NO_ACCOUNTS  # by user and team; *account* and *qos* are for all others
    limit_wait_s: float = 30.0  # for a limit of the account, before the GPUs are given back
    node_python: str = sys.executable  # on the nodes
    container: str = ""  # as for `wrap_command`; empty: the engine looks for it

    def flags(self) -> list[str]:
        """Return the flags of sbatch."""
        named = {"reservation": self.reservation, "account": self.account, "qos": self.qos}
        return [
            f"--partition={self.partition}",
            *(f"--{key}={value}" for key, value in named.items() if value),
        ]

    def for_job(self, user: str, team: str) -> SlurmOptions:
        """Return the options with the account and QOS of a user's job; empty: of the service's own user."""
        found = self.accounts.find(user or own_user(), team, SlurmAccount(self.account, self.qos))
        return replace(self, account=found.account, qos=found.qos)


def build_comment(service: str, job: str, attempt: int, user: str = "") -> str:
    """Return the name by which an attempt is found in Slurm's queue; its ids may be reused.

    It ends with the *user* of the job unless that is the service's own: `parse_jobs` ignores others.
    """
    return f"wl:{service}:{job}:{attempt}" + (f":{user}" if user else "")


def find_shares(node_list: NodeList, attempt: AttemptRecord, mem_gib_per_gpu: float = 0.0) -> list[NodeShare]:
    """Return the shares of an attempt in the order of its allocation."""
    settings, shares = attempt.settings, []
    for node, gpus in attempt.allocation:
        cpus, mem_mib = host_share(node_list, node, gpus, settings.mcpus, settings.mem_mib)
        if mem_gib_per_gpu:
            mem_mib = math.ceil(mem_gib_per_gpu * 1024 * gpus)
        shares.append(NodeShare(node_list.names[node], node_list.addresses[node], gpus, cpus, mem_mib))
    return shares


def group_shares(shares: Sequence[NodeShare]) -> list[list[NodeShare]]:
    """Return the components of a job: one if all nodes have equal shares, else one per node."""
    equal = {(share.gpus, share.cpus, share.mem_mib) for share in shares}
    return [list(shares)] if len(equal) == 1 else [[share] for share in shares]


def build_flags(
    shares: Sequence[NodeShare],
    options: SlurmOptions,
    *,
    name: str,
    comment: str,
    output: str,
    time_s: float | None,
    after: Sequence[str] = (),
    user: User | None = None,
) -> list[str]:
    """Return the flags of sbatch; *after* are ids of Slurm jobs that must have ended before.

    *user* runs the job, which only root can request; None: that of this process.
    """
    common = [
        *options.flags(),
        *([] if user is None else [f"--uid={user.uid}", f"--gid={user.gid}"]),
        "--chdir=/",
        f"--job-name={name}",
        f"--comment={comment}",
        "--no-requeue",
        f"--output={output}",
        "--open-mode=append",
        f"--time={'UNLIMITED' if time_s is None else math.ceil(time_s / 60)}",
    ]
    if after:
        common.append(f"--dependency=afterany:{':'.join(after)}")
    flags: list[str] = []
    for component in group_shares(shares):
        flags += [":"] if flags else []
        flags += [*common, *_resource_flags(component)]
    return flags


def _resource_flags(component: Sequence[NodeShare]) -> list[str]:
    share = component[0]
    return [
        f"--nodes={len(component)}",
        f"--nodelist={','.join(one.name for one in component)}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{share.gpus}",
        f"--cpus-per-task={share.cpus}",
        f"--mem={share.mem_mib}M",
    ]


def build_srun_flags(shares: Sequence[NodeShare]) -> list[list[str]]:
    """Return the flags of one srun per component; empty: on one node none is needed."""
    if len(shares) == 1:
        return []
    components = group_shares(shares)
    flags = []
    for number, component in enumerate(components):
        group = [f"--het-group={number}"] if len(components) > 1 else []
        share = component[0]
        flags.append(
            [*group, f"--nodes={len(component)}", f"--cpus-per-task={share.cpus}", f"--gres=gpu:{share.gpus}"]
        )
    return flags


def build_script(command: Sequence[str]) -> str:
    """Return the batch script: the command replaces the shell, so that signals reach it."""
    return f"#!/bin/sh\nexec {shlex.join(command)}\n"


def slurm_time_s(time_limit_s: float | None, grace_s: float, max_time_s: float | None) -> float | None:
    """Return the time limit for Slurm, which leaves the supervisor time to end the job; None: unlimited."""
    if time_limit_s is None:
        return max_time_s
    wanted_s = time_limit_s + grace_s + _SLACK_S
    return wanted_s if max_time_s is None else min(wanted_s, max_time_s)
