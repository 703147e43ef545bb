"""Files of docs/optimize.md."""

from support.page_samples import JOBS

FILES = {"jobs.csv": JOBS, "tariff.csv": "time_s,price\n0,0.1\n28800,0.3\n72000,0.1\n"}
