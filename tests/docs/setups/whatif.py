"""docs/whatif.md: the records of the cluster are replaced by those of a day."""

from support.page_samples import SACCT

BEFORE = {"wattline whatif": lambda page: (page.folder / "records.txt").write_text(SACCT)}
REPLACE = {"> jobs.txt": "> all.txt; cp records.txt jobs.txt"}
