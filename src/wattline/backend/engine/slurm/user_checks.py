"""Checks of `wattline doctor` for jobs of other users: their ids, folders, Python and associations."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from wattline.backend.engine.slurm import batch_step
from wattline.backend.engine.slurm.accounts import SlurmAccount
from wattline.backend.engine.slurm.commands import run_command
from wattline.backend.engine.slurm.node_probe import (
    PROBE_S,
    SlurmFinding,
    build_probe_command,
    report_nodes,
)
from wattline.errors import WattlineError


def check_users(
    user: str,
    partition: str,
    nodes: int,
    folder: Path,
    python: str,
    config: Mapping[str, str],
    account: SlurmAccount,
) -> list[SlurmFinding]:
    """Check that jobs of a user run; empty: of this process' user, which the other checks have shown."""
    if os.geteuid() != 0:
        name = pwd.getpwuid(os.geteuid()).pw_name
        if user not in ("", name):
            says = f"jobs of {user} are refused: only root submits jobs of others, and this is {name}"
            return [SlurmFinding(f"user {user}", False, says)]
        says = "jobs of other users are refused: the service is not root"
        return [SlurmFinding("users", True, says), *check_association(name, account, config)]
    if not user:
        return [SlurmFinding("users", True, "jobs run by sbatch --uid; to check one: --user NAME")]
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return [SlurmFinding(f"user {user}", False, "does not exist on this machine; getent passwd")]
    findings = check_association(user, account, config)
    try:
        return [*findings, *_probe_user(entry, partition, nodes, folder, python, account)]
    except WattlineError as error:
        return [*findings, SlurmFinding(f"user {user}", False, f"no job of it could be run: {error.message}")]
    except OSError as error:
        says = f"a folder of it cannot be made in {folder}: {error}; export it with no_root_squash"
        return [*findings, SlurmFinding(f"user {user}", False, says)]


def check_association(user: str, account: SlurmAccount, config: Mapping[str, str]) -> list[SlurmFinding]:
    """Check that slurmdbd has an association of a user with its account, if Slurm enforces them."""
    if "associations" not in config.get("AccountingStorageEnforce", "").casefold():
        return []
    name = f"account of {user}"
    if shutil.which("sacctmgr") is None:
        return [SlurmFinding(name, False, "sacctmgr is not installed, and Slurm enforces associations")]
    query = ["sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", "format=Account,User"]
    try:
        rows = run_command(query).splitlines()
    except WattlineError as error:
        return [SlurmFinding(name, False, error.message)]
    accounts = sorted({row.partition("|")[0] for row in rows if row})
    wanted = account.account
    if not accounts or (wanted and wanted not in accounts):
        having = f"has only {', '.join(accounts)}" if accounts else "has none"
        says = (
            f"{user} needs an association with {wanted or 'an account'} and {having}: its jobs are refused; "
            f"sacctmgr add user {user} account={wanted or 'ACCOUNT'}"
        )
        return [SlurmFinding(name, False, says)]
    return [SlurmFinding(name, True, wanted or f"its default of {', '.join(accounts)}")]


def _probe_user(
    entry: pwd.struct_passwd, partition: str, nodes: int, folder: Path, python: str, account: SlurmAccount
) -> list[SlurmFinding]:
    """Run a job as a user on all nodes, which writes into a folder of its own below *folder*."""
    user = entry.pw_name
    own = folder / f".probe-{uuid.uuid4().hex}"
    own.mkdir(mode=0o700)
    try:
        os.chown(own, entry.pw_uid, entry.pw_gid)
        step = shlex.quote(os.path.realpath(batch_step.__file__))
        write = f"echo x > {shlex.quote(str(own))}/$SLURMD_NODENAME 2>/dev/null && echo written"
        run = f"[ -x {shlex.quote(python)} ] && [ -r {step} ] && echo found"
        known = f"id -u {shlex.quote(user)} 2>/dev/null || echo unknown"
        script = f'PATH=/usr/bin:/bin; echo "$SLURMD_NODENAME|$(id -u)|$({known})|$({write})|$({run})"'
        flags = [f"--uid={entry.pw_uid}", f"--gid={entry.pw_gid}"]
        flags += [f"--{key}={value}" for key, value in vars(account).items() if value]
        rows = run_command(build_probe_command(partition, nodes, script, flags), PROBE_S).splitlines()
    finally:
        shutil.rmtree(own, ignore_errors=True)
    found = [row.split("|") for row in rows if row.count("|") == 4]
    uid = str(entry.pw_uid)
    return [
        report_nodes(f"jobs of {user}", "run on", "run as another on", found, lambda row: row[1] == uid),
        report_nodes(f"id {uid} of {user}", "is known on", "is another on", found, lambda row: row[2] == uid),
        report_nodes(
            f"folders of {user}",
            "are written on",
            "cannot be written on",
            found,
            lambda row: row[3] == "written",
        ),
        report_nodes(
            f"{python} for {user}", "runs on", "cannot be read on", found, lambda row: row[4] == "found"
        ),
    ]
