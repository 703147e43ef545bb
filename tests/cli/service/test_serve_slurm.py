"""`wattline serve --engine slurm` as a process of its own, on a real Slurm cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import wattline
from support.command_line import run_command
from support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]
MAIN = "import sys, wattline.cli; sys.exit(wattline.cli.main())"
LISTENS_S, DEADLINE_S = 90.0, 120.0


class Service:
    """A service process on the partition main, which can be killed and started again."""

    def __init__(self, folder: Path, capsys: Capsys) -> None:
        self.folder, self._capsys = folder, capsys
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, version: str = "") -> None:
        """Start the service, as another *version* if one is given."""
        (self.folder / "url").unlink(missing_ok=True)
        self.folder.mkdir(exist_ok=True)
        main = f"import wattline; wattline.__version__ = {version!r}; {MAIN}" if version else MAIN
        command = [sys.executable, "-c", main, "serve", "--engine", "slurm", "--partition", "main"]
        command += ["--port", "0", "--node-meter", "none", *words]
        with open(self.folder / "serve.log", "ab") as log:
            env = {**os.environ, "PYTHONPATH": str(Path(wattline.__file__).parents[1])}
            self._process = subprocess.Popen(command, stderr=log, env=env)
        self.wait_for((self.folder / "url").exists, LISTENS_S)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "serve.log").read_text()
            assert time.monotonic() < end_s, (self.folder / "serve.log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(30) == 0

    def run(self, *words: str) -> str:
        code, out, err = run_command(self._capsys, *words)
        assert code == 0, err
        return out

    def submit(self, line: str, *flags: str) -> str:
        out = self.run("submit", "--json", *flags, "--", "sh", "-c", line)
        return str(json.loads(out)["jobs"][0]["id"])

    def states(self) -> dict[str, str]:
        jobs = json.loads(self.run("queue", "--all", "--json"))["jobs"]
        return {job["id"]: job["state"] for job in jobs}

    def count(self, state: str) -> int:
        return Counter(self.states().values())[state]


@pytest.fixture
def service(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> Iterator[Service]:
    monkeypatch.setenv("WATTLINE_DIR", str(tmp_path / "service"))
    for name in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    one = Service(tmp_path / "service", capsys)
    one.start()
    yield one
    if one._process is not None and one._process.poll() is None:
        one.kill()


def lines_of(path: Path) -> list[str]:
    return sorted(path.read_text().split()) if path.exists() else []


def test_jobs_submitted_by_the_command_line_finish_on_several_nodes(service: Service, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    line = f"echo $WATTLINE_JOB_ID-$RANK-$WORLD_SIZE-$SLURMD_NODENAME >> {ran}"
    one = service.submit(line, "--gpus", "1")
    four = service.submit(line, "--gpus", "4")
    service.wait_for(lambda: service.count("SUCCEEDED") == 2)
    words = [word.split("-") for word in lines_of(ran)]
    assert [word[:3] for word in words if word[0] == one] == [[one, "0", "1"]]
    ranks = [word for word in words if word[0] == four]
    assert [word[:3] for word in ranks] == [[four, str(rank), "4"] for rank in range(4)]
    assert len({word[3] for word in ranks}) == 2


def test_nothing_is_lost_and_nothing_runs_twice_when_the_service_is_killed(
    service: Service, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    ran, go, before = tmp_path / "ran", tmp_path / "go", len(slurm_cluster.completed_jobs)
    wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
    line = f"echo began-$WATTLINE_JOB_ID >> {ran}; {wait}; echo ended-$WATTLINE_JOB_ID >> {ran}"
    jobs = [service.submit(line) for _ in range(12)]
    for running in (1, 8):
        service.wait_for(lambda count=running: service.count("RUNNING") >= count)
        service.kill()
        service.start()
    go.touch()
    service.wait_for(lambda: service.count("SUCCEEDED") == 12)
    assert lines_of(ran) == sorted([f"{what}-{job}" for what in ("began", "ended") for job in jobs])
    # By Slurm's own record no job ran twice, and those that were cancelled never began.
    slurm_cluster.wait_for(lambda: not slurm_cluster.run("squeue", "-h").strip())
    done = slurm_cluster.completed_jobs[before:]
    ended = Counter(job["Name"] for job in done if job["JobState"] == "COMPLETED")
    assert ended == Counter({f"wl-{name}": 1 for name in jobs})


def test_running_jobs_survive_a_killed_slurmctld_that_has_saved_its_state(
    service: Service, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    line = f"while [ ! -e {go} ]; do sleep 0.2; done; echo $WATTLINE_JOB_ID >> {ran}"
    jobs = [service.submit(line) for _ in range(4)]
    service.wait_for(lambda: service.count("RUNNING") == 4)
    began_s = time.time()
    held = slurm_cluster.run("sbatch", "--parsable", "--hold", "--wrap=true").strip()  # a change to save
    saved = slurm_cluster.folder / "state" / "job_state"
    service.wait_for(lambda: saved.exists() and saved.stat().st_mtime > began_s)
    slurm_cluster.kill_controller()
    slurm_cluster.start_controller()
    go.touch()
    service.wait_for(lambda: service.count("SUCCEEDED") == 4)
    slurm_cluster.run("scancel", held)
    assert lines_of(ran) == sorted(jobs)


def test_jobs_survive_a_killed_node(service: Service, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    line = f"while [ ! -e {go} ]; do sleep 0.2; done; echo $WATTLINE_JOB_ID-$RANK >> {ran}"
    large = [service.submit(line, "--gpus", "2") for _ in range(4)]
    service.wait_for(lambda: service.count("RUNNING") == 4)
    small = [service.submit(line) for _ in range(2)]
    slurm_cluster.kill_node("n3")
    slurm_cluster.wait_for(slurm_cluster.states)
    slurm_cluster.run("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=test")

    def is_settled() -> bool:
        """Return whether Slurm runs as many jobs as the service, on the three nodes that are left."""
        known = slurm_cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%N").split()
        return "n3" not in known and len(known) == service.count("RUNNING") >= 3

    service.wait_for(is_settled)
    go.touch()
    service.wait_for(lambda: service.count("SUCCEEDED") == 6)
    ranks = [(job, rank) for job in large for rank in range(2)] + [(job, 0) for job in small]
    assert lines_of(ran) == sorted(f"{job}-{rank}" for job, rank in ranks)


def test_an_upgrade_leaves_jobs_running_and_they_finish_once(service: Service, tmp_path: Path) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
    line = f"echo began-$WATTLINE_JOB_ID >> {ran}; {wait}; echo ended-$WATTLINE_JOB_ID >> {ran}"
    jobs = [service.submit(line, "--gpus", "2") for _ in range(5)]  # the last one has to wait
    service.wait_for(lambda: service.count("RUNNING") == 4)
    service.terminate()
    service.start(version="0.2.0")
    url = (service.folder / "url").read_text().split()[0]
    with urlopen(f"{url}/api/v1/openapi.json") as answer:
        assert json.load(answer)["info"]["version"] == "0.2.0"
    assert service.count("RUNNING") == 4
    go.touch()
    service.wait_for(lambda: service.count("SUCCEEDED") == 5)
    ranks = [f"{what}-{job}" for what in ("began", "ended") for job in jobs for _ in range(2)]
    assert lines_of(ran) == sorted(ranks)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine", "slurm"), "--engine slurm needs a partition"),
        (("--partition", "main"), "--partition is for Slurm, and the engine is local"),
        (("--engine", "slurm", "--partition", "main", "--gpus", "simulated:2xa100"), "Slurm has the GPUs"),
        (("--engine", "slurm", "--partition", "nope"), "partition 'nope'"),
    ],
)
def test_wrong_flags_are_explained(
    slurm_cluster: SlurmCluster,
    tmp_path: Path,
    capsys: Capsys,
    flags: tuple[str, ...],
    message: str,
) -> None:
    code, _, err = run_command(capsys, "serve", "--dir", str(tmp_path / "d"), "--port", "0", *flags)
    assert code != 0
    assert message in err
    assert not (tmp_path / "d" / "url").exists()
