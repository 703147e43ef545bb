"""The account that a job runs as."""

from __future__ import annotations

import os
import pwd

from wattline.backend.engine.local.launch_file import User
from wattline.errors import ConfigError


def look_up_user(name: str) -> User | None:
    """Return the account that a job runs as; None: that of this process."""
    if not name or os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user {name!r} does not exist on this machine") from None
    if entry.pw_uid == os.geteuid():
        return None
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return User(entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, name)


def own_user() -> str:
    """Return the name of the account of this process, as squeue shows it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
