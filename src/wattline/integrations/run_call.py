"""Program of a job of `wattline.Executor`: load a pickled call, run it, and pickle its result.

    python -P run_call.py FOLDER NUMBER

It is started by its path and imports only the standard library before the import path of the submitting
process is in force, so that the call finds the modules that it found there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

YIELDED = 75
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(words: list[str]) -> int:
    """Run the call *NUMBER* in *FOLDER* and return the exit code of this process."""
    folder, number = Path(words[0]), int(words[1])
    header = json.loads((folder / "header.json").read_text(encoding="utf-8"))
    sys.path[:] = header["import_path"]
    rank = int(os.environ.get("RANK", "0"))
    if header["tasks"] == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if rank:
            return 0  # one task has all GPUs, and the service started a process for each
        for name in _RANK_VARIABLES:
            os.environ.pop(name, None)
    result = folder / f"{number}_{rank}_result.pkl"
    call = folder / f"{number}.pkl"
    try:
        import cloudpickle

        function, arguments, named = cloudpickle.loads(call.read_bytes())
        _checkpoint_on_signal(call, function, arguments, named, rank)
        text = cloudpickle.dumps(("success", function(*arguments, **named), ""))
    except Exception as error:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, end="", flush=True)
        _write(result, _encode_error(error, trace))
        return 1
    _write(result, text)
    return 0


def _checkpoint_on_signal(call: Path, function: Any, arguments: Any, named: Any, rank: int) -> None:
    """On the stop signal replace the call by what `function.checkpoint` returns, and ask for a restart.

    A function without the method `checkpoint` (submitit's `Checkpointable` has one) is left alone.
    """
    checkpoint = getattr(function, "checkpoint", None)
    if not callable(checkpoint):
        return
    number = getattr(signal, os.environ.get("WATTLINE_SIGNAL", "SIGTERM"))

    def save_and_exit(*_: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        if rank == 0:
            import cloudpickle

            again = checkpoint(*arguments, **named)
            if again is None:
                print(
                    "the function's checkpoint returned None: it starts from the beginning", file=sys.stderr
                )
            else:
                _write(call, cloudpickle.dumps((again.function, again.args, again.kwargs)))
        sys.exit(YIELDED)

    signal.signal(number, save_and_exit)


def _encode_error(error: Exception, trace: str) -> bytes:
    import pickle

    try:
        import cloudpickle

        text: bytes = cloudpickle.dumps(("error", error, trace))
        pickle.loads(text)  # some exceptions can be pickled, but not read again
    except Exception:
        return pickle.dumps(("error", None, trace))
    return text


def _write(path: Path, text: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text)
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
