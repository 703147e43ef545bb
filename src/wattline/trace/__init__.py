"""Jobs from the world: traces of clusters in many formats, and made-up ones."""

from wattline.trace.formats import FORMATS
from wattline.trace.read import Trace, read, read_trace
from wattline.trace.synth import synth
from wattline.trace.write import write_trace

__all__ = ["FORMATS", "Trace", "read", "read_trace", "synth", "write_trace"]
