"""docs/operating.md: a service with jobs, which is backed up and restored."""

import getpass
import sqlite3
import sys

SERVICE = True
REPLACE = {
    "/opt/wattline/bin/pip": "pip",
    "/opt/wattline/bin/wattline serve": f"{sys.executable} -m wattline serve",
    "/opt/wattline/bin/": "",
    "python3 -m venv /opt/wattline": "true",
    "--user ann": f"--user {getpass.getuser()}",
    "listen 443 ssl": "listen 127.0.0.1:8443",
    "    ssl_certificate": "    # ssl_certificate",
}


def run_jobs(page):
    page.run_shell(
        "wattline submit --wait -- echo first; wattline submit --team vision --wait -- echo second"
    )


def check_restored(page):
    printed = page.run_shell("wattline queue --all --dir restored; wattline logs 2 --dir restored")
    assert printed.count("SUCCEEDED") >= 2
    assert printed.rstrip().endswith("second")
    with sqlite3.connect(page.folder / "restored" / "state.db") as database:
        kinds = {kind for (kind,) in database.execute("SELECT kind FROM event")}
    assert {"accepted", "started", "ended"} <= kinds
    page.run_shell("wattline audit --dir restored --json | grep ann")


BEFORE = {"wattline backup": run_jobs}
AFTER = {"--dir restored": check_restored}
