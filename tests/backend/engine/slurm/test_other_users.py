"""Jobs of two Unix users on a real Slurm cluster with slurmdbd: their folders, accounts and limits."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.controllers import open_client
from support.slurm_cluster import SlurmCluster, require_slurm
from support.slurm_database import DATABASE_PROGRAMS, create_user, delete_user
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.slurm.accounts import AccountMap, SlurmAccount
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.checks import check_cluster
from wattline.backend.engine.slurm.orders import write_orders
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.jobfile import read_document
from wattline.service.controller import Controller
from wattline.service.explain import describe_reason
from wattline.service.job_logs import LogReader
from wattline.service.storage.projection import JobRow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root submits jobs of other users"),
]
ANN, BOB = "wattline-ann", "wattline-bob"
PYTHON = "/usr/bin/python3"  # that of the tests may be in a home that other users cannot enter
DEADLINE_S = 90.0
ACCOUNTS = AccountMap(
    {"vision": SlurmAccount("vision"), "strict": SlurmAccount("guests", "strict")},
    {BOB: SlurmAccount("guests")},
)


@pytest.fixture(scope="module")
def accounting_cluster() -> Iterator[SlurmCluster]:
    """Ann has the account vision; Bob has guests, with one GPU, and the QOS strict, which refuses more."""
    require_slurm(*DATABASE_PROGRAMS, PYTHON)
    with SlurmCluster(nodes=2, gpus=2, database=True) as cluster:
        for name in (ANN, BOB):
            create_user(name)
        for words in (
            "add qos strict Flags=DenyOnLimit MaxTRESPerJob=gres/gpu=1",
            "add account vision",
            "add account guests GrpTRES=gres/gpu=1",
            f"add user {ANN} account=vision",
            f"add user {BOB} account=guests qos=normal,strict",
        ):
            cluster.run("sacctmgr", "-i", *words.split())
        yield cluster
        for name in (ANN, BOB):
            delete_user(name)


@pytest.fixture
def cluster(accounting_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    for name, value in accounting_cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield accounting_cluster
    accounting_cluster.repair()


class Service:
    """A controller on the cluster, in a folder that all users can enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def open(self, limit_wait_s: float = 3600.0) -> None:
        options = SlurmOptions(
            "main",
            meter="none",
            heartbeat_s=0.5,
            accounts=ACCOUNTS,
            limit_wait_s=limit_wait_s,
            node_python=PYTHON,
        )
        self.controller = Controller(self.folder, slurm=options)
        self.controller.start()

    def submit(self, user: str, command: str, gpus: int = 1, **more: Any) -> str:
        document = {"run": ["sh", "-c", command], "resources": {"gpus": gpus}, **more}
        return self.controller.submit(read_document(document, "job"), user)[0].id

    def job(self, id: str) -> JobRow:
        return self.controller.job(id)

    def reason(self, id: str) -> str:
        return describe_reason(self.controller.view(), self.job(id))

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, [
                (row.state, row.message) for row in self.controller.store.jobs()
            ]
            time.sleep(0.05)


@pytest.fixture
def service(cluster: SlurmCluster) -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="wattline-service-", dir="/tmp"))
    folder.chmod(0o755)
    one = Service(folder)
    yield one
    one.controller.stop()
    shutil.rmtree(folder)


def run_as(user: str, *command: str) -> subprocess.CompletedProcess[str]:
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_job_runs_as_its_user_and_only_that_user_can_read_its_files(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "1")
    command = 'id -u; id -g; env; touch "$WATTLINE_CHECKPOINT_DIR/saved"'
    jobs = {user: service.submit(user, command) for user in (ANN, BOB)}
    service.until(lambda: all(service.job(id).end_s for id in jobs.values()))
    for user, id in jobs.items():
        assert service.job(id).state == "SUCCEEDED"
        (folder,) = attempt_folders(service.folder, id)
        uid = create_user(user)
        log = run_as(user, "cat", f"{folder}/rank0.log").stdout.splitlines()
        assert log[0] == str(uid)
        assert {f"USER={user}", f"LOGNAME={user}", "HOME=/"} <= set(log)
        assert not any("SECRET_OF_THE_SERVICE" in line for line in log)
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (uid, 0o700)
        assert (folder / "exit.json").stat().st_uid == uid
        other = {ANN: BOB, BOB: ANN}[user]
        for path in (folder, f"{folder}/rank0.log", f"{service.folder}/jobs/{id}/checkpoint"):
            assert "Permission denied" in run_as(other, "ls", str(path)).stderr
        lease = folder.with_name("1.lease.json")
        assert lease.stat().st_uid == 0
        assert run_as(user, "sh", "-c", f"echo x > {lease}").returncode


def test_a_job_of_another_user_is_found_again_and_stopped(service: Service, cluster: SlurmCluster) -> None:
    id = service.submit(ANN, "exec sleep 1000")
    service.until(lambda: service.job(id).state == "RUNNING")
    service.controller.stop()
    service.open()
    assert service.job(id).state == "RUNNING"
    service.controller.cancel(id)
    service.until(lambda: service.job(id).state == "CANCELLED")
    service.until(lambda: not cluster.run("squeue", "-h").strip())
    assert service.job(id).starts == 1


def test_a_limit_of_the_account_is_the_reason_and_does_not_keep_gpus_from_others(
    service: Service, cluster: SlurmCluster
) -> None:
    bobs = service.submit(BOB, "true", gpus=2)
    with open_client(service.controller) as client:
        service.until(lambda: client.get(f"/api/v1/jobs/{bobs}").json()["reason"].startswith("Slurm lets"))
        explanation = client.get(f"/api/v1/jobs/{bobs}/explain").json()
    assert explanation["reason"] == "Slurm lets it wait: a limit of its account (AssocGrpGRES)."
    assert (explanation["code"], explanation["expected"]) == ("engine", None)
    service.controller.stop()
    service.open(limit_wait_s=0.5)
    service.until(lambda: service.job(bobs).retry_at_s)
    assert "for a limit of its account (AssocGrpGRES), so its GPUs were given back. It is retried" in (
        service.reason(bobs)
    )
    assert (service.job(bobs).state, service.job(bobs).kill_count) == ("PENDING", 0)
    anns = service.submit(ANN, "id -u", gpus=4)  # all GPUs, on two nodes
    service.until(lambda: service.job(anns).end_s)
    (folder,) = attempt_folders(service.folder, anns)
    logs = [(folder / f"rank{rank}.log").read_text() for rank in range(4)]
    assert logs == [f"{create_user(ANN)}\n"] * 4
    service.until(lambda: not cluster.run("squeue", "-h").strip())


def test_refusals_of_sbatch_are_the_reason_with_the_words_of_slurm(
    service: Service, cluster: SlurmCluster
) -> None:
    over_limit = service.submit(BOB, "true", gpus=2, team="strict")
    no_association = service.submit(BOB, "true", team="vision")
    service.until(lambda: service.job(over_limit).retry_at_s and service.job(no_association).end_s)
    assert "Job violates accounting/QOS policy" in service.reason(over_limit)
    assert "(user wattline-bob, account guests). It is retried in" in service.reason(over_limit)
    assert (service.job(over_limit).state, service.job(over_limit).kill_count) == ("PENDING", 0)
    assert service.job(no_association).state == "FAILED"
    assert "Invalid account or account/partition combination specified" in service.reason(no_association)
    assert "(user wattline-bob, account vision)" in service.reason(no_association)
    prefix = service.controller.backend.engine._tracker.prefix  # type: ignore[attr-defined]
    assert prefix not in cluster.run("squeue", "-h", "-t", "all", "-o", "%k")  # sbatch was called once each


def test_a_job_with_a_comment_of_another_user_counts_for_nothing(
    service: Service, cluster: SlurmCluster
) -> None:
    id = service.submit(ANN, "exec sleep 1000")
    service.until(lambda: service.job(id).state == "RUNNING")
    (comment,) = cluster.run("squeue", "-h", "-o", "%k").split()
    sbatch = ("sbatch", "-o", "/dev/null", f"--comment={comment}", "--account=guests", "--wrap", "true")
    env = (f"{name}={value}" for name, value in cluster.environment.items())
    assert run_as(BOB, "env", *env, *sbatch).returncode == 0
    cluster.wait_for(lambda: "COMPLETED" in cluster.run("squeue", "-h", "-t", "all", "-u", BOB, "-o", "%T"))
    polled_s = time.monotonic()
    poller = service.controller.backend.engine._poller  # type: ignore[attr-defined]
    service.until(lambda: poller.latest.began_s > polled_s)
    assert poller.latest.jobs[comment].user == ANN
    assert service.job(id).state == "RUNNING"


def test_a_job_that_puts_links_into_its_folder_sees_and_changes_no_file_of_the_service(
    service: Service,
) -> None:
    secret = service.folder / "secret"
    secret.write_text("of the service\n")
    secret.chmod(0o600)
    names = "rank0.log slurm.log events.jsonl orders.json request heartbeat"
    links = f"cd $WATTLINE_ATTEMPT; for n in {names}; do ln -sf {secret} $n; done; exec sleep 1000"
    id = service.submit(ANN, links)
    service.until(lambda: service.job(id).state == "RUNNING")
    (folder,) = attempt_folders(service.folder, id)
    service.until((folder / "orders.json").is_symlink)
    assert b"".join(LogReader(folder / "rank0.log").read()) == b""
    assert AttemptFolder(folder).log_tail() == ""
    write_orders(folder, 200.0)
    assert run_as(ANN, "cat", f"{folder}/orders.json").stdout == '{"cap_w": 200.0}'
    service.controller.cancel(id)
    service.until(lambda: service.job(id).state == "CANCELLED")
    assert secret.read_text() == "of the service\n"


def test_doctor_checks_the_jobs_of_a_user(cluster: SlurmCluster, service: Service) -> None:
    found = {one.name: one for one in check_cluster("main", service.folder, user=ANN, python=PYTHON)}
    assert [one for one in found.values() if not one.works] == []
    assert found[f"account of {ANN}"].says == "its default of vision"
    assert found[f"jobs of {ANN}"].says == "run on 2 nodes"
    assert found[f"folders of {ANN}"].says == "are written on 2 nodes"
    vision = SlurmAccount("vision")
    found = {one.name: one for one in check_cluster("main", service.folder, user=BOB, account=vision)}
    assert "needs an association with vision and has only guests" in found[f"account of {BOB}"].says
    assert "Invalid account" in found[f"user {BOB}"].says
