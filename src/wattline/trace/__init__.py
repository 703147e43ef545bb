"""Traces of clusters in many formats, and synthetic traces, as `Jobs`."""

from wattline.trace.combined import combined
from wattline.trace.formats.registry import FORMATS
from wattline.trace.reader import Trace, read, read_trace
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.synthetic import synth
from wattline.trace.writer import write_trace

__all__ = ["FORMATS", "RecordedSchedule", "Trace", "combined", "read", "read_trace", "synth", "write_trace"]
