"""`wattline doctor --gpu-selftest`: a report on the GPUs of a machine that a user can send."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from wattline import __version__
from wattline.cli.output import confirm, print_json, print_table
from wattline.meter import Meter, open_meter
from wattline.meter.gpu_selftest import (
    SelftestResult,
    describe_untried,
    list_clocks_as_untried,
    read_gpus,
    set_caps,
)

_CONSENT = "--gpu-selftest --set-caps -y"


def run_selftest(args: argparse.Namespace) -> int:
    """Check all calls and print the report; return 1 if a call fails or there is no GPU."""
    meter = open_meter(args.meter)
    try:
        results = read_gpus(meter)
        if not args.set_caps:
            why = "not tried: --set-caps tries it, and sets the cap back"
            results += describe_untried(meter.gpus, why)
        elif args.yes or confirm(_describe_change(meter), _CONSENT):
            results += set_caps(meter.gpus)
        else:
            results += describe_untried(meter.gpus, "not tried: no consent")
        results += list_clocks_as_untried(meter.gpus)
        facts = _describe_machine(meter)
    finally:
        meter.close()
    if args.json:
        print_json({**facts, "calls": [asdict(result) for result in results]})
    else:
        _print_report(facts, results)
    return 0 if all(result.works is not False for result in results) else 1


def _describe_change(meter: Meter) -> str:
    count = len(meter.gpus)
    noun = "the GPU" if count == 1 else f"each of {count} GPUs"
    return f"Set the lowest, a middle and the highest power cap of {noun}, and then the present one again?"


def _describe_machine(meter: Meter) -> dict[str, str]:
    try:
        bindings = version("nvidia-ml-py")
    except PackageNotFoundError:
        bindings = "not installed"
    driver = str(getattr(meter, "driver", "") or "none")
    return {
        "wattline": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "nvidia-ml-py": bindings,
        "meter": meter.name,
        "driver": driver,
        "evidence": _describe_evidence(meter.name, driver),
    }


def _describe_evidence(meter: str, driver: str) -> str:
    if meter != "nvml":
        return f"none on hardware: the meter is {meter}"
    if driver.startswith("stub"):
        return "none on hardware: the driver is the stand-in of Wattline's tests"
    return "on this hardware"


def _print_report(facts: dict[str, str], results: Sequence[SelftestResult]) -> None:
    print("Wattline GPU self-test (without names of the machine, the user and serial numbers)")
    print_table((), list(facts.items()))
    print()
    rows = [
        ("all" if one.gpu < 0 else str(one.gpu), one.call, _describe_outcome(one.works), one.says)
        for one in results
    ]
    print_table(("gpu", "call", "works", ""), rows)
    failed = sum(one.works is False for one in results)
    untried = sum(one.works is None for one in results)
    print(
        f"\n{len(results)} calls: {len(results) - failed - untried} work, {failed} fail, {untried} not tried"
    )


def _describe_outcome(works: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[works]
