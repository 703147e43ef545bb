"""What every trace reader owes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from wattline.errors import TraceError
from wattline.trace import read


class TraceContract:
    """Inherit and set *format*, a good *text* of so many *jobs*, and a *broken* one with its bad *line*."""

    format: str
    text: str
    jobs: int
    broken: str
    line: int

    def test_it_is_recognised_and_read(self, tmp_path: Path) -> None:
        """Content alone tells the format, and every job is there, in order of submission."""
        path = tmp_path / "anything"
        path.write_text(self.text)
        trace = read(path)
        assert trace.format == self.format
        assert len(trace.jobs) == self.jobs
        assert (np.diff(trace.jobs.submit_s) >= 0).all()
        assert (trace.jobs.gpus > 0).all()
        assert len(set(trace.jobs.id.tolist())) == self.jobs

    def test_compressed_it_reads_the_same(self, tmp_path: Path) -> None:
        """gz makes no difference."""
        path = tmp_path / "anything"
        path.write_bytes(gzip.compress(self.text.encode()))
        assert len(read(path).jobs) == self.jobs

    def test_a_broken_row_is_named_by_file_and_line(self, tmp_path: Path) -> None:
        """Or skipped and counted, when that is asked for."""
        path = tmp_path / "broken"
        path.write_text(self.broken)
        with pytest.raises(TraceError) as caught:
            read(path, format=self.format)
        assert caught.value.line == self.line
        assert str(path) in caught.value.message
        assert [bad.line for bad in read(path, self.format, skip_bad=True).skipped] == [self.line]
