"""A real Slurm cluster on this host: munged, slurmctld and one slurmd per node, with fake GPUs.

    with SlurmCluster(nodes=4, gpus=2) as cluster:
        cluster.run("sbatch", "--wrap", "true")

The daemons run in the foreground as children of this process, and the kernel kills them with it. All files
are in a new folder below /tmp: munged refuses a socket in a folder that other users cannot enter, and paths
of sockets must be short. A GPU is a link to /dev/null, for which Slurm sets CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.slurm_database import (
    config_lines,
    create_database,
    database_command,
    grant_access,
    write_database_config,
)

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
DEADLINE_S = 60.0
_PDEATHSIG = 1

_CONFIG = """\
ClusterName=wattline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
KillWait=30
MinJobAge=300
SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.log
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdParameters=config_overrides
Licenses=watts:1000
{more}
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} Sockets=1 \
CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{kind}:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10
PartitionName=one Nodes=n1 MaxTime=INFINITE
PartitionName=two Nodes=n[1-2] MaxTime=INFINITE
"""


def require_slurm(*more: str) -> None:
    """Skip the test where Slurm, or one of *more* programs, is not installed; under CI=true fail."""
    missing = [name for name in (*PROGRAMS, *more) if shutil.which(name) is None]
    if missing:
        message = f"{', '.join(missing)} are missing: type scripts/install-system-packages"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


class SlurmCluster:
    """Nodes n1, n2 … with *gpus* GPUs each; *config* are more lines of slurm.conf.

    With *database* there are slurmdbd and MariaDB, and associations and limits are enforced; needs root.

    The partitions main and urgent have all nodes, one and two have the first one and two.
    """

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 2,
        *,
        kind: str = "a100",
        config: Sequence[str] = (),
        database: bool = False,
    ) -> None:
        self._database = database
        self.nodes, self.gpus, self.kind, self._config = nodes, gpus, kind, config
        self.folder = Path()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # The kernel kills a daemon with the thread that has started it.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="slurm-cluster")

    def __enter__(self) -> SlurmCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which Slurm's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def completed_jobs(self) -> list[dict[str, str]]:
        """Slurm's own record of the jobs that have ended, as written by its plugin jobcomp/filetxt."""
        try:
            lines = (self.folder / "log" / "jobcomp.log").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]

    def run(self, *command: str, timeout_s: float = DEADLINE_S) -> str:
        """Run a command of Slurm, and return its output."""
        env = {**os.environ, **self.environment}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start all daemons, and return when all nodes are idle."""
        self.folder = Path(tempfile.mkdtemp(prefix="wattline-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        for name in ("run", "state", "spool", "log"):
            (self.folder / name).mkdir(mode=0o755)
        for index in range(self.gpus):
            (self.folder / f"nvidia{index}").symlink_to("/dev/null")
        port = _find_ports(self.nodes + 3)
        self._write_config(port)
        try:
            self._start_munge()
            if self._database:
                self._start_database(port + self.nodes + 1)
            self.start_controller("-c")
            for number in range(1, self.nodes + 1):
                self.start_node(f"n{number}")
            self.wait_for(lambda: self.states() == {f"n{n + 1}": "idle" for n in range(self.nodes)})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all jobs and daemons, and delete the folder."""
        last = ["slurmdbd", "mariadbd", "munged"]
        for name in sorted(self._daemons, key=lambda name: last.index(name) if name in last else -1):
            self._end(name)
        for pid in self._find_job_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._spawner.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_node(self, name: str, *flags: str) -> None:
        """Start the slurmd of a node."""
        self._spawn(name, "slurmd", "-D", "-N", name, *flags)

    def kill_node(self, name: str, *, with_jobs: bool = True) -> None:
        """Kill the slurmd of a node as if it lost power; without its jobs, they run on."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        if with_jobs:
            processes = self._find_job_processes(name)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once: none records the end of another
                for pid in processes:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)

    def pause_node(self, name: str) -> None:
        """Let the slurmd of a node hang; its jobs run on."""
        self._daemons[name].send_signal(signal.SIGSTOP)

    def continue_node(self, name: str) -> None:
        """Let a paused slurmd go on."""
        self._daemons[name].send_signal(signal.SIGCONT)

    def start_controller(self, *flags: str) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", "slurmctld", "-D", *flags)

    def kill_controller(self) -> None:
        """Kill slurmctld with SIGKILL."""
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def save_state(self) -> Path:
        """Stop slurmctld, which saves its state, start it again, and return a copy of the state."""
        self._end("slurmctld")
        del self._daemons["slurmctld"]
        copy = Path(tempfile.mkdtemp(prefix="saved-", dir=self.folder))
        shutil.copytree(self.folder / "state", copy, dirs_exist_ok=True)
        self.start_controller()
        self.wait_for(lambda: len(self.states()) == self.nodes and "unknown" not in self.states().values())
        return copy

    def return_to_state(self, copy: Path) -> None:
        """Kill slurmctld, and start it with an older state.

        It forgets all jobs since then, and gives their ids to others, as after a loss of its last writes.
        """
        self.kill_controller()
        shutil.rmtree(self.folder / "state")
        shutil.copytree(copy, self.folder / "state")
        self.start_controller()
        self.wait_for(self.states)

    def pause_controller(self) -> None:
        """Stop slurmctld without an end: commands hang."""
        self._daemons["slurmctld"].send_signal(signal.SIGSTOP)

    def continue_controller(self) -> None:
        """Let a paused slurmctld go on."""
        self._daemons["slurmctld"].send_signal(signal.SIGCONT)

    def states(self) -> dict[str, str]:
        """Return the state of each node by its name; empty: slurmctld does not respond."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            rows = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", timeout_s=5.0).splitlines()
            return dict(row.split() for row in rows)
        return {}

    def wait_for(self, condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
        """Wait until a condition is true."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end_s, f"{condition} is not true after {timeout_s} s; see {self.folder}"
            time.sleep(0.05)

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until all nodes are idle again."""
        jobs = self.run("squeue", "-h", "-o", "%A").split()
        if jobs:
            self._try_run("scancel", *jobs)
        self.wait_for(
            lambda: not self.run("squeue", "-h").strip() and set(self.states().values()) == {"idle"}
        )

    def repair(self) -> None:
        """Start what was killed, cancel all jobs, and wait until all nodes are idle."""
        if "slurmctld" not in self._daemons:
            self.start_controller()
        self.continue_controller()
        for name in (f"n{number}" for number in range(1, self.nodes + 1)):
            if name not in self._daemons:
                self.start_node(name)
            self.continue_node(name)
        self.wait_for(self.states)
        unusable = [name for name, state in self.states().items() if state.startswith(("down", "drain"))]
        if unusable:
            with suppress(AssertionError):  # it has come back by itself
                self.run("scontrol", "update", f"NodeName={','.join(unusable)}", "State=RESUME")
        self.cancel_all()

    def _start_database(self, port: int) -> None:
        write_database_config(self.folder, port, port + 1)
        create_database(self.folder)
        self._spawn("mariadbd", *database_command(self.folder, port + 1))
        self.wait_for(lambda: grant_access(self.folder))
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self.wait_for(lambda: self._try_run("sacctmgr", "-i", "add", "cluster", "wattline"))

    def _try_run(self, *command: str) -> bool:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run(*command, timeout_s=5.0)
            return True
        return False

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        run, socket_file = self.folder / "run", self.folder / "run" / "munge.sock"
        files = {"key": key, "socket": socket_file, "pid": run / "munged.pid", "seed": run / "munge.seed"}
        files["log"] = self.folder / "log" / "munged.log"
        flags = [f"--{name}{'' if name == 'socket' else '-file'}={path}" for name, path in files.items()]
        self._spawn("munged", "munged", "-F", *flags)
        self.wait_for(socket_file.exists)

    def _spawn(self, name: str, *command: str) -> None:
        self._spawner.submit(self._start_daemon, name, command).result()

    def _start_daemon(self, name: str, command: Sequence[str]) -> None:
        if name in self._daemons:  # another thread was first
            return
        with open(self.folder / "log" / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def _end(self, name: str) -> None:
        daemon = self._daemons[name]
        daemon.terminate()
        try:
            daemon.wait(5.0)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _write_config(self, port: int) -> None:
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName=n[1-{self.nodes}] Name=gpu Type={self.kind}"
            f" File={self.folder}/nvidia[0-{self.gpus - 1}]\n"
        )
        values = {
            "host": socket.gethostname().partition(".")[0],
            "user": "root" if os.geteuid() == 0 else os.environ.get("USER", str(os.geteuid())),
            "folder": self.folder,
            "port": port,
            "first": port + 1,
            "last": port + self.nodes,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "kind": self.kind,
            "cpus": 4 * self.gpus,
            "memory": 16_000 * self.gpus,
            "more": "\n".join((*self._config, *self._database_lines(port))),
        }
        (self.folder / "slurm.conf").write_text(_CONFIG.format(**values))

    def _database_lines(self, port: int) -> Sequence[str]:
        return config_lines(self.folder, port + self.nodes + 1) if self._database else ()

    def _find_job_processes(self, node: str = "") -> set[int]:
        """Return the slurmstepd of this cluster, or of one node, and all processes below them."""
        parents = _list_parents()
        place = f"{self.folder}/log/slurmd-{node}.log" if node else f"{self.folder}/log/slurmd-"
        found = {pid for pid in parents if _is_stepd(pid) and place in _open_files(pid)}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _find_ports(count: int) -> int:
    """Return the first of *count* free ports below those that the kernel gives to clients."""
    for _ in range(100):
        first = random.SystemRandom().randrange(20_000, 32_000 - count)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError(f"no {count} free ports in a row below 32000")


def _list_parents() -> dict[int, int]:
    """Return the parent of each process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                parents[int(name)] = int(
                    Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1]
                )
    return parents


def _is_stepd(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "comm").read_text().startswith("slurmstepd")
    except OSError:
        return False


def _open_files(pid: int) -> str:
    names = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                names.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return "\n".join(names)
