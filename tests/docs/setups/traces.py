"""Names and files of docs/traces.md."""

import gzip
import tarfile

from support.page_samples import JOBS

TABLE = "job,arrival_s,gpu_count,service_sec\n" + "".join(f"{n},{n * 60},1,600\n" for n in range(9))
FILES = {"jobs.csv": TABLE}


def prepare(folder):
    (folder / "philly_jobs.csv.gz").write_bytes(gzip.compress(JOBS.encode()))
    (folder / "cluster05.csv").write_text(JOBS)
    with tarfile.open(folder / "raw-traces.tar.gz", "w:gz") as archive:
        archive.add(folder / "cluster05.csv", "cluster05.csv")
