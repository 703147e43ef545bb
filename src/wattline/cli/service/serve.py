"""`wattline serve`: run the scheduler service on the GPUs of this machine, or of a Slurm partition.

The socket is opened before the state, so that a service that finds its port taken changes nothing. While the
service listens, the file `url` in its directory holds its address.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from wattline.cli.arguments import non_negative_int, positive_int
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import notify
from wattline.cli.service.job_text import pluralize
from wattline.errors import BackendError, ConfigError, WattlineError
from wattline.service.client import service_folder
from wattline.service.settings import ServiceSettings, read_settings
from wattline.service.startup_server import StartupServer

if TYPE_CHECKING:
    from wattline.backend.engine.slurm.submission import SlurmOptions
    from wattline.core.protocols import Models
    from wattline.service.controller import Controller
    from wattline.service.web_settings import WebSettings

PORT = 7717
_GRACE_S = 2  # for requests in progress when the service stops
_SWITCH_S = 0.001  # thread switch interval: a request waits no longer for the scheduler thread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline serve`."""
    add = parser.add_argument
    add(
        "--dir",
        metavar="DIR",
        help="directory of all state (default $WATTLINE_DIR, else ~/.local/state/wattline/service)",
    )
    add(
        "--gpus",
        default="auto",
        metavar="G",
        help="auto: the GPUs of this machine; simulated:4xa100: simulated ones (default auto)",
    )
    add(
        "--engine",
        choices=("local", "slurm"),
        default="local",
        help="local: run jobs on this machine; slurm: through Slurm, with --partition (default local)",
    )
    for flag, name, text in (
        ("--partition", "NAME", "Slurm partition of the jobs"),
        ("--reservation", "NAME", "Slurm reservation of the jobs"),
        ("--account", "NAME", "Slurm account of the jobs"),
        ("--qos", "NAME", "Slurm quality of service of the jobs"),
        ("--gpu-kind", "KIND", "kind of GPUs with a type in Slurm that is not in the library"),
        ("--node-python", "PATH", "Python on the nodes of Slurm (default: that of the service)"),
    ):
        add(flag, default="", metavar=name, help=text)
    add(
        "--node-meter",
        default="auto",
        metavar="M",
        help="meter on the nodes of Slurm: auto, none, or as for --meter (default auto)",
    )
    add(
        "--policy",
        default="auto",
        metavar="P",
        help="scheduling policy (default auto: by priority and fair share, then the market)",
    )
    add(
        "--place",
        default="tune",
        metavar="P",
        help="placer, which assigns GPUs, cores and memory (default tune)",
    )
    add(
        "--models",
        default="library",
        metavar="M",
        help="models of speed and power: library, or a file written by fit --out (default library)",
    )
    add("--host", default="127.0.0.1", metavar="H", help="address to listen on (default 127.0.0.1)")
    add("--port", type=_port, default=PORT, metavar="N", help=f"port (default {PORT}; 0: any free one)")
    add(
        "--rate",
        type=positive_int,
        default=500,
        metavar="N",
        help="requests per second allowed for each caller (default 500)",
    )
    add(
        "--settings",
        metavar="FILE",
        help="settings in TOML, such as [retention] and [web] (default: settings.toml in --dir)",
    )
    add(
        "--seed", type=non_negative_int, default=0, metavar="N", help="seed of all random numbers (default 0)"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, expected 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops the service."""
    folder = service_folder(args.dir).resolve()
    own = args.settings is not None
    settings = read_settings(Path(args.settings) if own else folder / "settings.toml", required=own)
    with StopSignals() as signals, _listen(args.host, args.port) as listener:
        with StartupServer(listener) as startup:
            models = _prepare(args, startup)
            signals.exits_at_once = False
            startup.progress = "restoring the state"
            controller = _open_controller(folder, args, models, settings)
        try:
            controller.start()
            if not signals.received:
                _serve(controller, listener, args, signals, settings.web)
        finally:
            running = _count_running(controller)
            with suppress(OSError):
                (folder / "url").unlink()
            controller.stop()
    notify(_describe_stop(running, folder))
    return 0


def _prepare(args: argparse.Namespace, startup: StartupServer) -> Models | None:
    """Import the service, compile its kernels where needed, and check the arguments; return the models."""

    def show(text: str) -> None:
        startup.progress = text

    progress = announce_compilation("wattline.service.http.app", on_change=show)
    _check_installation()
    models = _check_arguments(args)
    progress.finish()
    return models


def _check_installation() -> None:
    try:
        import uvicorn  # noqa: F401

        import wattline.service.http.app  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("wattline"):
            raise
        raise ConfigError(f"{error.name} is not installed", 'pip install "wattline[service]"') from None


def _check_arguments(args: argparse.Namespace) -> Models | None:
    """Raise for invalid arguments before anything is changed; return the models, None for the library."""
    from wattline.models.library import load_models
    from wattline.placement.parser import parse_placer
    from wattline.policy.parser import parse_policy

    _slurm_options(args)
    if args.policy != "auto":
        parse_policy(args.policy)
    parse_placer(args.place)
    return None if args.models == "library" else load_models(args.models)


def _slurm_options(args: argparse.Namespace) -> SlurmOptions | None:
    """Return where Slurm runs the jobs; None: this machine does."""
    from wattline.backend.engine.slurm.submission import SlurmOptions

    names = ("partition", "reservation", "account", "qos", "gpu_kind", "node_python")
    given = {name: getattr(args, name) for name in names if getattr(args, name)}
    if args.engine == "local":
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{flags} is for Slurm, and the engine is local", "add --engine slurm")
        return None
    if "partition" not in given:
        raise ConfigError("--engine slurm needs a partition", "add --partition NAME; sinfo lists them")
    if args.gpus != "auto":
        raise ConfigError(
            f"--gpus is {args.gpus}, and Slurm has the GPUs of its partition", "leave out --gpus"
        )
    return SlurmOptions(**given, meter=args.node_meter)


def _open_controller(
    folder: Path, args: argparse.Namespace, models: Models | None, settings: ServiceSettings
) -> Controller:
    from wattline.service.controller import Controller

    slurm = _slurm_options(args)

    try:
        return Controller(
            folder,
            gpus=args.gpus,
            policy=args.policy,
            place=args.place,
            models=models,
            seed=args.seed,
            settings=settings,
            slurm=None if slurm is None else replace(slurm, accounts=settings.accounts),
        )
    except ConfigError as error:  # the arguments are valid, but not on this machine or not now
        raise BackendError(error.message, error.hint) from None


def _serve(
    controller: Controller,
    listener: socket.socket,
    args: argparse.Namespace,
    signals: StopSignals,
    web: WebSettings,
) -> None:
    import uvicorn

    from wattline.service.http.app import create_app

    sys.setswitchinterval(_SWITCH_S)
    app = create_app(controller, rate=args.rate, web=web)
    app.state.tokens.ensure_service_token(controller.folder)
    url = _service_url(listener)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _write_public(controller.folder / "url", f"{url}\n")
                notify(_describe_start(controller, url))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            controller.close_streams()
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # the address of the peer decides on trust in web.user_header
        )
    )
    signals.stop_on_signal(server)
    server.run(sockets=[listener])


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """Open a listening socket; requests that come before the service is ready wait in its queue."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(
            f"--host {host}: no such address", "--host 127.0.0.1, or another address of this machine"
        ) from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1024)
        except OSError as error:
            hint = "give another --port; 0 is any free one"
            raise BackendError(f"cannot listen on {host}:{port}: {error.strerror}", hint) from None
        if not _is_loopback(listener):
            notify(
                f"WARNING: {host} is reachable from other machines: any caller with a token can run commands"
                " here, and the connection is not encrypted"
            )
        yield listener


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _service_url(listener: socket.socket) -> str:
    """Return the address for callers on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _write_public(path: Path, text: str) -> None:
    """Write a file that all users can read, atomically."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text)
        new.chmod(0o644)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _describe_start(controller: Controller, url: str) -> str:
    cluster = controller.describe()
    counts = Counter(f"{node['gpus']} {node['kind']}" for node in cluster["nodes"])
    kinds = ", ".join(f"{count} nodes with {kind}" if count > 1 else kind for kind, count in counts.items())
    gpus = pluralize(sum(node["gpus"] for node in cluster["nodes"]), "GPU")
    if cluster["simulated"]:
        kinds += ", SIMULATED: nothing is computed on them and all energy is modelled"
    live = sum(cluster["jobs"].get(state, 0) for state in ("PENDING", "RUNNING"))
    restored = f"; restored {pluralize(live, 'job')}" if live else ""
    return (
        f"listening on {url}: {gpus} ({kinds}); policy {cluster['policy']}; state in"
        f" {controller.folder}{restored}"
    )


def _count_running(controller: Controller) -> int:
    try:
        return int(controller.describe()["jobs"].get("RUNNING", 0))
    except WattlineError:
        return 0


def _describe_stop(running: int, folder: Path) -> str:
    if not running:
        return "stopped; no job is running"
    still = "job is still running" if running == 1 else "jobs are still running"
    return f"stopped; {running} {still}; to resume: wattline serve --dir {folder}"


class StopSignals:
    """Handlers of the signals that stop the service in order, whenever they come."""

    def __init__(self) -> None:
        self.received = False
        self.exits_at_once = True  # nothing is changed yet, and compiling may take long
        self._server: Any = None

    def __enter__(self) -> StopSignals:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
            numbers.append(signal.SIGHUP)
        self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def stop_on_signal(self, server: Any) -> None:
        """Stop *server* at the next signal, or at once if there was one."""
        self._server = server
        server.should_exit = self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if self.exits_at_once:
            raise SystemExit(128 + number)
        if self._server is not None:
            self._server.should_exit = True
