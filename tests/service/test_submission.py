from __future__ import annotations

import os
import pwd

import pytest

from wattline.errors import NotAllowed
from wattline.service.submission import check_own_user


def test_without_root_an_engine_runs_jobs_of_its_own_user_only() -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    check_own_user("")
    check_own_user(me)
    with pytest.raises(NotAllowed) as caught:
        check_own_user("ann")
    assert caught.value.message == f"jobs of user ann cannot run: on Slurm this service runs all jobs as {me}"
    assert caught.value.hint == "start a service of ann's own, or this one as root"
