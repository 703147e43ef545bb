"""A stand-in for Apptainer: it records its words and executes the command of the container on the host.

It shows which command is built and that a job works through it, and nothing of Apptainer itself.
"""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """\
#!/bin/sh
printf '%s\\n' "$@" > {folder}/words
[ "$1" = exec ] || exit 2
shift
while :; do
  case $1 in
    --nv) shift ;;
    --bind) [ -e "${{2%%:*}}" ] || {{ echo "bind: $2 is missing" >&2; exit 255; }}; shift 2 ;;
    --pwd) cd "$2" || exit 255; shift 2 ;;
    *) break ;;
  esac
done
shift
exec "$@"
"""


def write_apptainer(folder: Path) -> Path:
    """Write the executable `apptainer` into a folder for PATH; its words go to the file `words` there."""
    folder.mkdir(parents=True)
    path = folder / "apptainer"
    path.write_text(_SCRIPT.format(folder=folder))
    path.chmod(0o755)
    return path
