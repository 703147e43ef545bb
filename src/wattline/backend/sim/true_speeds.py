"""Speed and power of the running jobs, as the simulated world has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.core.protocols import Models
from wattline.core.table import Labels
from wattline.models.job_classes import classify_jobs

AS_REQUESTED = (0, 0, 0, 0, 0)
"""Settings (cap_w, batch, host resources per GPU) of a job that runs as requested."""


class Lease(Protocol):
    """The part of a running job that decides its speed."""

    nodes: list[int]
    gpus: list[int]
    group: list[int]
    settings: tuple[int, ...]


class TrueSpeeds:
    """Look up the speed of jobs and the watts per GPU; each distinct question is asked once.

    Models that set `alike` are asked once per job class, others once per job. A job without a bandwidth of
    its own reads with its proportional share of its nodes' storage; its request has cores and memory.
    """

    def __init__(self, truth: Models, jobs: Jobs, nodes: Nodes) -> None:
        self._truth, self._jobs, self._nodes = truth, jobs, nodes
        self._requested_gpus: list[int] = jobs.gpus.tolist()
        self._node_kind: list[int] = nodes.kind.codes.tolist()
        read_share = nodes.host_share[HOST_RESOURCES.index("read_mib_s")]
        self._read_share: list[int] = read_share.tolist()  # MiB/s per GPU, by node; 0: unlimited
        self._fuse_key: list[str] = jobs.fuse.words()
        same_class = getattr(truth, "alike", False)
        every = np.arange(len(jobs), dtype=np.int64)
        job_class, self._examples = classify_jobs(jobs) if same_class else (every, every)
        self._job_class: list[int] = job_class.tolist()
        self._answers: dict[tuple[int, ...], tuple[float, float]] = {}
        # Most starts are on the requested GPUs: one lookup by GPU kind, share of the storage, and class.
        pairs, pair = np.unique((nodes.kind.codes, read_share), axis=1, return_inverse=True)
        self._node_pair: list[int] = pair.reshape(-1).tolist()
        self._as_requested = [self._ask_as_requested(kind, read) for kind, read in pairs.T.tolist()]

    def look_up(self, jobs: list[int], leases: Sequence[Lease]) -> list[tuple[float, float]]:
        """Return (speed, watts per GPU) of each job under its lease; a speed of 1 is "as requested"."""
        if len(jobs) == len(leases[0].nodes) == len(leases[0].group) == 1:
            job, lease = jobs[0], leases[0]
            if lease.gpus[0] == self._requested_gpus[job] and lease.settings == AS_REQUESTED:
                return [self._as_requested[self._node_pair[lease.nodes[0]]][self._job_class[job]]]
        job_class, kinds, answers = self._job_class, self._node_kind, self._answers
        questions = [
            (
                job_class[job],
                sum(lease.gpus),
                len(lease.nodes),
                len(lease.group),
                len(lease.group) > 1 and self._is_fused(lease.group),
                kinds[lease.nodes[0]],
                *lease.settings[:-1],
                lease.settings[-1] or self._find_read_share(lease.nodes),
            )
            for job, lease in zip(jobs, leases, strict=True)
        ]
        new = {
            question: job for question, job in zip(questions, jobs, strict=True) if question not in answers
        }
        if new:
            answers.update(zip(new, self._ask_questions(list(new), list(new.values())), strict=True))
        return [answers[question] for question in questions]

    def _is_fused(self, group: list[int]) -> bool:
        """Return whether jobs on the same GPUs are one fused array; else they are only packed."""
        keys = {self._fuse_key[job] for job in group}
        return len(keys) == 1 and keys != {""}

    def _find_read_share(self, nodes: list[int]) -> int:
        """Return the MiB/s per GPU that the slowest storage of *nodes* has for a job; 0: unlimited."""
        return min((self._read_share[node] for node in nodes if self._read_share[node]), default=0)

    def _ask_as_requested(self, kind: int, read_mib_s: int) -> list[tuple[float, float]]:
        """Return speed and watts per GPU of every job class on its requested GPUs of this *kind*."""
        host = np.zeros((len(HOST_RESOURCES), len(self._examples)), dtype=np.int64)
        host[HOST_RESOURCES.index("read_mib_s")] = read_mib_s
        gpus, name = self._jobs.gpus[self._examples], self._nodes.kind.names[kind]
        return self._ask(Grants.of(self._examples, gpus, host=host, kind=name))

    def _ask_questions(self, questions: list[tuple[int, ...]], jobs: list[int]) -> list[tuple[float, float]]:
        columns = np.array(questions, dtype=np.int64).T.copy()
        _, gpus, nodes, members, fused, kind, cap_w, batch, *host = columns
        return self._ask(
            Grants.of(
                np.array(jobs, dtype=np.int64),
                gpus,
                nodes,
                members=members,
                fused=fused.astype(np.bool_),
                cap_w=cap_w,
                batch=batch,
                host=np.array(host),
                kind=Labels(kind, self._nodes.kind.names),
            )
        )

    def _ask(self, grants: Grants) -> list[tuple[float, float]]:
        speed: list[float] = self._truth.speed(self._jobs, grants).tolist()
        watts: list[float] = self._truth.watts(self._jobs, grants).tolist()
        return list(zip(speed, watts, strict=True))
