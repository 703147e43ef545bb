"""Jobs as users write them: a YAML file, or the same as JSON, and the sweep that it may be."""

from wattline.jobfile.matrix import Member, check, expand
from wattline.jobfile.schema import JobFile, read_document, read_job
from wattline.jobfile.script_check import fusible

__all__ = ["JobFile", "Member", "check", "expand", "fusible", "read_document", "read_job"]
