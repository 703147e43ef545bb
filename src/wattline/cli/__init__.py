"""The command line: `wattline COMMAND`. Data goes to stdout, everything else to stderr.

Exit codes: 0 ok, 1 failure, 2 usage or bad input, 3 not found, 4 nothing could run,
5 backend unreachable, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wattline.errors import InputError, NotFound, Unreachable, WattlineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers the exit code."""
    from wattline.cli.parser import build_parser
    from wattline.cli.show import show_error

    words = list(sys.argv[1:] if argv is None else argv)
    in_json = "--json" in words
    try:
        args = build_parser().parse_args(words)
        code: int = args.command(args)
        return code
    except NotFound as error:
        show_error(error, in_json)
        return 3
    except InputError as error:
        show_error(error, in_json)
        return 2
    except Unreachable as error:
        show_error(error, in_json)
        return 5
    except WattlineError as error:
        show_error(error, in_json)
        return 1
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
