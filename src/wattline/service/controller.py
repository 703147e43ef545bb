"""The one who decides: takes jobs in, lets the loop run over this machine, and writes down what happens.

An epoch is a stretch of the loop under one policy. It begins with whoever is there, so that it can be decided
again from its own log; a restart of the service, another policy or budget, and a table of jobs that has
become mostly past begin a new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wattline.backend.engine.local.backend import Local
from wattline.core.events import METERED
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.snapshot import Meter
from wattline.energy.budgets import DAY_S, Budget, parse_budget
from wattline.errors import Conflict, NotFound, StoreError
from wattline.jobfile import JobFile
from wattline.loop.run import Turn, first_round, header, turns
from wattline.loop.runlog import Log, header_line, round_line
from wattline.placement.parser import parse_placer
from wattline.policy.chain import spell
from wattline.policy.knobs import has_knob, refuse_budget, turned
from wattline.policy.parser import parse_policy
from wattline.service.clock import Clock
from wattline.service.states import LIVE
from wattline.service.storage.projection import Folded
from wattline.service.storage.store import Happened, Store
from wattline.service.submission import accept, life_of

POLICY = "priority+keep+demand+fuse+cap:slowdown=1.1,known=1"
"""Nobody is stopped for anybody else; cores, arrays and caps by what is known of jobs."""
BUDGET_POLICY = "powerflow+fuse"
"""What `auto` is while there is a budget: what holds it may stop and resize jobs."""
PLACE = "tune"

_SPARE_ROWS = 4096  # of the past, that a table may have
_RETRY_S = 2.0
_KEPT_EPOCHS = 100
_NO_HELD = np.empty((0, 2), dtype=np.int64)


class Controller:
    """The service without its doors: see `api` for those. *folder* is all that it knows."""

    def __init__(
        self,
        folder: str | Path,
        *,
        gpus: str = "auto",
        policy: str = "auto",
        place: str = PLACE,
        models: Models | None = None,
        seed: int = 0,
        clock: Callable[[], float] | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self._tell, self._seed, self._policy_text = tell, seed, policy
        self.store = Store.open(self.folder)
        try:
            self.clock = Clock(self.store.last_s(), tell) if clock is None else clock
            self.place: Placer = parse_placer(place)
            self.models = _library() if models is None else models
            self.policy: Policy = self._read_policy()
            self.local = Local(self.folder, gpus, clock=self.clock, hear=self._heard, tell=tell, stays=True)
        except BaseException:
            self.store.close()
            raise
        self._guard = threading.Lock()
        self._changing = threading.Lock()  # who changes a job looks at it first
        self._answering: dict[str, threading.Event] = {}
        self._next = 1 + int(self.store.rows("SELECT coalesce(max(number), 0) FROM job")[0][0])
        self.turn: Turn | None = None
        self.epoch = int(self.store.rows("SELECT coalesce(max(number), 0) FROM epoch")[0][0])
        self.problem = ""  # why nothing is decided
        self.decided_s = 0.0  # how long the last decision took
        self._stopping = self._zero = False
        self.leaving = False  # whoever listens to a stream should let go
        self._thread = threading.Thread(target=self._run, name="wattline-loop", daemon=True)

    # -- life

    def start(self) -> None:
        """Find who was there, and begin to decide."""
        live = self.store.jobs("state IN ('PENDING', 'RUNNING')")
        self.local.adopt([life_of(job) for job in live if not job.held or job.state == "RUNNING"])
        last = "SELECT team, joules FROM meter GROUP BY team HAVING at_s = max(at_s)"
        self.local.count_from(dict(self.store.rows(last)))
        for job in live:
            if job.cancelled:
                self.local.cancel(job.id)
        self._write(Happened(self.clock(), "service", None, {"what": "started", "jobs": len(live)}))
        self._thread.start()

    def stop(self) -> None:
        """Stop to decide; jobs run on, and are found again by the next who serves this folder."""
        self._stopping = self.leaving = True
        self.local.leave()
        try:
            if self._thread.ident is not None:
                self._thread.join()
            self.local.close()
        finally:
            self.store.close()

    # -- the loop

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._one_epoch()
                self.problem = ""
            except Exception as error:  # a broken policy or disk must not end the service
                self.problem = f"{type(error).__name__}: {error}"
                self._tell(f"nothing is decided: {self.problem}\n{traceback.format_exc()}")
                time.sleep(0 if self._stopping else _RETRY_S)

    def _one_epoch(self) -> None:
        if self._zero:
            self.local.zero_meter()
            self._zero = False
        begins = replace(self.local.begins(self._seed), meter=self._metered())
        self.epoch += 1
        said = header(
            self.local, self.policy, self.models, self.place, self._seed, {"epoch": self.epoch}, None, begins
        )
        log = Log(said, self.local.jobs, self.local.nodes)
        self._keep_round(0, log, begins.now_s, *first_round(begins), math.nan, also=self._epoch_row(log))
        loop = turns(self.local, self.policy, self.models, self.place, begins)
        for number, turn in enumerate(loop, 1):
            self.decided_s = self.local.busy_s()
            self.turn = turn
            log.jobs = self.local.jobs
            state = turn.state
            self._keep_round(number, log, state.now_s, turn.events, turn.actions, turn.held, turn.plan.gap)
            self._keep_readings(turn)
            self.problem = ""
            if self._stopping or len(self.local.jobs) > 4 * len(state.queue) + _SPARE_ROWS:
                return

    def _epoch_row(self, log: Log) -> list[tuple[str, tuple[Any, ...]]]:
        old = self.epoch - _KEPT_EPOCHS
        return [
            ("INSERT INTO epoch VALUES (?, ?, ?)", (self.epoch, self.clock(), header_line(log))),
            ("DELETE FROM round WHERE epoch <= ?", (old,)),
            ("DELETE FROM epoch WHERE number <= ?", (old,)),
        ]

    def _keep_round(
        self,
        number: int,
        log: Log,
        now_s: float,
        events: Any,
        actions: Any,
        held: Any,
        gap: float,
        also: Sequence[tuple[str, tuple[Any, ...]]] = (),
    ) -> None:
        """Write a round down, unless nothing happened in it."""
        statements = list(also)
        if len(events) or len(actions) or len(held):
            line = round_line(log.jobs, now_s, events, actions, held, gap)
            statements.append(("INSERT INTO round VALUES (?, ?, ?)", (self.epoch, number, line)))
        if statements:
            self._write(also=statements)

    def _keep_readings(self, turn: Turn) -> None:
        """Write down what the meters said, for budgets of days that outlive an epoch."""
        read = turn.events[turn.events[:, 0] == METERED]
        if not len(read):
            return
        names = ("*", *turn.state.jobs.team.names)
        rows = [(row[2], names[int(row[1]) + 1], row[5]) for row in read.tolist()]
        self._write(also=[("INSERT INTO meter VALUES (?, ?, ?)", row) for row in rows])

    def _metered(self) -> Meter:
        """What was read of the meters today, by whatever process."""
        names = ("*", *self.local.jobs.team.names)
        since_s = math.floor(self.clock() / DAY_S) * DAY_S - 3600.0
        found = self.store.rows(
            "SELECT at_s, team, joules FROM meter WHERE at_s > ? ORDER BY at_s", (since_s,)
        )
        at_s = sorted({row[0] for row in found})
        joules = np.zeros((len(at_s), len(names)))
        for when_s, team, used_j in found:
            if team in names:
                joules[at_s.index(when_s), names.index(team)] = used_j
        return Meter(np.array(at_s), np.maximum.accumulate(joules, axis=0)) if at_s else Meter.unread()

    def _write(self, *events: Happened, also: Sequence[tuple[str, tuple[Any, ...]]] = ()) -> None:
        """Write what the loop has to say; while that cannot be, it waits, and nothing new is started."""
        told = False
        while True:
            try:
                self.store.append(*events, also=also)
                return
            except StoreError as error:
                if self._stopping:
                    return  # the folders of the jobs have it, too
                self.problem = error.message
                if not told:
                    self._tell(f"{error.message}; nothing is started until it can be")
                    told = True
                time.sleep(_RETRY_S)

    def _heard(self, kind: str, job: str, what: dict[str, Any]) -> None:
        if kind == "gone":  # somebody cancels whom the machine does not know
            found = self.store.job(job)
            if found is None or not found.held or found.state != "PENDING":
                return
            facts = {"done": found.done, "service_s": found.service_s, "energy_j": found.energy_j}
            kind, what = (
                "ended",
                {"state": "CANCELLED", "message": "It was cancelled.", "method": found.method},
            )
            what |= facts
        self._write(Happened(self.clock(), kind, job, what))

    # -- what people ask for

    def submit(
        self, job: JobFile, user: str, workdir: str = "/", key: str = "", held: bool = False
    ) -> list[Folded]:
        """Take a job or a sweep in; when this returns it is on the disk. The same *key* is answered once."""
        key, request = (f"{user}/{key}" if key else ""), _digest(job, workdir)
        while key:
            before = self._answered(key, request)
            if before is not None:
                return before
            with self._guard:
                waiting = self._answering.get(key)
                if waiting is None:
                    self._answering[key] = threading.Event()
                    break
            waiting.wait()
        try:
            return self._take_in(job, user, workdir, key, request, held)
        finally:
            if key:
                self._answering.pop(key).set()

    def _answered(self, key: str, request: str) -> list[Folded] | None:
        found = self.store.rows("SELECT request, jobs FROM answered WHERE key = ?", (key,))
        if not found:
            return None
        if found[0][0] != request:
            raise Conflict("this Idempotency-Key was used for another job", "use a new key for each job")
        return [job for name in json.loads(found[0][1]) if (job := self.store.job(name)) is not None]

    def _take_in(
        self, job: JobFile, user: str, workdir: str, key: str, request: str, held: bool
    ) -> list[Folded]:
        jobs = accept(job, user, workdir, self._lasted_s(job))
        with self._guard:
            first, self._next = self._next, self._next + len(jobs)
        ids = [str(first + n) for n in range(len(jobs))]
        now_s = self.clock()
        events = [
            Happened(
                now_s,
                "accepted",
                name,
                {
                    "name": one.name,
                    "user": user,
                    "team": job.team,
                    "priority": job.priority,
                    "sweep": ids[0] if len(ids) > 1 else "",
                    "submit_s": now_s,
                    "fuse": one.fuse,
                    "held": held,
                    "asked": {"work": one.work, "asks": one.asks},
                },
            )
            for name, one in zip(ids, jobs, strict=True)
        ]
        if key:
            events.append(Happened(now_s, "answered", None, {"key": key, "request": request, "jobs": ids}))
        self.store.append(*events)
        taken = self.store.jobs("number BETWEEN ? AND ?", (first, first + len(ids) - 1))
        if not held:
            self.local.submit([life_of(one) for one in taken])
            last = (first, first + len(ids) - 1)
            for (name,) in self.store.rows(
                "SELECT id FROM job WHERE cancelled AND number BETWEEN ? AND ?", last
            ):
                self.local.cancel(name)  # by somebody who was faster than we are
        return taken

    def _lasted_s(self, job: JobFile) -> float | None:
        """How long the last recurrences of a job took."""
        if job.recurring is None:
            return None
        found = self.store.rows(
            "SELECT avg(service_s) FROM (SELECT service_s FROM job WHERE state = 'SUCCEEDED'"
            " AND json_extract(asked, '$.asks.key') = ? ORDER BY number DESC LIMIT 5)",
            (job.recurring.group,),
        )
        return float(found[0][0]) if found[0][0] else None

    def job(self, name: str) -> Folded:
        """One job; a `NotFound` if there is none."""
        found = self.store.job(name)
        if found is None:
            raise NotFound(f"there is no job {name!r}", "wattline queue --all")
        return found

    def cancel(self, name: str, by: str = "") -> Folded:
        """End a job."""
        with self._changing:
            job = self._live(name, "cancelled")
            if not job.cancelled:
                self.store.append(Happened(self.clock(), "cancel", name, {"by": by}))
            self.local.cancel(name)
            return self.job(name)

    def hold(self, name: str, held: bool, by: str = "") -> Folded:
        """Keep a job that waits from starting, or let it."""
        with self._changing:
            job = self._live(name, "held" if held else "released")
            if job.state != "PENDING":
                raise Conflict(f"job {name} is {job.state}, expected PENDING", "only who waits can be held")
            if job.held != held:
                self.store.append(Happened(self.clock(), "hold", name, {"held": held, "by": by}))
                if held:
                    self.local.withdraw(name)
                else:
                    self.local.submit([life_of(self.job(name))])
            return self.job(name)

    def prioritise(self, name: str, priority: float, by: str = "") -> Folded:
        """Let a job go before those with less priority; one that runs keeps running."""
        with self._changing:
            job = self._live(name, "given another priority")
            self.store.append(Happened(self.clock(), "priority", name, {"priority": priority, "by": by}))
            if job.state == "PENDING" and not job.held:
                self.local.prioritise(name, priority)
            return self.job(name)

    def _live(self, name: str, done: str) -> Folded:
        job = self.job(name)
        if job.state not in LIVE:
            raise Conflict(f"job {name} is {job.state} and cannot be {done}")
        return job

    # -- budgets

    def budgets(self) -> list[str]:
        """The budgets in force, as they were written."""
        return list(self.store.setting("budgets") or [])

    def set_budgets(self, texts: Sequence[str], by: str = "") -> list[str]:
        """Hold these budgets from now on, instead of those before."""
        for text in texts:
            parse_budget(text)
        was = self.store.setting("budgets")
        self._read_policy(texts)  # raises before anything is written
        if (was or []) == list(texts):
            return self.budgets()
        now_s = self.clock()
        values = {"budgets": list(texts), "budgets_s": now_s}
        self.store.append(
            *(Happened(now_s, "set", None, {"name": n, "value": v, "by": by}) for n, v in values.items()),
            also=[("DELETE FROM meter", ())],  # what counts begins now
        )
        self.policy, self._zero = self._read_policy(texts), True
        self.local.leave()  # a new epoch, under the new policy
        return self.budgets()

    def _read_policy(self, budgets: Sequence[str] | None = None) -> Policy:
        budgets = self.budgets() if budgets is None else budgets
        text = self._policy_text
        if text == "auto":
            text = BUDGET_POLICY if budgets else POLICY
        policy = parse_policy(text)
        if not budgets:
            return policy
        if not has_knob(policy, "budgets"):
            raise refuse_budget(text)
        return turned(policy, "budgets", tuple(self._from_now(parse_budget(b)) for b in budgets))

    def _from_now(self, budget: Budget) -> Budget:
        """A budget of joules over some time, which counts from when it was set."""
        set_s = float(self.store.setting("budgets_s") or self.clock())
        return replace(budget, horizon_s=set_s + budget.horizon_s)

    def describe(self) -> dict[str, Any]:
        """The machine, the policy, and how deciding goes."""
        nodes, machine, turn = self.local.nodes, self.local.machine, self.turn
        counts = dict(self.store.rows("SELECT state, count(*) FROM job GROUP BY state"))
        free = None if turn is None else int(turn.state.free.sum())
        kinds = [
            {"name": str(nodes.name[n]), "kind": nodes.kind.word(n), "gpus": int(nodes.gpus[n])}
            for n in range(len(nodes))
        ]
        return {
            "nodes": kinds,
            "simulated": bool(machine.simulated),
            "gpus_free": free,
            "energy_method": self.local.describe()["energy"],
            "policy": spell(self.policy),
            "place": spell(self.place),
            "budgets": self.budgets(),
            "epoch": self.epoch,
            "jobs": counts,
            "decision_s": self.decided_s,
            "problem": self.problem or self.store.problem,
        }

    def log_lines(self, epoch: int | None = None) -> list[str]:
        """The log of an epoch, the present one unless said: for `wattline replay`."""
        number = self.epoch if epoch is None else epoch
        found = self.store.rows("SELECT header FROM epoch WHERE number = ?", (number,))
        if not found:
            raise NotFound(f"there is no log of epoch {number}", f"the present one is {self.epoch}")
        lines = self.store.rows("SELECT line FROM round WHERE epoch = ? ORDER BY number", (number,))
        last = json.loads(lines[-1][0])["t"] if lines else 0.0
        end: dict[str, Any] = {
            "t": last,
            "events": [{"metered": -1, "at_s": last, "energy_j": 0.0}],
            "actions": [],
            "held": {},
        }
        return [found[0][0], *(line for (line,) in lines), json.dumps(end, separators=(",", ":")) + "\n"]


def _digest(job: JobFile, workdir: str) -> str:
    return hashlib.sha256(f"{job.model_dump_json()}\n{workdir}".encode()).hexdigest()


def _library() -> Models:
    from wattline.models.library import library

    return library()
