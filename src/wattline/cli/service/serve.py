"""`wattline serve`: run jobs on the GPUs of this machine, and answer those who submit them.

The socket comes first and the state second, so that who finds the port taken has touched nothing. Where the
service is stands in the file `url` of its folder while it listens.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from wattline.cli.output import tell
from wattline.cli.service.job_text import count
from wattline.errors import BackendError, ConfigError, WattlineError
from wattline.service.client import service_folder

if TYPE_CHECKING:
    from wattline.core.protocols import Models
    from wattline.service.controller import Controller

_GRACE_S = 2  # for requests that are being answered when we are told to end
_SWITCH_S = 0.001  # a request waits no longer for the thread that decides


def run(args: argparse.Namespace) -> int:
    """Serve until a signal says stop."""
    _import()
    models = _check(args)
    folder = service_folder(args.dir).resolve()
    with _Signals() as signals, _bound(args.host, args.port) as bound:
        controller = _open(folder, args, models)
        try:
            controller.start()
            if not signals.came:
                _serve(controller, bound, args, signals)
        finally:
            running = _running(controller)
            with suppress(OSError):
                (folder / "url").unlink()
            controller.stop()
    tell(_farewell(running, folder))
    return 0


def _import() -> None:
    try:
        import uvicorn  # noqa: F401

        import wattline.service.http.app  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("wattline"):
            raise
        raise ConfigError(f"{error.name} is not installed", 'pip install "wattline[service]"') from None


def _check(args: argparse.Namespace) -> Models | None:
    """Raise where the options make no sense, before anything is touched; the models that they name."""
    from wattline.models.library import load_models
    from wattline.placement.parser import parse_placer
    from wattline.policy.parser import parse_policy

    if args.policy != "auto":
        parse_policy(args.policy)
    parse_placer(args.place)
    return None if args.models == "library" else load_models(args.models)


def _open(folder: Path, args: argparse.Namespace, models: Models | None) -> Controller:
    from wattline.service.controller import Controller

    try:
        return Controller(
            folder,
            gpus=args.gpus,
            policy=args.policy,
            place=args.place,
            models=models,
            seed=args.seed,
            tell=tell,
        )
    except ConfigError as error:  # what was typed makes sense, but not on this machine, or not now
        raise BackendError(error.message, error.hint) from None


def _serve(controller: Controller, bound: socket.socket, args: argparse.Namespace, signals: _Signals) -> None:
    import uvicorn

    from wattline.service.http.app import create_app

    sys.setswitchinterval(_SWITCH_S)
    app = create_app(controller, rate=args.rate)
    app.state.tokens.own(controller.folder)
    url = _url(bound)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _write(controller.folder / "url", f"{url}\n")
                tell(_greeting(controller, url))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            controller.leaving = True  # streams end by themselves
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
            lifespan="off",
            server_header=False,
        )
    )
    signals.end(server)
    server.run(sockets=[bound])


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; requests that come before we can answer wait in it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host}: no such address", "127.0.0.1, or one of this machine") from None
    with socket.socket(family, kind, protocol) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen(1024)
        except OSError as error:
            hint = "give another --port; 0 is any that is free"
            raise BackendError(f"{host}:{port} cannot be listened to: {error.strerror}", hint) from None
        if not _loopback(bound):
            tell(
                f"WARNING: {host} is not only this machine: who reaches it and has a token can run commands"
                " here, and nothing is encrypted"
            )
        yield bound


def _loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def _url(bound: socket.socket) -> str:
    """Where callers on this machine find us."""
    host, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if bound.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _write(path: Path, text: str) -> None:
    """For everybody to read, whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text)
        new.chmod(0o644)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _greeting(controller: Controller, url: str) -> str:
    said = controller.describe()
    kinds = ", ".join(f"{node['gpus']} {node['kind']}" for node in said["nodes"])
    gpus = count(sum(node["gpus"] for node in said["nodes"]), "GPU")
    if said["simulated"]:
        kinds += ", SIMULATED: nothing computes on them, and no joule is real"
    waiting = sum(said["jobs"].get(state, 0) for state in ("PENDING", "RUNNING"))
    found = f"; {count(waiting, 'job')} found" if waiting else ""
    return f"{url} listens: {gpus} ({kinds}); policy {said['policy']}; all is in {controller.folder}{found}"


def _running(controller: Controller) -> int:
    try:
        return int(controller.describe()["jobs"].get("RUNNING", 0))
    except WattlineError:
        return 0


def _farewell(running: int, folder: Path) -> str:
    if not running:
        return "stopped; no job runs"
    go = "job runs on, and is" if running == 1 else "jobs run on, and are"
    return f"stopped; {running} {go} found again by: wattline serve --dir {folder}"


class _Signals:
    """Signals that end the service in order, whenever they come."""

    def __init__(self) -> None:
        self.came = False
        self._server: Any = None

    def __enter__(self) -> _Signals:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._heard) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def end(self, server: Any) -> None:
        """From now on, a signal ends this server."""
        self._server = server
        server.should_exit = self.came

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if self._server is not None:
            self._server.should_exit = True
