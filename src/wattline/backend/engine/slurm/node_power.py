"""Nodes that are switched off and on through Slurm's power saving."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from wattline.backend.engine.slurm.background import CommandThreads
from wattline.backend.engine.slurm.cluster_state import SlurmState, base_state
from wattline.backend.engine.slurm.commands import run_command

_logger = logging.getLogger(__name__)


def find_power_problem(config: Mapping[str, str]) -> str:
    """Return why Slurm cannot switch nodes off by its settings; empty: it can."""
    missing = [
        name for name in ("SuspendProgram", "ResumeProgram") if config.get(name, "(null)") in ("(null)", "")
    ]
    if missing:
        return f"slurm.conf has no {' and no '.join(missing)}"
    if re.match(r"\d+", config.get("SuspendTime", "")) is None:
        return "slurm.conf has no SuspendTime; SuspendTime=1000000 switches only nodes off that are named"
    return ""


class NodePower:
    """Switches nodes by their names. All methods are called from one thread.

    *on_change* is called after each command, so that the state of Slurm is read soon.
    """

    def __init__(
        self, config: Mapping[str, str], threads: CommandThreads, on_change: Callable[[], None]
    ) -> None:
        self._problem, self._threads, self._on_change = find_power_problem(config), threads, on_change
        self._off: dict[str, float] = {}  # by name: when it was switched off, in time of `time.monotonic`
        self._booting: dict[str, float] = {}  # by name: since when, in time of `time.monotonic`
        self._back: set[str] = set()  # could not be switched off
        self._announced: set[str] = set()

    def switch(self, name: str, on: bool, state: SlurmState) -> bool:
        """Switch a node; False: Slurm cannot, or a job is there."""
        if self._problem:
            self._announce(f"nodes are not switched off: {self._problem}")
            return False
        if on:
            off_s = self._off.pop(name, -1.0)
            if state.began_s > off_s and state.power_state(name) == "on":
                self._back.add(name)  # Slurm has booted it for a job of others
                return True
            self._booting[name] = float("inf")
        else:
            use = state.node_use.get(name)
            if base_state(state.node_states.get(name, "")) not in ("idle", "powered_down") or (
                use and use.cpus
            ):
                return False
            self._off[name] = float("inf")  # until scontrol returns
            if state.power_state(name) == "off":
                return True
        word = "POWER_UP" if on else "POWER_DOWN"
        command = ["scontrol", "update", f"NodeName={name}", f"State={word}"]
        self._threads.run(lambda: run_command(command), lambda result: self._on_result(name, on, result))
        return True

    def _on_result(self, name: str, on: bool, result: Any) -> None:
        self._on_change()
        for switched in (self._booting, self._off):
            if name in switched:
                switched[name] = time.monotonic()
        if isinstance(result, Exception):
            self._announce(f"node {name} cannot be switched {'on' if on else 'off'}: {result}")
            self.forget(name)
            self._back.add(name)

    def take_back(self, name: str, state: SlurmState) -> bool:
        """Return once True when a node that was switched is up, or could not be switched off."""
        asked_s = self._booting.get(name)
        if asked_s is not None and state.began_s > asked_s and state.power_state(name) == "on":
            del self._booting[name]
            return True
        is_back = name in self._back
        self._back.discard(name)
        return is_back

    def is_switched(self, name: str) -> bool:
        """Return whether a node is off or boots because this service wants it so."""
        return name in self._off or name in self._booting

    def forget(self, name: str) -> None:
        """Leave a node to Slurm, which has lost it or boots it for a job."""
        self._off.pop(name, None)
        self._booting.pop(name, None)

    def _announce(self, text: str) -> None:
        """Log a sentence once."""
        if text not in self._announced:
            self._announced.add(text)
            _logger.warning("%s", text)
