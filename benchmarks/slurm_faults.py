"""Two hundred jobs on a real Slurm of 64 nodes on this host, while services, slurmctld and nodes are killed.

    python benchmarks/slurm_faults.py           las+demand, then powerflow and a budget
    python benchmarks/slurm_faults.py --policy las+demand --nodes 8 --jobs 40

A job counts to its number in a file of its own, one line a second, and goes on from the last line after a
restart. Half of the jobs are elastic. During a run the service is killed three times, slurmctld once, and two
nodes with all processes, one of which comes back. Judged are

    the files             each number exactly once, in order: nothing lost, and no two attempts at once
    jobcomp of Slurm      no attempt of a job but the last COMPLETED; slurmctld that was killed may have
                          lost the end of a job, takes it for running, and records what ends that
    scontrol of Slurm     sampled all the time: no GPU of a node in two running jobs

The run log of Wattline is not read. The command exits with 1 if one of these does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.slurm_cluster import SlurmCluster
from wattline.cluster import parse_cluster
from wattline.errors import WattlineError
from wattline.service.client import Client, find_service

COUNT = """
file=$1 last=$2
lines() { if [ -e $file ]; then wc -l < $file; else echo 0; fi; }
if [ "${RANK:-0}" != 0 ]; then while [ $(lines) -lt $last ]; do sleep 2; done; exit 0; fi
echo $SLURM_JOB_ID >> $file.attempts
number=$(lines)
while [ $number -lt $last ]; do
  sleep 1; number=$((number + 1)); echo $number >> $file
done
"""
GPUS = (1, 1, 1, 2, 2, 4, 8, 16)
MODELS = ("resnet50", "vgg16", "bert", "gpt2")
LIMIT_S = 900.0


class KilledService:
    """`wattline serve --engine slurm` in a process that can be killed and started again."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder, self._policy = folder, policy
        self.start()

    def start(self) -> None:
        """Start the service, and return when it takes requests."""
        (self.folder / "url").unlink(missing_ok=True)
        self.folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "wattline", "serve", "--dir", str(self.folder), "--port", "0"]
        command += ["--engine", "slurm", "--partition", "main", "--node-meter", "none"]
        with open(self.folder / "serve.log", "ab") as log:
            self._process = subprocess.Popen([*command, "--policy", self._policy], stderr=log)
        while not (self.folder / "url").exists():
            assert self._process.poll() is None, (self.folder / "serve.log").read_text()[-2000:]
            time.sleep(0.05)

    @property
    def client(self) -> Client:
        """A client of the process that runs now."""
        return find_service(folder=str(self.folder))

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the process as an operator would."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def count_states(self) -> Counter[str]:
        """Return the number of jobs in each state; empty: the service does not respond."""
        try:
            return Counter(job["state"] for job in self.client.jobs())
        except WattlineError:
            return Counter()


class GpuSampler(threading.Thread):
    """Asks Slurm all the time which job has which GPU."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(daemon=True)
        self._cluster, self._ends = cluster, threading.Event()
        self.samples, self.most_gpus = 0, 0
        self.shared: list[str] = []

    def run(self) -> None:
        """Sample until it is stopped."""
        while not self._ends.wait(1.0):
            try:
                text = self._cluster.run("scontrol", "-o", "-d", "show", "job", timeout_s=20.0)
            except (AssertionError, subprocess.TimeoutExpired):
                continue  # slurmctld was killed
            taken = Counter(find_gpus(text))
            self.samples, self.most_gpus = self.samples + 1, max(self.most_gpus, len(taken))
            self.shared += [f"{node} GPU {gpu}" for (node, gpu), jobs in taken.items() if jobs > 1]

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        self.join()


def find_gpus(text: str) -> Iterator[tuple[str, int]]:
    """Yield node and index of each GPU of each running job in the output of `scontrol -o -d show job`."""
    for line in text.splitlines():
        if "JobState=RUNNING" not in line:
            continue
        for nodes, indices in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=\S*?\(IDX:([^)]*)\)", line):
            for node in expand_nodes(nodes):
                for index in expand_numbers(indices):
                    yield node, index


def expand_nodes(text: str) -> list[str]:
    """Return the names in n[1-2,5]."""
    stem, _, numbers = text.rstrip("]").partition("[")
    return [f"{stem}{number}" for number in expand_numbers(numbers)] if numbers else [text]


def expand_numbers(text: str) -> list[int]:
    """Return the numbers in 1-2,5."""
    pairs = (part.partition("-") for part in text.split(",") if part)  # a job that ends has no GPU left
    return [n for low, _, high in pairs for n in range(int(low), int(high or low) + 1)]


def submit_jobs(service: KilledService, folder: Path, count: int, seed: int) -> dict[str, tuple[Path, int]]:
    """Submit all jobs, and return file and last number of each by its id."""
    rng, jobs = random.Random(seed), {}
    script = folder / "count.sh"
    script.write_text(COUNT)
    for name in range(count):
        gpus, last, path = rng.choice(GPUS), rng.randint(5, 40), folder / f"job{name}"
        job = {
            "run": ["sh", str(script), str(path), str(last)],
            "model": rng.choice(MODELS),
            "elastic": name % 2 == 0,
            "resources": {"gpus": gpus, "time": "10m"},
        }
        answer = service.client.post(
            "/jobs", job, {"held": False, "allow_unsatisfiable": False}, f"job{name}"
        )
        jobs[answer["jobs"][0]["id"]] = (path, last)
    return jobs


def kill_things(cluster: SlurmCluster, service: KilledService, count: int) -> list[str]:
    """Kill everything in turn while jobs run, and return what was killed and how many jobs ran then."""
    killed = []

    def note(what: str, done: int) -> None:
        """Wait until *done* jobs have succeeded, and note that something is killed now."""
        while (states := service.count_states())["SUCCEEDED"] < done or not states["RUNNING"]:
            if states["SUCCEEDED"] + states["FAILED"] + states["CANCELLED"] == count:
                raise SystemExit(f"all jobs had ended before {what} was killed")
            time.sleep(0.2)
        killed.append(f"{what} at {states['RUNNING']} running jobs, {states['SUCCEEDED']} of {count} done")
        print(f"  {killed[-1]}", flush=True)

    note("service", 0)
    service.kill()
    service.start()
    note("node n2", count // 20)
    cluster.kill_node("n2")
    note("service", count // 10)
    service.kill()
    service.start()
    note("slurmctld", count // 6)
    cluster.kill_controller()
    time.sleep(2.0)  # commands hang meanwhile
    cluster.start_controller()
    note("node n5", count // 4)
    cluster.kill_node("n5")
    note("service", count // 3)
    service.kill()
    cluster.start_node("n2")
    service.start()
    return killed


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file; none: it does not exist."""
    return path.read_text().splitlines() if path.exists() else []


def judge(cluster: SlurmCluster, jobs: dict[str, tuple[Path, int]], sampler: GpuSampler) -> list[str]:
    """Return what is wrong, by the files of jobs and by Slurm's records."""
    wrong = [f"{gpu} was in two running jobs" for gpu in sampler.shared]
    attempts = lost_ends = 0
    ended = {row["JobId"]: row["JobState"] for row in cluster.completed_jobs}
    for job, (path, last) in jobs.items():
        numbers = [int(line) for line in read_lines(path)]
        ids = read_lines(path.with_suffix(".attempts"))  # of Slurm, in order
        attempts += len(ids)
        if numbers != list(range(1, last + 1)):
            wrong.append(f"job {job} counted {numbers}, expected 1 to {last}")
        states = [ended.get(one, "not recorded") for one in ids]
        lost_ends += states[-1:] != ["COMPLETED"]
        if "COMPLETED" in states[:-1] or not states:
            wrong.append(f"the attempts of job {job} ended as {states}, expected COMPLETED of the last only")
    records = Counter(ended.values())
    print(f"  {attempts} attempts began, of {len(jobs)} jobs; jobcomp: {dict(records)}")
    print(f"  {lost_ends} jobs counted to their end, which slurmctld has lost, or their node was killed then")
    print(f"  {sampler.samples} samples of scontrol, at most {sampler.most_gpus} GPUs in use")
    return wrong


def run_policy(policy: str, budget: str, args: argparse.Namespace) -> bool:
    """Run all jobs under one policy; return whether nothing was wrong."""
    print(
        f"{policy}{f' and {budget}' if budget else ''}, {args.nodes} nodes of {args.gpus} GPUs:", flush=True
    )
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    with SlurmCluster(args.nodes, args.gpus) as cluster:
        os.environ.update(cluster.environment)
        service = KilledService(folder / "service", policy)
        sampler = GpuSampler(cluster)
        sampler.start()
        try:
            if budget:
                service.client.put("/budgets", {"budgets": [budget], "overshoot": 1.0})
            began_s = time.monotonic()
            jobs = submit_jobs(service, folder, args.jobs, args.seed)
            kill_things(cluster, service, args.jobs)
            states = wait_for_end(service, args.jobs)
            print(f"  after {time.monotonic() - began_s:.0f} s: {dict(states)}; files in {folder}")
            cluster.wait_for(lambda: not cluster.run("squeue", "-h").strip(), 120.0)
        finally:
            sampler.stop()
            service.stop()
        wrong = judge(cluster, jobs, sampler)
    for sentence in wrong:
        print(f"  WRONG: {sentence}")
    return not wrong and states["SUCCEEDED"] == args.jobs


def wait_for_end(service: KilledService, count: int) -> Counter[str]:
    """Wait until all jobs have succeeded or one has failed, and return how many are in each state."""
    end_s = time.monotonic() + LIMIT_S
    while (states := service.count_states())["SUCCEEDED"] < count and not states["FAILED"]:
        if time.monotonic() > end_s:
            break
        time.sleep(0.5)
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", help="only this one")
    parser.add_argument("--budget", default="", help="of --policy")
    args = parser.parse_args()
    nodes = parse_cluster(f"{args.nodes}xa100:{args.gpus}")
    idle_w = float(nodes.idle_node_w.sum())
    busy_w = float((nodes.base_w + nodes.gpus * nodes.busy_w).sum())
    half = f"{(idle_w + busy_w) / 2e3:.1f}kW"  # between nothing and everything
    runs = [(args.policy, args.budget)] if args.policy else [("las+demand", ""), ("powerflow", half)]
    results = [run_policy(policy, budget, args) for policy, budget in runs]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
