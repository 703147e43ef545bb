"""The command line: `wattline COMMAND`. Data goes to stdout, everything else to stderr.

Exit codes: 0 ok, 1 failure, 2 usage or bad input, 3 not found, 4 nothing could run,
5 backend unreachable, 124 not in time, 130 interrupted; `submit --wait` ends as the job did.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wattline.errors import Conflict, InputError, NotAllowed, NotFound, Unreachable, WattlineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers the exit code."""
    from wattline.cli.output import show_error
    from wattline.cli.parser import build_parser

    words = list(sys.argv[1:] if argv is None else argv)
    ours = words[: words.index("--")] if "--" in words else words  # what follows is of another command
    in_json = "--json" in ours
    try:
        args = build_parser().parse_args(words)
        code: int = args.command(args)
        return code
    except WattlineError as error:
        show_error(error, in_json)
        return exit_code(error)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left: not worth a message
        return 141
    except OSError as error:
        show_error(WattlineError(f"{error.filename or 'output'}: {error.strerror}"), in_json)
        return 1
    except Exception as error:
        if not in_json:
            raise  # a fault of ours: the traceback is what a report of it needs
        show_error(
            WattlineError(f"{type(error).__name__}: {error}", "this is a bug: run without --json"), True
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def exit_code(error: WattlineError) -> int:
    """How a command ends that met an error."""
    for kind, code in ((NotFound, 3), (NotAllowed, 1), (Conflict, 1), (InputError, 2), (Unreachable, 5)):
        if isinstance(error, kind):
            return code
    return 1
