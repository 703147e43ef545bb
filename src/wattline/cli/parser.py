"""Which commands and options there are.

argparse, because nothing else starts fast enough for `--help` in 0.3 s; commands import what they
need when they run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from wattline import __version__
from wattline.cli.options import add_case, add_deciders, at_least_0, at_least_1, number, read_by, share
from wattline.cli.output import tell_first_run
from wattline.cli.service.service_parser import add_service
from wattline.errors import ConfigError
from wattline.units import parse_gib, parse_mhz, parse_mib_s, parse_seconds, parse_watts

_COMPILED = frozenset(("simulate", "compare", "report", "replay", "serve"))
Command = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are `ConfigError`s, so that `--json` covers them too.

    Where it *splits*, what follows `--` becomes `words`, and None without a `--`.
    """

    splits = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Keep what follows `--` away from argparse, which forgets that it was there."""
        if not self.splits or args is None:
            return super().parse_known_args(args, namespace)
        given = list(args)
        at = given.index("--") if "--" in given else len(given)
        found, unknown = super().parse_known_args(given[:at], namespace)
        found.words = given[at + 1 :] if at < len(given) else None
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=f"{self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="wattline",
        allow_abbrev=False,
        description="Decides when, where and at what power deep-learning training jobs run on a GPU cluster.",
        epilog="Replay a trace:  wattline compare --trace jobs.csv --cluster 16xv100:8 --policies all",
    )
    parser.add_argument("--version", action="version", version=f"wattline {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    simulate = _command(commands, "simulate", "simulation.simulate", "one policy on one trace")
    add_case(simulate)
    simulate.add_argument(
        "--policy",
        default="fifo",
        metavar="P",
        help="stages joined by +, knobs after :, its own placer after @ (las:quantum=10m+keep@buddy)",
    )
    simulate.add_argument("--log", metavar="FILE", help="write the run log (.jsonl or .jsonl.gz)")
    _add_output(simulate)

    compare = _command(commands, "compare", "simulation.compare", "several policies on one trace")
    _add_compare(compare)
    _add_output(compare)

    report = _command(commands, "report", "simulation.report", "what run logs say")
    report.add_argument("logs", nargs="+", metavar="LOG", help="run logs written by --log")
    _add_output(report)

    replay = _command(
        commands, "replay", "simulation.replay", "decide again from a run log and insist on the same actions"
    )
    replay.add_argument("log_file", metavar="LOG", help="a run log written by --log")
    replay.add_argument("--policy", required=True, metavar="P", help="the policy to hold against the log")
    add_deciders(replay)
    replay.add_argument("--json", action="store_true")

    fit = _command(commands, "fit", "models.fit", "models of speed and power from a table of measurements")
    fit.add_argument("profile", metavar="PROFILE.csv", help="measurements, one row each (.csv or .csv.gz)")
    fit.add_argument("--out", metavar="FILE", help="write the fitted models, for predict --models")
    _add_output(fit)

    _add_profile(
        _command(
            commands, "profile", "models.profile", "how the speed of a command depends on cores and memory"
        )
    )

    _add_predict(
        _command(
            commands,
            "predict",
            "models.predict",
            "speed, watts and energy of a job, and what a cap would save",
        )
    )

    _add_advise(
        _command(
            commands, "advise", "models.advise", "how many cores and how much memory jobs should ask for"
        )
    )

    _add_measure(
        _command(
            commands, "measure", "models.measure", "seconds and joules of a command, and how they are known"
        )
    )

    doctor = _command(
        commands, "doctor", "models.doctor", "what can be read and set on this machine, and if not, why"
    )
    _add_meter(doctor)
    doctor.add_argument("--json", action="store_true", help="machine-readable result on stdout")

    optimise = _command(
        commands, "optimize", "simulation.optimize", "one plan for jobs and nodes that a file describes"
    )
    optimise.add_argument(
        "--input", required=True, metavar="FILE", help="jobs, nodes and prices as JSON; - is stdin"
    )
    optimise.add_argument("--json", action="store_true", help="machine-readable result on stdout")

    known = _command(commands, "library", "models.library", "the workloads and devices that are known")
    actions = known.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    _add_actions(actions)

    tune = _command(commands, "tune", "models.tune", "which batch size a recurring job should use")
    _add_tune(tune.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser))

    fuse = _command(commands, "fuse", "models.fuse", "many jobs of one architecture as one training array")
    _add_fuse(fuse.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser))

    add_service(
        lambda name, summary, module="", **more: _command(
            commands, name, f"service.{module or name}", summary, **more
        )
    )

    policies = _command(
        commands, "policies", "simulation.policies", "the stages policies are made of, and their knobs"
    )
    policies.add_argument("--json", action="store_true")

    version = _command(commands, "version", "version", "the version of wattline and of what it stands on")
    version.add_argument("--json", action="store_true")
    return parser


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    module: str,
    summary: str,
    aliases: Sequence[str] = (),
    splits: bool = False,
) -> argparse.ArgumentParser:
    def run(args: argparse.Namespace) -> int:
        if name in _COMPILED:
            tell_first_run()
        command: Command = import_module(f"wattline.cli.{module}").run
        return command(args)

    parser = commands.add_parser(
        name,
        aliases=list(aliases),
        allow_abbrev=False,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
    )
    parser.splits = splits
    parser.set_defaults(command=run)
    return parser


def _add_compare(parser: argparse.ArgumentParser) -> None:
    add_case(parser)
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="repeat for each; P@PLACE for its own placer",
    )
    add("--policies", choices=("all",), help="all: every built-in policy")
    add("--jobs", type=at_least_1, default=1, metavar="N", help="processes at once (default 1)")
    add("--logs", metavar="DIR", help="write one run log per policy")
    which = "also compare the first policy that has an eta where it"
    add("--equal-energy", action="store_true", help=f"{which} uses as much energy as each other")
    add("--equal-jct", action="store_true", help=f"{which} has the mean JCT of each other")
    add("--front", action="store_true", help="what any eta from 0 to 1 does to energy and JCT of that policy")


def _add_advise(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="TRACE|JOB", help="a trace, or the name of a model that is known")
    add("--cluster", default="1xv100:8", metavar="C", help="nodes it runs on (default 1xv100:8)")
    add("--models", metavar="M", help="what is known: library, or a file of fit --out (default library)")
    add("--keep", type=share, default=0.98, metavar="S", help="of the best speed (default 0.98)")
    add("--gpus", type=at_least_1, default=1, metavar="N", help="GPUs of the job (default 1)")
    add(
        "--cpus",
        type=at_least_1,
        metavar="N",
        help="cores that it asks for now for each GPU (default its share)",
    )
    add(
        "--mem",
        type=read_by(parse_gib),
        metavar="M",
        help="memory that it asks for now for each GPU (default its share)",
    )
    add("--json", action="store_true", help="machine-readable result on stdout")


def _add_predict(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help="what is trained: resnet50, or SOURCE/NAME")
    add("--gpu", required=True, metavar="KIND", help="the kind of GPU: a100")
    add("--gpus", type=at_least_1, default=1, metavar="N", help="GPUs of the job (default 1)")
    add("--nodes", type=at_least_1, metavar="N", help="nodes they are on (default one for every eight)")
    add("--batch", type=at_least_1, metavar="N", help="samples of a step, of all GPUs (default the usual)")
    add("--cap", type=read_by(parse_watts), metavar="P", help="power cap of each GPU (250W, 0.25kW)")
    add("--clock", type=read_by(parse_mhz), metavar="F", help="clock of each GPU (1200MHz, 1.2GHz)")
    add("--cpus", type=at_least_1, metavar="N", help="CPU cores of the job (default enough)")
    add("--mem", type=read_by(parse_gib), metavar="M", help="memory of the job (64G; default enough)")
    add(
        "--storage",
        type=read_by(parse_mib_s),
        metavar="R",
        help="storage of the job (500MB/s; default enough)",
    )
    add("--fuse", type=at_least_1, default=1, metavar="B", help="jobs trained as one array (default 1)")
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--models", metavar="FILE", help="fitted models, written by fit --out")
    models.add_argument("--profile", metavar="CSV", help="measurements to fit first")
    add("--json", action="store_true", help="machine-readable result on stdout")


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "wattline measure [options] -- COMMAND ..."
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="what to run; its exit code is ours")
    _add_meter(parser)
    parser.add_argument(
        "--json", action="store_true", help="result on stdout, and what the command prints on stderr"
    )


def _add_meter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--meter",
        default="auto",
        metavar="M",
        help="auto, nvml, rapl, zeusd[:SOCKET], simulated:2xv100,…, replay:FILE, none (default auto)",
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.usage = "wattline profile [options] -- COMMAND ..."
    add, seconds = parser.add_argument, read_by(parse_seconds)
    add("words", nargs="*", metavar="COMMAND", help="the job; {cpus} in it is how many cores it has")
    add("--out", default="profile.csv", metavar="CSV", help="where to write the table (default profile.csv)")
    add("--fresh", action="store_true", help="measure all points again, whatever is in --out")
    add("--model", metavar="NAME", help="what is trained (default the name of the script)")
    add("--gpu", metavar="KIND", help="the kind of GPU: a100 (default what is in this machine)")
    add("--gpus", type=at_least_1, default=1, metavar="N", help="GPUs of the job (default 1)")
    add("--batch", type=at_least_1, default=1, metavar="N", help="samples of a step (default 1)")
    add("--step-pattern", metavar="RE", help=r"finds the number of the step in a line of output: step (\d+)")
    add("--cpus", type=at_least_1, metavar="N", help="try up to so many cores (default all)")
    add("--grain", type=number, default=1.0, metavar="X", help="in steps of so many (default 1)")
    add("--points", type=at_least_1, default=8, metavar="N", help="measurements, at most (default 8)")
    add(
        "--threshold",
        type=number,
        default=0.1,
        metavar="X",
        help="do not look between core counts whose speeds differ by less (default 0.1)",
    )
    add("--warmup", type=at_least_0, metavar="N", help="steps left out (default 10, and 2 for each core)")
    add("--seconds", type=seconds, default=30.0, metavar="T", help="of a measurement, at most (default 30s)")
    add(
        "--precision", type=number, default=0.02, metavar="X", help="95 %% interval to stop at (default 0.02)"
    )
    add("--first-step", type=seconds, default=300.0, metavar="T", help="wait so long for it (default 5m)")
    add("--grace", type=seconds, default=10.0, metavar="T", help="from SIGTERM to SIGKILL (default 10s)")
    add("--data", metavar="DIR", help="the data set, a file for each sample: tells the next three")
    add("--dataset", type=read_by(parse_gib), metavar="M", help="size of the data set (144G)")
    add("--sample", type=read_by(parse_gib), metavar="M", help="size of a sample on storage (110K)")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument(
        "--storage",
        type=read_by(parse_mib_s),
        metavar="R",
        help="what storage delivers (500MB/s; default measured once per node)",
    )
    storage.add_argument("--measure-storage", action="store_true", help="measure it again")
    add("--json", action="store_true", help="machine-readable result on stdout")


def _add_actions(actions: argparse._SubParsersAction[_Parser]) -> None:
    every = actions.add_parser("list", allow_abbrev=False, help="all of them, a line each")
    every.add_argument("--json", action="store_true")
    show = actions.add_parser("show", allow_abbrev=False, help="all that is known of one name")
    show.add_argument("name", metavar="NAME", help="a model (any spelling, or SOURCE/NAME) or a device")
    show.add_argument("--gpu", metavar="KIND", help="only on this kind of GPU")
    show.add_argument("--json", action="store_true")


def _add_tune(actions: argparse._SubParsersAction[_Parser]) -> None:
    show = actions.add_parser("show", allow_abbrev=False, help="what is known of a job, and what is next")
    show.add_argument("--gpu", metavar="KIND", help="only on this kind of GPU")
    show.add_argument(
        "--eta", type=number, default=0.5, metavar="X", help="energy against time (default 0.5)"
    )
    reset = actions.add_parser("reset", allow_abbrev=False, help="forget a job")
    reset.add_argument("-y", "--yes", action="store_true", help="do not ask")
    for parser in (show, reset):
        parser.add_argument("group", metavar="GROUP", help="the name of the recurring job")
        parser.add_argument(
            "--state", metavar="FILE", help="the store (default memory.db in the state folder)"
        )
        parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
    replay = actions.add_parser("replay", allow_abbrev=False, help="optimisers against recorded trainings")
    add = replay.add_argument
    add("--data", required=True, metavar="DIR", help="summary_train.csv and summary_power_<gpu>.csv")
    add("--gpu", action="append", required=True, metavar="KIND", help="v100, or all (repeat for more)")
    add(
        "--eta",
        type=number,
        default=0.5,
        metavar="X",
        help="1: only energy counts, 0: only time (default 0.5)",
    )
    add("--seeds", type=at_least_1, default=20, metavar="N", help="replays of each workload (default 20)")
    add("--recurrences", type=at_least_1, metavar="N", help="of each job (default two for each setting)")
    add("--optimizer", choices=("wattline", "zeus", "both"), default="wattline", help="(default wattline)")
    add("--json", action="store_true", help="machine-readable result on stdout")


def _add_fuse(actions: argparse._SubParsersAction[_Parser]) -> None:
    check = actions.add_parser(
        "check", allow_abbrev=False, help="what a script would gain, before it is submitted"
    )
    add = check.add_argument
    add("script", metavar="SCRIPT", help="a script that calls wattline.fusion.main(build, train)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="in the config of a member (repeat)")
    add("--width", type=at_least_1, default=8, metavar="B", help="members of the array (default 8)")
    add(
        "--seconds",
        type=read_by(parse_seconds),
        default=5.0,
        metavar="T",
        help="of each training (default 5s)",
    )
    add("--json", action="store_true", help="machine-readable result on stdout")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
