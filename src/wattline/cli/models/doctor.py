"""`wattline doctor`: check which meters, GPU limits and tools work on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import add_json_argument
from wattline.cli.models.doctor_text import print_findings, print_slurm
from wattline.cli.models.machine_checks import check_gpu, check_meter, check_tools
from wattline.cli.models.meter_argument import add_meter_argument
from wattline.cli.output import print_json
from wattline.errors import ConfigError
from wattline.meter import open_meter
from wattline.meter.caps.record import CapRecord, read_records, state_folder
from wattline.meter.caps.restore import RestoreResult, restore_orphaned_caps
from wattline.meter.counter_renewal import measure_counter_periods
from wattline.service.client import service_folder

if TYPE_CHECKING:
    from wattline.backend.engine.slurm.node_probe import SlurmFinding

_METERS = ("nvml", "rapl", "zeusd")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline doctor`."""
    add_meter_argument(parser)
    parser.add_argument(
        "--partition", default="", metavar="NAME", help="check a partition of Slurm, too, with a short job"
    )
    parser.add_argument("--dir", metavar="DIR", help="directory of the service, which all nodes must share")
    parser.add_argument(
        "--user", default="", metavar="NAME", help="check that jobs of this user run on Slurm, too (as root)"
    )
    parser.add_argument(
        "--node-python", default="", metavar="PATH", help="Python on the nodes (default: this one)"
    )
    parser.add_argument(
        "--gpu-selftest",
        action="store_true",
        help="check every driver call that Wattline relies on, and print a report to send",
    )
    parser.add_argument(
        "--set-caps", action="store_true", help="with --gpu-selftest: also set power caps, and set them back"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="with --set-caps: do not ask")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Restore caps left behind by dead processes, then check everything and print the findings."""
    if args.gpu_selftest:
        from wattline.cli.models.gpu_selftest import run_selftest

        return run_selftest(args)
    if args.set_caps:
        raise ConfigError("--set-caps is for the self-test", "wattline doctor --gpu-selftest --set-caps")
    restored = restore_orphaned_caps()
    held = read_records(state_folder())
    meter = open_meter(args.meter)
    try:
        periods = measure_counter_periods(meter)
        uuids = {record.uuid for record in held}
        gpus = [check_gpu(gpu, uuids, periods.get(gpu.uuid)) for gpu in meter.gpus]
        name = meter.name
    finally:
        meter.close()
    meters = [check_meter(kind) for kind in _METERS]
    tools = check_tools()
    slurm = _check_slurm(args) if args.partition else []
    if args.json:
        print_json(
            {
                "meter": name,
                "meters": [asdict(status) for status in meters],
                "gpus": [asdict(status) for status in gpus],
                **_encode_caps(restored, held),
                **tools,
                **({"slurm": [asdict(finding) for finding in slurm]} if args.partition else {}),
            }
        )
    else:
        print_findings(name, meters, gpus, restored, held, tools)
        print_slurm(slurm)
    return 0 if all(finding.works for finding in slurm) else 1


def _check_slurm(args: argparse.Namespace) -> list[SlurmFinding]:
    from wattline.backend.engine.slurm.accounts import NO_ACCOUNT
    from wattline.backend.engine.slurm.checks import check_cluster
    from wattline.service.settings import read_settings

    folder = service_folder(args.dir)
    accounts = read_settings(folder / "settings.toml").accounts
    return check_cluster(
        args.partition,
        folder,
        user=args.user,
        account=accounts.find(args.user, "", NO_ACCOUNT),
        python=args.node_python or sys.executable,
    )


def _encode_caps(
    restored: Sequence[RestoreResult], held: Sequence[CapRecord]
) -> dict[str, list[dict[str, Any]]]:
    left_behind = [
        {
            "uuid": one.record.uuid,
            "pid": one.record.owner.pid,
            "before_w": one.record.before_w,
            "restored": one.restored,
            "problem": one.problem or None,
        }
        for one in restored
    ]
    in_force = [
        {
            "uuid": record.uuid,
            "pid": record.owner.pid,
            "host": record.owner.host,
            "before_w": record.before_w,
            "set_w": record.set_w[-1],
            "lives": record.owner.is_alive(),
        }
        for record in held
    ]
    return {"left_behind": left_behind, "held": in_force}
