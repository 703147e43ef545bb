"""First process of a Slurm job: claims the attempt, and supervises its ranks on this or on all nodes.

Run as `python -I -S batch_step.py FOLDER` by the batch script that `submission` builds. FOLDER is that of the
attempt, on a file system that all nodes share. An attempt that the service has declared void is left alone.

On one node this process is the supervisor itself (see `local.supervisor`). On several it starts one `srun`
for each component of the job, which starts `node_step` once per node, and passes requests on through its
standard input, line by line. Signals cannot do that: Slurm sends them to every process of a step. When one
node fails, the others are stopped. exit.json is written when all nodes have written theirs; if one has not,
its node was lost, and the attempt has vanished.

`scancel --batch --signal=TERM` asks the job to stop, USR1 kills it. A plain `scancel`, preemption and time
limits of Slurm send SIGTERM to all processes, which is a request to stop, too.

While slurmctld is away, the same requests come through a file, see `heartbeat`. While the shared disk is
full, a job that is not claimed yet waits, and the exit of one that is over is written when there is space.

Standard library and modules of `local` only.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

if __name__ == "__main__":  # isolated: the package is found last, so that it hides no standard module
    sys.path.append(os.path.abspath(__file__).rpartition(os.sep + "wattline" + os.sep)[0])

from wattline.backend.engine.local.attempt_files import CLAIM, EXIT, claim_attempt, write_json
from wattline.backend.engine.slurm.heartbeat import HEARTBEAT, keep_heartbeat
from wattline.backend.engine.slurm.node_exits import merge_exits, read_node_exits
from wattline.backend.engine.slurm.node_step import ORDER, PORT, describe_step, read_launch, supervise
from wattline.backend.engine.slurm.patient_writes import write_patiently

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from types import FrameType
    from typing import Any

SRUN_LOG = "srun.log"
_SETTLE_S = 20.0  # for exit files of other nodes to appear in the shared folder
_REQUESTS = {signal.SIGTERM: "stop", signal.SIGINT: "stop", signal.SIGUSR1: "kill"}


class Coordinator:
    """The node steps of an attempt on several nodes, started through srun."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self._launch = launch
        self._began = time.time(), time.monotonic()
        self._requests: list[str] = []
        self._request: str | None = None  # of the service or of Slurm
        self._steps: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()

    def install_signal_handlers(self) -> None:
        """Turn signals into requests from now on."""
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(read, selectors.EVENT_READ, None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in _REQUESTS:
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requests.append(_REQUESTS[signal.Signals(number)])

    def has_request(self) -> bool:
        """Return whether a signal has come."""
        return bool(self._requests)

    def run(self) -> int:
        """Run all node steps, and write exit.json; return the exit code of the job."""
        os.environ[PORT] = str(_free_port())
        os.environ[ORDER] = ",".join(_order_nodes(self._launch["nodes"]))
        with _open_log() as log:
            for flags in self._launch["srun"]:
                self._start_step(flags, log)
        running = len(self._steps)
        while running:
            for key, _ in self._selector.select():
                data = os.read(key.fd, 4096)
                if key.data is None:  # a signal
                    continue
                if not data:
                    self._selector.unregister(key.fd)
                    running -= 1
                elif any(line != b"0" for line in data.split()):  # the exit code of a node that failed
                    self._send("stop")
            while self._requests:
                self._request = self._requests.pop(0)
                self._send(self._request)
        for step in self._steps:
            step.wait()
        return self._write_exit()

    def _start_step(self, flags: list[str], log: Any) -> None:
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_step.py")
        command = ["srun", "--ntasks-per-node=1", "--export=ALL", "--kill-on-bad-exit=0", "--unbuffered"]
        command += [*flags, sys.executable, "-I", "-S", "-X", "utf8", script, os.getcwd()]
        # In a session of its own, so that no signal to this process group ends it.
        step = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        assert step.stdout is not None
        self._steps.append(step)
        self._selector.register(step.stdout.fileno(), selectors.EVENT_READ, step)

    def _send(self, request: str) -> None:
        for step in self._steps:
            assert step.stdin is not None
            with suppress(OSError):  # its nodes have ended
                step.stdin.write(f"{request}\n".encode())
                step.stdin.flush()

    def _write_exit(self) -> int:
        names = [name for name, *_ in self._launch["nodes"]]
        until = time.monotonic() + _SETTLE_S
        while (exits := read_node_exits(names)) is None and time.monotonic() < until:
            time.sleep(0.2)
        if exits is None:
            return 1
        values = merge_exits(exits, self._request, self._began[0], time.monotonic() - self._began[1])
        write_patiently(EXIT, lambda: write_json(EXIT, values))
        return int(values["code"])


def _open_log() -> Any:
    try:
        return open(SRUN_LOG, "ab")
    except OSError:
        return open(os.devnull, "ab")


def _order_nodes(nodes: list[list[Any]]) -> list[str]:
    """Return the names of the nodes, this one first: it has rank 0 and the port of the rendezvous."""
    own = os.environ.get("SLURMD_NODENAME", "")
    return sorted((name for name, *_ in nodes), key=lambda name: name != own)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def main(folder: str) -> int:
    """Claim the attempt in *folder*, and run it in this process."""
    os.chdir(folder)
    launch = read_launch()

    def claim() -> bool:
        return claim_attempt(".", **describe_step())

    if launch["srun"]:
        coordinator = Coordinator(launch)
        coordinator.install_signal_handlers()
        if not write_patiently(CLAIM, claim, gives_up=coordinator.has_request):
            return 0
        keep_heartbeat(HEARTBEAT, launch["heartbeat_s"], takes_requests=True)
        return coordinator.run()
    os.environ[PORT], os.environ[ORDER] = str(_free_port()), ",".join(_order_nodes(launch["nodes"]))
    return supervise(
        launch,
        EXIT,
        claim=claim,
        begin=lambda: keep_heartbeat(HEARTBEAT, launch["heartbeat_s"], takes_requests=True),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
