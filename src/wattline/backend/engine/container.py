"""Commands that run in a container: through Apptainer, or through srun with the flags of Pyxis.

Pyxis is a plugin of Slurm; `srun --help` lists its flags where it is installed. Both leave the command the
variables, the user and the signals of the job. Inside, the job's folder, its working folder and the requested
folders have the paths of the host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from wattline.backend.engine.folder_layout import checkpoint_folder, job_folder
from wattline.backend.engine.job_record import JobRecord

PYXIS_FLAG = "--container-image"
_PROGRAMS = ("apptainer", "singularity")
# A step of its own on this node, beside that of the supervisor, with all its cores and GPUs. srun kills its
# step when it gets a SIGTERM. So it is in a session of its own, and scancel sends the job's signal to the
# step, which is found by its name, as soon as it exists. A wait that the signal interrupts has not the exit
# code of the step, and is repeated; 127 means that an earlier one had it.
_STEP = """\
name="wl-$RANK" child= stopping= code=127
stop() {
  stopping=1
  while [ -z "$child" ] || kill -0 "$child" 2>/dev/null; do
    for step in $(squeue -h -s -j "$SLURM_JOB_ID" -o %%i=%%j 2>/dev/null); do
      if [ "${step#*=}" = "$name" ] && scancel --signal=%(signal)s "${step%%%%=*}" 2>/dev/null; then
        return
      fi
    done
    [ -n "$child" ] || return
    sleep 0.2
  done
}
trap stop %(signal)s
setsid srun --job-name="$name" --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 \\
  --nodelist="$SLURMD_NODENAME" --export=ALL --input=none --unbuffered "$@" &
child=$!
[ -z "$stopping" ] || stop
while :; do
  stopping=
  wait "$child"
  status=$?
  [ "$status" = 127 ] || code=$status
  [ -n "$stopping" ] || exit "$code"
done
"""


def find_apptainer() -> str:
    """Return the path of Apptainer, or of Singularity, its older name; empty: neither is installed."""
    return next((path for name in _PROGRAMS if (path := shutil.which(name))), "")


def wrap_command(
    runtime: str, command: Sequence[str], root: Path, jobs: Sequence[JobRecord]
) -> tuple[str, ...]:
    """Return the command that runs *command* in the container of a job, or as it is if the job has none.

    *runtime* is the path of Apptainer, or "pyxis". *jobs* are several if they are trained as one array.
    """
    spec = jobs[0].spec
    if not spec.image:
        return tuple(command)
    mounts = [*list_folders(root, jobs), *spec.mounts]
    if runtime == "pyxis":
        flags = build_pyxis_flags(spec.image, mounts, spec.workdir)
        step = _STEP % {"signal": spec.signal.removeprefix("SIG")}
        return ("sh", "-c", step, "srun", *flags, *command)
    return (*build_apptainer_command(runtime, spec.image, mounts, spec.workdir), *command)


def list_folders(root: Path, jobs: Sequence[JobRecord]) -> list[str]:
    """Return the folders that a job needs: for its work, checkpoints, progress and orders."""
    folders = [jobs[0].spec.workdir]
    for job in jobs:
        folders += [str(job_folder(root, job.id)), str(checkpoint_folder(root, job.spec))]
    return list(_drop_inner(folders))


def _drop_inner(folders: Iterable[str]) -> Iterable[str]:
    """Yield each folder that is not in another one; the root of the file system cannot be one of them."""
    known = [folder for folder in dict.fromkeys(map(os.path.normpath, folders)) if folder != "/"]
    for folder in known:
        if not any(folder != other and Path(folder).is_relative_to(other) for other in known):
            yield folder


def build_apptainer_command(program: str, image: str, mounts: Sequence[str], workdir: str) -> tuple[str, ...]:
    """Return the words before a command that runs in *image*; `--nv` adds the drivers of NVIDIA's GPUs."""
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return (program, "exec", "--nv", *binds, "--pwd", workdir, image)


def build_pyxis_flags(image: str, mounts: Sequence[str], workdir: str) -> list[str]:
    """Return the flags of srun for a command that runs in *image*; Pyxis wants both sides of a mount."""
    pairs = ",".join(_name_both_sides(mount) for mount in mounts)
    return [
        f"{PYXIS_FLAG}={image}",
        *([f"--container-mounts={pairs}"] if pairs else []),
        f"--container-workdir={workdir}",
    ]


def _name_both_sides(mount: str) -> str:
    source, _, rest = mount.partition(":")
    return mount if rest.startswith("/") else ":".join(filter(None, (source, source, rest)))
