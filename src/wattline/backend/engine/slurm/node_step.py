"""Process of a Slurm step on one node: starts the ranks of this node, and records their exit.

Run as `python -I -S node_step.py FOLDER` by `batch_step` through srun, and part of it on one node. The ranks
have torchrun's variables. Rank 0 is on the node of the batch step. Standard library and modules of `local`
only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

if __name__ == "__main__":  # isolated: the package is found last, so that it hides no standard module
    sys.path.append(os.path.abspath(__file__).rpartition(os.sep + "wattline" + os.sep)[0])

from wattline.backend.engine.local.attempt_files import (
    CLAIM,
    LAUNCH,
    check_format,
    process_identity,
    write_json,
)
from wattline.backend.engine.local.supervisor import Supervisor
from wattline.backend.engine.slurm.cap_restoration import restore_limits
from wattline.backend.engine.slurm.heartbeat import keep_heartbeat, node_heartbeat
from wattline.backend.engine.slurm.node_exits import node_claim_file, node_exit_file
from wattline.backend.engine.slurm.patient_writes import write_patiently

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from collections.abc import Callable, Mapping
    from typing import Any

PORT, ORDER = "WATTLINE_STEP_PORT", "WATTLINE_STEP_NODES"
"""Variables from the batch step to the node steps: a free port of the first node, and the nodes in order."""

_PACKAGE = os.path.abspath(__file__).rpartition(os.sep + "wattline" + os.sep)[0]
_METER_END_S = 10.0  # for the last reading of the meter
_SIGNAL_LAG_S = 1.0  # in which Slurm signals all processes of a job
_PASSED = ("SLURM", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "TMPDIR")


def read_launch() -> dict[str, Any]:
    """Return launch.json of the current folder; exit with a message if a newer version has written it."""
    with open(LAUNCH, encoding="utf-8") as file:
        launch: dict[str, Any] = json.load(file)
    if problem := check_format(launch, LAUNCH):
        raise SystemExit(problem)
    return launch


def describe_step() -> dict[str, Any]:
    """Return what a claim tells about this step: Slurm's job id, the node and the indices of its GPUs."""
    env = os.environ
    return {
        "job_id": env.get("SLURM_HET_JOB_ID") or env.get("SLURM_JOB_ID", ""),
        "node": env.get("SLURMD_NODENAME", ""),
        "host": socket.gethostname(),
        "gpus": env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", ""),
    }


def build_ranks(
    launch: Mapping[str, Any], order: list[str], node: str, port: str
) -> tuple[list[dict[str, str]], int]:
    """Return the variables of the ranks on *node*, and the number of its first rank; no rank: none is here.

    *order* are all nodes, the first one with rank 0. `launch["ranks_per"]` is "gpu", "node" for a command
    that starts its own ranks, or "job" for a single process on the first node.
    """
    gpus = {name: count for name, _, count in launch["nodes"]}
    address = {name: address for name, address, _ in launch["nodes"]}[order[0]]
    if len(order) == 1:
        address = "127.0.0.1"
    per_gpu = launch["ranks_per"] == "gpu"
    counts = [
        gpus[name] if per_gpu else int(launch["ranks_per"] == "node" or not at)
        for at, name in enumerate(order)
    ]
    at = order.index(node)
    first, count, total = sum(counts[:at]), counts[at], sum(counts)
    shared = {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "WORLD_SIZE": str(total),
        "LOCAL_WORLD_SIZE": str(count),
    }
    if launch["ranks_per"] == "node":
        # torchrun takes its flags from these; its own ranks get all the other variables from it.
        shared |= {
            "PET_NNODES": str(len(order)),
            "PET_NODE_RANK": str(at),
            "PET_NPROC_PER_NODE": str(gpus[node]),
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": port,
        }
    shared |= {"GROUP_RANK": str(at), "GROUP_WORLD_SIZE": str(len(order))}
    return [{**shared, "RANK": str(first + n), "LOCAL_RANK": str(n)} for n in range(count)], first


def supervise(
    launch: dict[str, Any],
    exit_file: str,
    *,
    claim: Callable[[], bool],
    begin: Callable[[], None],
    requests: int | None = None,
) -> int:
    """Run the ranks of this node, and return the exit code; 0 if *claim* returns False.

    *begin* is called when the attempt is claimed. *requests* is a file with requests, one per line.
    """
    order = os.environ.pop(ORDER).split(",")
    node = os.environ.get("SLURMD_NODENAME") or order[0]
    ranks, first = build_ranks(launch, order, node, os.environ.pop(PORT))
    passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
    launch = {**launch, "ranks": ranks, "env": {**launch["env"], **passed}}
    supervisor = Supervisor(launch, first, exit_file, _SIGNAL_LAG_S)
    supervisor.install_signal_handlers()
    if requests is not None:
        supervisor.read_requests(requests)
    if not write_patiently(CLAIM, claim, gives_up=supervisor.has_request):
        return 0
    begin()
    restore_limits(launch["env"], _PACKAGE)
    meter = _start_meter(launch, node)
    if meter is not None:
        supervisor.spare(meter.pid)
    supervisor.run()
    restore_limits(launch["env"], _PACKAGE)
    if meter is not None:
        _end_meter(meter)
    try:
        with open(exit_file, encoding="utf-8") as file:
            return int(json.load(file)["code"])
    except (OSError, ValueError):
        return 1


def _start_meter(launch: Mapping[str, Any], node: str) -> subprocess.Popen[bytes] | None:
    """Start the process that reads the meter of this node, if there may be one."""
    if not launch["meter"]:
        return None
    command = [sys.executable, "-m", "wattline.backend.engine.slurm.node_meter", launch["meter"], node]
    env = {**launch["env"], "PYTHONPATH": _PACKAGE}
    try:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return None


def _end_meter(meter: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        meter.terminate()
    until = time.monotonic() + _METER_END_S
    while meter.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    with suppress(OSError):
        meter.kill()


def main(folder: str) -> int:
    """Run the ranks of this node for the attempt in *folder*, and print the exit code for the batch step."""
    os.chdir(folder)
    launch = read_launch()
    node = os.environ["SLURMD_NODENAME"]

    def claim() -> bool:
        write_json(node_claim_file(node), {**process_identity(), **describe_step()})
        return True

    def begin() -> None:
        keep_heartbeat(node_heartbeat(node), launch["heartbeat_s"])

    code = supervise(launch, node_exit_file(node), claim=claim, begin=begin, requests=0)
    print(code, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
