"""The page of reproduced experiments."""

from __future__ import annotations

import math

from wattline.papers.reproduction_page import render_reproductions
from wattline.papers.results import MEASURED, PUBLIC, SYNTHETIC, CaseResult, PaperResult, Sample

EVIL = "<img src=x onerror=alert(1)>"


def build_case_result(data: str, case: str = "a40 cifar100") -> PaperResult:
    row = CaseResult(case, data, Sample((70.0, 72.0)), Sample((60.0, 61.0)))
    return PaperResult(
        "zeus", "Zeus (NSDI'23): energy", "15.3 to 75.8 % less energy", " %", 15.3, 75.8, "as published",
        "two seeds", (row,), ("a note",),
    )  # fmt: skip


def test_the_page_has_claim_original_ours_and_data() -> None:
    text = render_reproductions([build_case_result(SYNTHETIC)], 2, False, "10 s on 2 cores, load 1.0")
    assert "Zeus claims 15.3 to 75.8 % less energy; here 71.0 %, on a synthetic stand-in." in text
    assert "60.5 % (60.0..61.0)" in text
    assert text.count("SYNTHETIC") == 2
    assert "load 1.0" in text
    assert '<svg class="chart"' in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_names_cannot_write_into_the_page() -> None:
    assert EVIL not in render_reproductions([build_case_result(PUBLIC, EVIL)], 2, False, "")


def test_a_quick_page_warns_and_a_left_out_paper_is_named() -> None:
    absent = PaperResult("hfta", "HFTA: x", "up to 15.1x", "x", math.nan, 15.1, "", "", left_out="no torch")
    text = render_reproductions([absent], 2, True, "")
    assert "Hfta was not run: no torch." in text
    assert "the figures mean nothing" in text


def test_widths_are_drawn_as_curves() -> None:
    cases = tuple(CaseResult(f"MLP x{w}", MEASURED, Sample((float(w),)), Sample((1.0,))) for w in (2, 4))
    one = PaperResult(
        "hfta", "HFTA (MLSys'21): x", "up to 15.1x", "x", math.nan, 15.1, "by hand", "CPU", cases,
        figure="widths", extra={"widths": {"MLP": [(2, 2.0), (4, 4.0)]}},
    )  # fmt: skip
    text = render_reproductions([one], 1, False, "")
    assert "members of the array" in text
    assert "HFTA claims up to 15.1x; here 2.00 to 4.00x, on this machine." in text
