"""Contract of trace readers."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import read
from wattline.trace.read_counts import BROKEN


class TraceContract:
    """Tests of a trace reader.

    A subclass sets *format*, a valid *text*, its number of *jobs*, an invalid text *broken* and its bad
    *line*.
    """

    format: str
    text: str
    jobs: int
    broken: str
    line: int

    def test_it_is_recognised_and_read(self, tmp_path: Path) -> None:
        """Check that the format is detected from the content and all jobs are read in order of submission."""
        path = tmp_path / "anything"
        path.write_text(self.text)
        trace = read(path)
        assert trace.format == self.format
        assert len(trace.jobs) == self.jobs
        assert (np.diff(trace.jobs.submit_s) >= 0).all()
        assert (trace.jobs.gpus > 0).all()
        assert len(set(trace.jobs.id.tolist())) == self.jobs
        assert trace.counts.jobs == self.jobs
        assert trace.recorded is None or len(trace.recorded) == self.jobs

    def test_a_gzipped_trace_reads_the_same(self, tmp_path: Path) -> None:
        """Check that a gzipped file has the same jobs."""
        path = tmp_path / "anything"
        path.write_bytes(gzip.compress(self.text.encode()))
        assert len(read(path).jobs) == self.jobs

    def test_an_invalid_row_is_reported_with_file_and_line(self, tmp_path: Path) -> None:
        """Check the error, and that `skip_bad` skips and lists the row."""
        path = tmp_path / "broken"
        path.write_text(self.broken)
        with pytest.raises(TraceError) as caught:
            read(path, format=self.format)
        assert caught.value.line == self.line
        assert str(path) in caught.value.message
        rest = read(path, self.format, skip_bad=True)
        assert [bad.line for bad in rest.skipped] == [self.line]
        assert rest.counts.dropped[BROKEN] == 1
