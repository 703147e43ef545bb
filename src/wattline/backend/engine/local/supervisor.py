"""One attempt of one job as real processes, whatever becomes of who wanted it. Linux only.

Run as `python -I -S shim.py FOLDER`, by `backend.launch`. It uses the standard library alone and starts in
some 30 ms. The first process leaves as soon as it is decided who runs the attempt; the second, in a session
of its own, stays until the job is over. So who started it has no child to collect, and may die at any time.

    launch.json  what to run: written before, by the controller
    claim.json   who runs it: made once. Whoever comes second, shim or controller, leaves the attempt alone
    rank0.log    what rank 0 says, both streams; rank0.log.1 is older
    exit.json    how it ended

SIGTERM and SIGINT ask the job to stop: its early signal to the process group, and SIGKILL when the grace is
over. SIGUSR1 kills it at once. After a time limit, or when one rank fails, the others are asked likewise.

All processes of a job are killed before its end is told, also those in sessions of their own: orphans come
to the shim (a "subreaper"), which kills its children until it has none. Only children are killed, and
nobody else collects those, so no number can have been reused. While a job that was asked to stop has
processes in its group, they keep their grace even if the ranks are gone: a shell dies of the signal at
once, the training below it is saving. If the shim itself is killed the kernel kills the ranks (PDEATHSIG);
what they had started is for `Attempt.kill_leftovers`. A process that the kernel cannot kill (a hanging
driver or NFS) has not ended, and neither has the attempt.

Without a memory cgroup, `memory_bytes` is RLIMIT_DATA: private writable memory, which is what a program
allocates. RLIMIT_AS would count what is only reserved, and CUDA and PyTorch reserve terabytes. It is a
limit of each process, not of all together, stacks of threads count in full, shared memory (/dev/shm) and
files not at all, and who meets it gets no memory instead of being killed: a MemoryError with its own exit
code, and `oom` is false.

A disk that is full costs output (`log_lost_bytes`), never the job. exit.json is tried until it is written,
every 0.1 s at first and every 30 s in the end, or at once after a signal; only if FOLDER was deleted is
there nobody to tell. Logs are written by the one thread that does everything: FOLDER should be on a local
disk.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import sys
import time
from contextlib import suppress
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds to import
    from types import FrameType
    from typing import Any, NoReturn

CLAIM, EXIT, LAUNCH = "claim.json", "exit.json", "launch.json"

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 125
"""Codes of a rank that never ran: as a shell has them, and one for all that fails before."""

_CHUNK = 1 << 18
_LAST_READS = 64  # a pipe holds less, and who could not be killed may write for ever
_SUBREAPER, _PDEATHSIG = 36, 1
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 30.0
_ASKS = {signal.SIGTERM: "stop", signal.SIGINT: "stop", signal.SIGUSR1: "kill"}


def put(path: str, words: dict[str, Any]) -> None:
    """A file that is there with all of *words* and on the disk, or not at all."""
    new = _written(path, words)
    try:
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise
    _sync(os.path.dirname(path))


def claim(folder: str, **words: Any) -> bool:
    """Whether this process is the one that decides about the attempt: nobody was before."""
    path = os.path.join(folder, CLAIM)
    new = _written(path, {**identity(), **words})
    try:
        os.link(new, path)
    except (
        FileExistsError
    ):  # over NFS the answer to a link that was made may be lost, and the next one is this
        return os.stat(new).st_nlink == 2
    finally:
        os.unlink(new)
    _sync(folder)
    return True


def identity() -> dict[str, Any]:
    """This process, so that it is not mistaken for a later one with its number."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id(), "at": time.time()}


def boot_id() -> str:
    """Since when process numbers are counted."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _written(path: str, words: dict[str, Any]) -> str:
    """A new file with *words*, on the disk, and for its owner only: environments have secrets."""
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(json.dumps(words).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if os.path.exists(new):
            os.unlink(new)
        raise
    return new


def _sync(folder: str) -> None:
    file = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Log:
    """What one rank says, in *keep* files of *limit* bytes; what the disk does not take is counted."""

    def __init__(self, name: str, limit: int, keep: int) -> None:
        self.lost = 0
        self._name, self._limit, self._keep = name, limit, keep
        self._file, self._size = -1, 0
        with suppress(OSError):
            self._open()

    def write(self, data: bytes) -> None:
        """Add *data*; a file ends with a whole line where one fits."""
        at = 0
        try:
            while at < len(data):
                if self._file < 0:
                    self._open()
                room = self._limit - self._size
                if len(data) - at <= room:
                    cut = len(data)
                else:
                    cut = data.rfind(b"\n", at, at + max(0, room)) + 1 or at + max(0, room)
                while at < cut:
                    done = os.write(self._file, data[at:cut])
                    at, self._size = at + done, self._size + done
                if at < len(data):
                    self._rotate()
        except OSError:
            self.lost += len(data) - at

    def close(self) -> None:
        """No more will be said."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._name, flags, 0o640)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        names = [self._name, *(f"{self._name}.{age}" for age in range(1, self._keep))]
        for newer, older in reversed(list(pairwise(names))):
            if os.path.exists(newer):
                os.replace(newer, older)
        if self._keep == 1:
            os.unlink(self._name)


class Shim:
    """The ranks of one job, from their start to the end of all they started."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self._launch = launch
        self._selector = selectors.DefaultSelector()
        self._asks: list[str] = []
        self._wake = -1
        self._pids: dict[int, int] = {}  # of ranks that run
        self._group = 0
        self._ends: list[dict[str, Any]] = [{"code": None, "signal": None} for _ in launch["ranks"]]
        self._first: int | None = None  # the rank that failed before all others
        self._logs: list[Log] = []
        self._message = ""
        self._asked: str | None = None
        self._fired: str | None = None
        self._kill_at = self._limit_at = float("inf")
        self._killed = self._alone = False
        self._spared: set[int] = set()  # children that we may not kill
        self._cpu_s, self._rss = 0.0, 0
        self._oom = _oom_kills(launch["cgroups"])
        self._libc = ctypes.CDLL(None)

    def listen(self) -> None:
        """From now on signals are asked of the job."""
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _ASKS:
            signal.signal(number, self._ask)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asks.append(_ASKS[signal.Signals(number)])

    def run(self) -> None:
        """Start the ranks, wait for their end, and tell it."""
        self._began = time.time(), time.monotonic()
        try:
            self._prctl(_SUBREAPER, 1)
            for index in range(len(self._ends)):
                self._start(index)
            if self._launch["time_limit_s"] is not None:
                self._limit_at = time.monotonic() + self._launch["time_limit_s"]
            while not self._over():
                self._listen()
                self._reap()
                self._decide()
        except Exception:  # a fault of ours; the job must not go on without anybody, and its end must be told
            import traceback

            self._message = f"the shim failed: {traceback.format_exc()}"
            self._give_up()
        self._tell()

    def _give_up(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake:
                self._selector.unregister(key.fd)
                os.close(key.fd)
        while True:
            self._kill()
            self._reap()
            if self._over():
                return
            self._selector.select()
            self._drain()

    def _prctl(self, option: int, value: int) -> None:
        zero = ctypes.c_ulong(0)
        self._libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero)

    # -- start

    def _start(self, index: int) -> None:
        """Fork one rank; signals that come before it has become the job wait, and then are the job's."""
        read, write = os.pipe2(os.O_CLOEXEC)
        failed, fail = os.pipe2(os.O_CLOEXEC)
        shim = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            self._become(index, write, fail, shim)
        with suppress(OSError):  # it may have done so itself, and be the job already
            os.setpgid(pid, self._group or pid)
        self._group = self._group or pid
        self._pids[pid] = index
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        os.close(fail)
        limit, keep = self._launch["log_limit_bytes"], self._launch["log_keep"]
        self._logs.append(Log(f"rank{index}.log", limit, keep))
        os.set_blocking(read, False)
        os.set_blocking(failed, False)
        self._selector.register(read, selectors.EVENT_READ, ("log", index))
        self._selector.register(failed, selectors.EVENT_READ, ("failed", index))

    def _become(self, index: int, output: int, fail: int, shim: int) -> NoReturn:
        """In the child: be the job, or say why not."""
        code, what = NOT_STARTED, "it"
        try:
            launch = self._launch
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, self._group)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for folder in launch["cgroups"]:
                what = f"joining the cgroup {folder}"
                with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(os.getpid()))
            if launch["cores"] is not None:
                what = f"running on the cores {launch['cores']}"
                os.sched_setaffinity(0, launch["cores"])
            if launch["memory_bytes"] is not None and not any(map(_memory_limit, launch["cgroups"])):
                what = f"a limit of {launch['memory_bytes']} bytes"
                _, most = resource.getrlimit(resource.RLIMIT_DATA)
                limit = launch["memory_bytes"]
                limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            env = {**launch["env"], **launch["ranks"][index]}
            user = launch["user"]
            if user is not None:
                what = f"running as {user['name']}"
                _be(user)
                env = {"HOME": user["home"], "USER": user["name"], "LOGNAME": user["name"], **env}
            what = f"the working folder {launch['workdir']}"
            os.chdir(launch["workdir"])
            os.umask(launch["umask"])
            self._prctl(_PDEATHSIG, signal.SIGKILL)  # after the change of user, which would undo it
            if os.getppid() != shim:
                os._exit(NOT_STARTED)
            what, code = launch["words"][0], NOT_EXECUTABLE
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _execute(launch["words"], env)
        except OSError as error:
            if code == NOT_EXECUTABLE and error.errno in (errno.ENOENT, errno.ENOTDIR):
                code = NOT_FOUND
            self._fail(fail, code, f"{what}: {os.strerror(error.errno or 0)}")
        except BaseException as error:
            self._fail(fail, NOT_STARTED, f"{what}: {error!r}")

    def _fail(self, fail: int, code: int, message: str) -> NoReturn:
        os.write(fail, message.encode("utf-8", "backslashreplace")[:4000])
        os._exit(code)

    # -- what happens

    def _listen(self) -> None:
        """Wait for signals and output, at most until the next thing is due."""
        due = min(self._kill_at, self._limit_at)
        timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake:
                self._drain()
            else:
                self._read(key)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Take what a rank says, or why it could not be started; False: nothing is there now."""
        kind, index = key.data
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(key.fd)
            os.close(key.fd)
        elif kind == "log":
            self._logs[index].write(data)
        else:
            self._message = self._message or data.decode("utf-8", "replace")
        return bool(data)

    def _reap(self) -> None:
        """Collect every child that has ended: ranks, and orphans of theirs."""
        while True:
            try:
                pid, status, use = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                return
            self._cpu_s += use.ru_utime + use.ru_stime
            self._rss = max(self._rss, use.ru_maxrss * 1024)
            if pid in self._pids:
                index = self._pids.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self._ends[index] = {"code": code, "signal": None}
                if code < 0:
                    self._ends[index] = {"code": 128 - code, "signal": _name(-code)}
                if code and self._first is None:
                    self._first = index

    def _decide(self) -> None:
        """What to do now: nothing, the early signal, SIGKILL, or the sweep when the ranks are over."""
        asks, self._asks = self._asks, []
        now = time.monotonic()
        if "kill" in asks and (self._pids or self._fired is not None):
            self._asked = "timeout" if self._asked == "timeout" else "kill"
            self._kill_at = now
        elif self._pids and self._fired is None:
            if asks:
                self._asked = "stop"
                self._stop(now)
            elif now >= self._limit_at:
                self._asked = "timeout"
                self._message = f"it ran into its time limit of {self._launch['time_limit_s']:g} s"
                self._stop(now)
            elif self._first is not None and self._launch["kill_ranks_together"]:
                self._stop(now)
        if not self._pids and (self._killed or self._fired is None or not self._members()):
            self._kill()
        elif now >= self._kill_at:
            self._fired = "SIGKILL"
            self._kill()

    def _stop(self, now: float) -> None:
        """The early signal; who is suspended must go on to notice it."""
        self._fired = self._launch["signal"]
        self._kill_at = now + self._launch["grace_s"]
        self._limit_at = float("inf")
        self._signal(signal.Signals[self._launch["signal"]])
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """To the group, and to ranks that have left it."""
        members = self._members()
        with suppress(PermissionError):  # programs that became another user
            if members:
                os.killpg(self._group, number)
        for pid in self._pids.keys() - members:
            with suppress(PermissionError):
                os.kill(pid, number)

    def _kill(self) -> None:
        """SIGKILL to the group and to all children, as often as there are new ones."""
        self._killed = True
        self._kill_at = self._limit_at = float("inf")
        for folder in self._launch["cgroups"]:
            with suppress(OSError):  # cgroups of the first kind cannot be killed as one
                file = os.open(f"{folder}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(file, b"1")
                finally:
                    os.close(file)
        self._signal(signal.SIGKILL)
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError:
                self._spared.add(pid)

    def _members(self) -> set[int]:
        """Children in the job's group. While there is one, the group's number is nobody else's."""
        return {pid for pid in _children() if os.getpgid(pid) == self._group}

    def _over(self) -> bool:
        """Whether nothing of the job is left that we could kill."""
        return self._alone or (not self._pids and self._killed and self._spared.issuperset(_children()))

    # -- the end

    def _tell(self) -> None:
        """Write exit.json, whenever that can be done."""
        for key in list(self._selector.get_map().values()):
            for _ in range(_LAST_READS):
                if key.fd == self._wake or not self._read(key):
                    break
        for log in self._logs:
            log.close()
        oom = _oom_kills(self._launch["cgroups"]) > self._oom
        for rank in self._ends:
            rank["code"] = NOT_STARTED if rank["code"] is None else rank["code"]
        end = self._ends[self._first or 0]
        if oom and end["code"]:
            self._message = self._message or "it used more memory than it may"
        elif end["signal"] == "SIGKILL" and self._fired != "SIGKILL":
            self._message = self._message or "something killed it: is the machine out of memory?"
        if not self._alone:
            self._message = f"{self._message}; processes {sorted(self._spared)} could not be killed".lstrip(
                "; "
            )
        words = {
            **end,
            "fired": self._fired,
            "asked": self._asked,
            "oom": oom,
            "message": self._message,
            "began_at": self._began[0],
            "ended_at": time.time(),
            "seconds": time.monotonic() - self._began[1],
            "max_rss_bytes": self._rss,  # of the largest process
            "cpu_seconds": self._cpu_s,
            "log_lost_bytes": sum(log.lost for log in self._logs),
            "ranks": self._ends,
        }
        pause = _FIRST_RETRY_S
        while True:
            try:
                return put(EXIT, words)
            except OSError:
                if os.stat(".").st_nlink == 0:
                    return None
            self._selector.select(pause)
            self._drain()
            pause = min(2 * pause, _LAST_RETRY_S)


def _children() -> set[int]:
    """The processes whose parent is this one, dead ones too until they are collected."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except FileNotFoundError:
        pass  # a kernel without CONFIG_PROC_CHILDREN
    found = set()
    for word in os.listdir("/proc"):
        if word.isdigit():
            try:
                with open(f"/proc/{word}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                found.add(int(word))
    return found


def _be(user: dict[str, Any]) -> None:
    """Become another user; only root can."""
    if os.geteuid() != 0 and user["uid"] == os.geteuid():
        return
    os.setgroups(user["groups"])
    os.setgid(user["gid"])
    os.setuid(user["uid"])


def _execute(words: list[str], env: dict[str, str]) -> NoReturn:
    """Become a program of the job's PATH.

    os.execvpe would import a module first, which another user may not be allowed to read, and would say that
    a program is denied when it is missing and some folder of the PATH cannot be looked into.
    """
    if os.path.dirname(words[0]):
        os.execve(words[0], words, env)
    problem = OSError(errno.ENOENT, "")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", words[0])
        try:
            os.execve(path, words, env)
        except OSError as error:
            if os.path.exists(path):
                problem = error
    raise problem


def _memory_limit(folder: str) -> bool:
    """Whether a cgroup bounds memory, in either kind."""
    return any(os.path.exists(f"{folder}/{name}") for name in ("memory.max", "memory.limit_in_bytes"))


def _oom_kills(folders: list[str]) -> int:
    """How many processes the kernel has killed for want of memory in these cgroups."""
    count = 0
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{folder}/{name}", encoding="ascii") as file:
                    words = [line.split() for line in file]
            except OSError:
                continue
            count += sum(int(value) for key, value in words if key == "oom_kill")
    return count


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time signal


def main(folder: str) -> int:
    """Claim the attempt and run it, in a process that nobody waits for."""
    try:
        os.chdir(folder)
        with open(LAUNCH, encoding="utf-8") as file:
            launch = json.load(file)
        read, write = os.pipe2(os.O_CLOEXEC)
        if os.fork():
            os.close(write)
            with open(read, "rb") as answer:
                said = answer.read().decode()
            print(said, end="", file=sys.stderr)
            return 0 if said == "" else 1
    except (OSError, ValueError) as error:
        print(error, end="", file=sys.stderr)
        return 1
    os.close(read)
    os.setsid()
    with open(os.devnull, "r+b", buffering=0) as null:
        for standard in range(3):
            os.dup2(null.fileno(), standard)
    try:
        shim = Shim(launch)
        shim.listen()
        won = claim(".")
    except Exception as error:
        os.write(write, f"{error or error!r}".encode())
        os._exit(1)
    os.close(write)
    if won:
        shim.run()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
