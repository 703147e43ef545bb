"""`wattline emit sbatch|k8s JOB.yaml`: print a job file as a script of another scheduler.

`wattline emit epilog` prints a script for Slurm's nodes, which restores power limits after a job.
"""

from __future__ import annotations

import argparse
import os

from wattline.errors import ConfigError, NotFound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline emit`."""
    parser.add_argument(
        "target",
        choices=("sbatch", "k8s", "epilog"),
        help="sbatch: a batch script; k8s: a manifest; epilog: a script that restores power limits",
    )
    parser.add_argument("file", metavar="JOB.yaml", nargs="?", default="", help="job file")
    parser.add_argument("--partition", default="", metavar="NAME", help="sbatch: partition of the job")
    parser.add_argument(
        "--licence",
        default="",
        metavar="NAME",
        help="sbatch: licences that are watts, as in Licenses=watts:40000 of slurm.conf",
    )
    parser.add_argument(
        "--image",
        default="",
        metavar="IMAGE",
        help="k8s: container image (default: container of the job file)",
    )
    parser.add_argument(
        "--watts", type=float, metavar="W", help="epilog: power limit of all GPUs, instead of each default"
    )


def run(args: argparse.Namespace) -> int:
    """Print the script of a job file."""
    if args.target == "epilog":
        return _print_epilog(args)
    if not args.file:
        raise ConfigError(f"emit {args.target} needs a job file", f"wattline emit {args.target} JOB.yaml")
    from wattline.backend.engine.slurm.commands import find_container_runtime
    from wattline.jobfile import read_job
    from wattline.service.emit import build_k8s_manifest, build_sbatch_script
    from wattline.service.submission import build_submissions

    try:
        with open(args.file, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise NotFound(f"{args.file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{args.file}: cannot be read: {error}") from None
    job = read_job(text, args.file)
    members = build_submissions(job, "", os.getcwd())
    if len(members) > 1:
        raise ConfigError(
            f"{args.file} is a sweep of {len(members)} jobs, and a script is for one",
            "leave out matrix, or submit it to a service",
        )
    image = members[0].spec["image"]
    if args.target == "sbatch":
        runtime = find_container_runtime() if image else ""
        # Slurm knows the type by the name that its operators gave it.
        gpu_type = next(iter(job.resources.typed_gpu_types), "").casefold()
        print(build_sbatch_script(members[0], args.licence, args.partition, runtime, gpu_type), end="")
    elif not (args.image or image):
        raise ConfigError("a manifest needs a container image", "add --image IMAGE, or container: IMAGE")
    else:
        print(build_k8s_manifest(members[0], args.image), end="")
    return 0


def _print_epilog(args: argparse.Namespace) -> int:
    from wattline.service.emit import build_epilog

    if args.file:
        raise ConfigError(f"emit epilog is for all jobs, got {args.file}", "wattline emit epilog")
    if args.watts is not None and not 0 < args.watts < 10_000:
        raise ConfigError(f"--watts is {args.watts:g}, expected watts of one GPU")
    print(build_epilog(args.watts), end="")
    return 0
