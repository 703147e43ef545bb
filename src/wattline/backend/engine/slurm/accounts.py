"""Slurm accounts of the users and teams of a service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SlurmAccount:
    """Account and QOS for sbatch; empty: the default of the user in Slurm."""

    account: str = ""
    qos: str = ""


NO_ACCOUNT = SlurmAccount()


@dataclass(frozen=True)
class AccountMap:
    """Accounts by team and by user. That of the job's team is used, else that of its user, else the default.

    Slurm itself checks that the user may use the account, if it enforces associations.
    """

    teams: Mapping[str, SlurmAccount] = field(default_factory=dict)
    users: Mapping[str, SlurmAccount] = field(default_factory=dict)

    def find(self, user: str, team: str, default: SlurmAccount) -> SlurmAccount:
        """Return account and QOS of a job; each that an entry leaves empty is that of the next one."""
        entries = (self.teams.get(team), self.users.get(user), default)
        found = [entry for entry in entries if entry is not None]
        return SlurmAccount(
            next((one.account for one in found if one.account), ""),
            next((one.qos for one in found if one.qos), ""),
        )


NO_ACCOUNTS = AccountMap()
