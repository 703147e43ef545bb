"""slurmdbd and MariaDB of a Slurm cluster on this host, for accounts and limits.

MariaDB has a data folder of its own and listens on 127.0.0.1 only. slurmdbd reads slurmdbd.conf beside
slurm.conf.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

DATABASE_PROGRAMS = ("mariadbd", "mariadb", "mariadb-install-db", "slurmdbd", "sacctmgr")

_CONFIG = """\
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
"""
_GRANT = "create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1'"


def config_lines(folder: Path, port: int) -> Sequence[str]:
    """Return the lines of slurm.conf for a slurmdbd at *port*, with all limits enforced."""
    return (
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={port}",
        f"AccountingStoragePass={folder}/run/munge.sock",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStoreFlags=job_comment",
    )


def write_database_config(folder: Path, port: int, sql_port: int) -> None:
    """Write slurmdbd.conf, which only its user may read."""
    path = folder / "slurmdbd.conf"
    host = socket.gethostname().partition(".")[0]
    path.write_text(_CONFIG.format(folder=folder, host=host, port=port, sql_port=sql_port))
    path.chmod(0o600)


def create_database(folder: Path) -> None:
    """Create an empty data folder of MariaDB."""
    data = folder / "db"
    data.mkdir()
    shutil.chown(data, "mysql")
    command = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--tmpdir={data}"]
    command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def database_command(folder: Path, sql_port: int) -> list[str]:
    """Return the command of the server."""
    data = folder / "db"
    flags = {
        "tmpdir": data,
        "user": "mysql",
        "datadir": data,
        "socket": data / "s.sock",
        "pid-file": data / "p.pid",
        "port": sql_port,
        "bind-address": "127.0.0.1",
        "innodb-buffer-pool-size": "64M",
        "innodb-log-file-size": "16M",
        "innodb-lock-wait-timeout": 900,
        "innodb-flush-log-at-trx-commit": 0,
    }
    return ["mariadbd", "--no-defaults", *(f"--{name}={value}" for name, value in flags.items())]


def grant_access(folder: Path) -> bool:
    """Let slurmdbd in; False: the server does not respond yet."""
    command = ["mariadb", "--no-defaults", "-uroot", f"--socket={folder}/db/s.sock", "-e", _GRANT]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def create_user(name: str) -> int:
    """Create a Unix user without a home, or find one of an earlier test; return its id."""
    if subprocess.run(["id", "-u", name], capture_output=True, check=False).returncode:
        subprocess.run(
            ["useradd", "--no-create-home", "--home-dir", "/", name], check=True, capture_output=True
        )
    return int(subprocess.run(["id", "-u", name], capture_output=True, check=True, text=True).stdout)


def delete_user(name: str) -> None:
    """Delete a user of `create_user`."""
    subprocess.run(["userdel", "--force", name], check=False, capture_output=True, env=os.environ)
