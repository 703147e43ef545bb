"""`wattline shadow --slurm`: watch a live Slurm, and report what a policy would have saved."""

from __future__ import annotations

import argparse
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from wattline.cli.arguments import add_json_argument, non_negative_int, with_unit
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import check_writable, notify, print_json
from wattline.cli.simulation.scenario_arguments import add_decision_arguments, add_stop_arguments
from wattline.errors import ConfigError
from wattline.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from wattline.core.protocols import Placer, Policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline shadow`."""
    add, seconds = parser.add_argument, with_unit(parse_seconds)
    add(
        "--slurm",
        action="store_true",
        required=True,
        help="watch the Slurm that this machine's commands find",
    )
    add("--partition", required=True, metavar="NAME", help="Slurm partition to watch; sinfo lists them")
    add("--gpu-kind", default="", metavar="KIND", help="kind of GPUs with a type that is not in the library")
    add(
        "--policy",
        metavar="P",
        help="policy to compare with, as for simulate (default las; powerflow with --budget)",
    )
    add(
        "--for",
        type=seconds,
        dest="for_s",
        metavar="T",
        help="time to watch, as in 8h (default: until Ctrl-C)",
    )
    add(
        "--every", type=seconds, default=5.0, metavar="T", help="time between two looks at Slurm (default 5s)"
    )
    add_decision_arguments(parser)
    add_stop_arguments(parser)
    add(
        "--seed", type=non_negative_int, default=0, metavar="N", help="seed of all random numbers (default 0)"
    )
    add("--log", metavar="FILE", help="write the decisions of the policy as a run log (.jsonl or .jsonl.gz)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Watch, simulate, and print the report."""
    progress = announce_compilation()
    from wattline.backend.engine.slurm.commands import only_reading
    from wattline.backend.sim.faults import Overheads
    from wattline.cli.simulation.models_argument import read_models
    from wattline.cli.simulation.savings import compare_with_record
    from wattline.cli.simulation.shadow_watch import watch_partition
    from wattline.loop.log_writer import write_log

    progress.finish()
    if not (args.for_s is None or 0 < args.for_s < math.inf) or not 0 < args.every < math.inf:
        raise ConfigError("--for and --every must be above 0")
    policy, place = _parse_policy(args)  # raises before the watch, which may last for days
    check_writable(args.log)
    with only_reading(), _stop_at_signal() as stop:
        record = watch_partition(args.partition, args.gpu_kind, args.for_s, args.every, stop)
    notify(f"watched for {format_seconds(record.ended_s - record.began_s)}; simulating")
    result, log = compare_with_record(
        record.build_case(args.checkpoint_interval, args.min_runtime),
        policy,
        place,
        read_models(args.models, args.span_penalty),
        Overheads(restart_s=args.restart_cost, rescale_s=args.rescale_cost),
        args,
    )
    if args.log:
        write_log(log, args.log)
        notify(f"log: {args.log}")
    if args.json:
        print_json(result.as_dict())
    else:
        print(result)
    return 0


def _parse_policy(args: argparse.Namespace) -> tuple[Policy, Placer]:
    """Return policy and placer, with the budgets; the default of `--policy` is written into *args*."""
    from wattline.cli.simulation.models_argument import read_models
    from wattline.cli.simulation.policy_argument import parse_policy_and_placer
    from wattline.energy.budgets import parse_budget
    from wattline.policy.knobs import build_budget_error, has_knob, set_knob

    args.policy = args.policy or ("powerflow" if args.budget else "las")
    policy, place = parse_policy_and_placer(args.policy, args.place, args.backfill)
    read_models(args.models, args.span_penalty)
    if args.budget:
        if not has_knob(policy, "budgets"):
            raise build_budget_error(args.policy)
        policy = set_knob(policy, "budgets", tuple(map(parse_budget, args.budget)))
    return policy, place


@contextmanager
def _stop_at_signal() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; the second one interrupts."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        stop.set()

    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield stop
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
