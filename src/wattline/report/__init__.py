"""How runs went: the figures of a log, several compared, a page with plots. All pure but `write_html`.

The package and its main function share a name, and importing the package puts it where `wattline`
shows the function; so the package itself can be called, and `wattline.report(log)` always works.
"""

from __future__ import annotations

import sys
from types import ModuleType

from wattline.loop.runlog import Log
from wattline.report.compare import Comparison, compare
from wattline.report.digest import Digest, digest
from wattline.report.headline import headline_svg
from wattline.report.metrics import Report, report
from wattline.report.page import write_html
from wattline.report.series import Series, Steps, series

__all__ = [
    "Comparison",
    "Digest",
    "Report",
    "Series",
    "Steps",
    "compare",
    "digest",
    "headline_svg",
    "report",
    "series",
    "write_html",
]


class _Callable(ModuleType):
    def __call__(self, log: Log) -> Report:
        return report(log)


sys.modules[__name__].__class__ = _Callable
