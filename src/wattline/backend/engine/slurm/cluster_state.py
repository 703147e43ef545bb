"""State of Slurm at one time: the jobs of a service, and the states of nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from wattline.backend.engine.local.user_lookup import own_user
from wattline.backend.engine.slurm.commands import run_command
from wattline.backend.engine.slurm.node_list import count_gpus

_SEPARATOR = "\x1f"  # of columns: no name or reason contains it
_JOB_FORMAT = _SEPARATOR.join(("%i", "%T", "%r", "%N", "%u", "%k"))
_NODE_COLUMNS = {"NodeList": 64, "StateLong": 32, "CPUsState": 40, "AllocMem": 24, "GresUsed": 512}
_NODE_FORMAT = ",".join(f"{name}:{width}" for name, width in _NODE_COLUMNS.items())
_POWER_FLAGS = {"~": "off", "%": "off", "!": "off", "#": "booting"}  # at the end of a state of sinfo
_POWER_WORDS = {"powered_down": "off", "powering_down": "off", "power_down": "off"} | dict.fromkeys(
    ("powering_up", "power_up", "powered_up"), "booting"
)
_PENDING = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
_ACTIVE = frozenset(("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"))
# "unknown" is not among them: so are all nodes for a moment after a start of slurmctld.
_DOWN = frozenset(("down", "fail", "error", "inval", "future"))


@dataclass(frozen=True)
class SlurmJob:
    """One row of squeue; a heterogeneous job is the row of its first component."""

    id: str
    state: str
    reason: str
    nodes: str
    user: str
    comment: str

    @property
    def is_pending(self) -> bool:
        """True before its processes are started."""
        return self.state in _PENDING

    @property
    def is_over(self) -> bool:
        """True when its processes have ended on all nodes that respond."""
        return self.state not in _PENDING and self.state not in _ACTIVE


@dataclass(frozen=True)
class NodeUse:
    """Resources of a node that jobs hold."""

    gpus: int = 0
    cpus: int = 0
    mem_mib: int = 0


@dataclass(frozen=True)
class SlurmState:
    """The jobs by comment and the states of nodes, as of a time between *began_s* and *ended_s*.

    Both are times of `time.monotonic`. Of several jobs with one comment one that is not over is kept, else
    the latest.
    """

    began_s: float = -1.0
    ended_s: float = -1.0
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)
    node_states: Mapping[str, str] = field(default_factory=dict)
    node_use: Mapping[str, NodeUse] = field(default_factory=dict)

    def is_down(self, node: str) -> bool:
        """Return whether Slurm takes a node and its jobs for lost."""
        return base_state(self.node_states.get(node, "")) in _DOWN

    def is_unknown(self, node: str) -> bool:
        """Return whether slurmctld has not heard from a node yet."""
        return base_state(self.node_states.get(node, "")) in ("", "unknown", "unk")

    def power_state(self, node: str) -> str:
        """Return off, booting or on: Slurm's power saving ends and boots nodes, which are not lost then."""
        state = self.node_states.get(node, "").casefold()
        return _POWER_WORDS.get(base_state(state)) or _POWER_FLAGS.get(state[-1:], "on")

    def is_drained(self, node: str) -> bool:
        """Return whether a node accepts no new jobs; those that run there go on."""
        state = base_state(self.node_states.get(node, ""))
        return state.startswith("drain") or state == "failing"


def base_state(state: str) -> str:
    """Return a state of sinfo in lower case without the flags at its end, such as the "*" of "down*"."""
    return re.sub(r"[^a-z_]+$", "", state.casefold())


def read_state(prefix: str, partition: str, timeout_s: float) -> SlurmState:
    """Ask Slurm for all jobs with comments that start with *prefix*, also ended ones, and for node states."""
    began_s = time.monotonic()
    rows = run_command(["squeue", "-h", "-t", "all", "-p", partition, "-o", _JOB_FORMAT], timeout_s)
    nodes = run_command(["sinfo", "-h", "-N", "-p", partition, "-O", _NODE_FORMAT], timeout_s)
    states, use = parse_nodes(nodes)
    return SlurmState(began_s, time.monotonic(), parse_jobs(rows, prefix), states, use)


def parse_jobs(text: str, prefix: str, own: str = "") -> dict[str, SlurmJob]:
    """Return the jobs by comment, of a heterogeneous job the first component.

    Any user can write any comment: a job counts only if it is of the user that its comment names, or, without
    one, of the service's *own*; empty: that of this process.
    """
    own = own or own_user()
    jobs: dict[str, SlurmJob] = {}
    for line in text.split("\n"):
        if prefix not in line:
            continue
        columns = line.split(_SEPARATOR)
        if len(columns) != 6 or not columns[5].startswith(prefix):
            continue
        job_id, state, reason, nodes, user, comment = columns
        lead, _, component = job_id.partition("+")
        owner = comment.split(":")[4:] or [own]
        if component not in ("", "0") or [user] != owner:
            continue
        job, known = SlurmJob(lead, state, reason, nodes, user, comment), jobs.get(comment)
        if known is None or (known.is_over, int(lead)) > (job.is_over, int(known.id)):
            jobs[comment] = job
    return jobs


def parse_nodes(text: str) -> tuple[dict[str, str], dict[str, NodeUse]]:
    """Return the state of each node, and the resources of it that jobs hold."""
    states, use = {}, {}
    places = list(pairwise(accumulate(_NODE_COLUMNS.values(), initial=0)))
    for line in text.splitlines():
        name, state, cpus, mem_mib, gres = (line[start:end].strip() for start, end in places)
        if name:
            states[name] = state
            allocated = cpus.partition("/")[0]  # of allocated/idle/other/total
            use[name] = NodeUse(
                count_gpus(gres),
                int(allocated) if allocated.isdecimal() else 0,
                int(mem_mib) if mem_mib.isdecimal() else 0,
            )
    return states, use
