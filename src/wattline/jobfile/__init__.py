"""Job files: a job as YAML or JSON, and the sweep of its matrix."""

from wattline.jobfile.matrix import SweepMember, check_matrix, expand
from wattline.jobfile.schema import JobFile, check_retries, read_document, read_job
from wattline.jobfile.script_check import find_fusible_script

__all__ = [
    "JobFile",
    "SweepMember",
    "check_matrix",
    "check_retries",
    "expand",
    "find_fusible_script",
    "read_document",
    "read_job",
]
