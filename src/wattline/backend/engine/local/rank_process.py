"""The child process of the supervisor that becomes one rank of a job, and facts about its processes.

Without a memory cgroup, `memory_bytes` of launch.json is applied as RLIMIT_DATA: private writable memory,
which is what a program allocates. RLIMIT_AS would count what is only reserved, and CUDA and PyTorch reserve
terabytes. RLIMIT_DATA limits each process, not their sum. It counts stacks of threads in full, and shared
memory (/dev/shm) and files not at all. An allocation above it fails with a MemoryError and the program's
own exit code, so `oom` is false.

Imported by the supervisor process: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes milliseconds
    from typing import Any, NoReturn

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 125
"""Exit codes of a rank that never ran: the first two as a shell has them, the last for all earlier errors."""

_PDEATHSIG, _SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its children."""
    _prctl(_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero)


def become_rank(
    launch: dict[str, Any], index: int, group: int, output: int, fail: int, supervisor: int
) -> NoReturn:
    """Execute the job's command as rank *index* in process group *group* (0: a new one).

    *output* receives both streams. Write the error to *fail* and exit if that is not possible.
    """
    code, step = NOT_STARTED, "starting"
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, group)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for folder in launch["cgroups"]:
            step = f"joining the cgroup {folder}"
            with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        if launch["cores"] is not None:
            step = f"running on the cores {launch['cores']}"
            os.sched_setaffinity(0, launch["cores"])
        if launch["memory_bytes"] is not None and not any(map(_limits_memory, launch["cgroups"])):
            step = f"a limit of {launch['memory_bytes']} bytes"
            _limit_data(launch["memory_bytes"])
        env = {**launch["env"], **launch["ranks"][index]}
        user = launch["user"]
        if user is not None:
            step = f"running as {user['name']}"
            _change_user(user)
            env = {"HOME": user["home"], "USER": user["name"], "LOGNAME": user["name"], **env}
        step = f"the working folder {launch['workdir']}"
        os.chdir(launch["workdir"])
        os.umask(launch["umask"])
        _prctl(_PDEATHSIG, signal.SIGKILL)  # after the change of user, which would undo it
        if os.getppid() != supervisor:
            os._exit(NOT_STARTED)
        step, code = launch["command"][0], NOT_EXECUTABLE
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _execute(launch["command"], env)
    except OSError as error:
        if code == NOT_EXECUTABLE and error.errno in (errno.ENOENT, errno.ENOTDIR):
            code = NOT_FOUND
        _exit_with_error(fail, code, f"{step}: {os.strerror(error.errno or 0)}")
    except BaseException as error:
        _exit_with_error(fail, NOT_STARTED, f"{step}: {error!r}")


def _exit_with_error(fail: int, code: int, message: str) -> NoReturn:
    """Write *message* to the pipe *fail* and exit with *code*."""
    os.write(fail, message.encode("utf-8", "backslashreplace")[:4000])
    os._exit(code)


def _limit_data(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _change_user(user: dict[str, Any]) -> None:
    """Change to another user, which only root can."""
    if os.geteuid() != 0 and user["uid"] == os.geteuid():
        return
    os.setgroups(user["groups"])
    os.setgid(user["gid"])
    os.setuid(user["uid"])


def _execute(command: list[str], env: dict[str, str]) -> NoReturn:
    """Execute a program that is looked up in the job's PATH.

    os.execvpe would import a module first, which another user may not be allowed to read, and would report
    "permission denied" for a missing program if some folder of the PATH cannot be searched.
    """
    if os.path.dirname(command[0]):
        os.execve(command[0], command, env)
    problem = OSError(errno.ENOENT, "")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", command[0])
        try:
            os.execve(path, command, env)
        except OSError as error:
            if os.path.exists(path):
                problem = error
    raise problem


def list_children() -> set[int]:
    """Return the children of this process, also those that have ended and are not collected yet."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except FileNotFoundError:
        pass  # a kernel without CONFIG_PROC_CHILDREN
    children = set()
    for word in os.listdir("/proc"):
        if word.isdigit():
            try:
                with open(f"/proc/{word}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                children.add(int(word))
    return children


def name_signal(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal


def _limits_memory(folder: str) -> bool:
    """Return whether a cgroup, v1 or v2, has the memory controller."""
    return any(os.path.exists(f"{folder}/{name}") for name in ("memory.max", "memory.limit_in_bytes"))


def count_oom_kills(folders: list[str]) -> int:
    """Return how many processes the kernel has killed in these cgroups because memory ran out."""
    count = 0
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{folder}/{name}", encoding="ascii") as file:
                    pairs = [line.split() for line in file]
            except OSError:
                continue
            count += sum(int(value) for key, value in pairs if key == "oom_kill")
    return count
