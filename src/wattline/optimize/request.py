"""The optimiser for other schedulers: a description of jobs and nodes in, where everybody should run out.

Stateless and pure: what is answered depends on what is asked, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wattline.core.table import Ints
from wattline.errors import ConfigError, InputError, did_you_mean
from wattline.models.cost import energy_cost
from wattline.optimize import METHODS, OBJECTIVES
from wattline.optimize.decide import Decided, Effort, charges_of, decide
from wattline.optimize.instance import POSTPONED, Event, Schedule, check, cost_of, with_pauses

_KEYS = {
    *("now_s", "price_kwh", "pue", "jobs", "nodes", "power_w", "current", "restart_s"),
    *("method", "objective", "seed", "tries", "gap", "time_s"),
}
_JOB_KEYS = {"id", "due_s", "late_per_h", "left_s"}
_MOST = 1e15  # of anything: finite
_CAP_KEYS = {"cap_w", "left_s", "less_w"}
_NODE_KEYS = {"id", "kind", "gpus"}


def optimize(request: Mapping[str, Any]) -> dict[str, Any]:
    """Where each job should run, what that costs until the next decision, and when that is due.

    *request* has `jobs` (`id`, `due_s`, `late_per_h` money, `left_s[kind][gpus]` seconds,
    or a list of `cap_w`, `left_s` and `less_w`, the watts that its GPUs then draw less), `nodes` (`id`,
    `kind`, `gpus`), `power_w[kind]` (watts of a node with 1, 2, … busy GPUs), `price_kwh`, `pue`, `now_s`,
    `current[job]` (`node`, `gpus`), `restart_s` (what changing it takes), and `method`, `objective`, `seed`,
    `tries`, `gap`, `time_s`. A mistake raises a `ConfigError` that names the field.
    """
    _known(request, _KEYS, "")
    nodes = _list(request, "nodes", _NODE_KEYS)
    jobs = _list(request, "jobs", _JOB_KEYS)
    sorts = sorted({(_word(n, "kind", w), _whole(n, "gpus", w)) for n, w in nodes})
    event, caps_w = _event(request, jobs, nodes, sorts)
    where = {(s, i): name for s, names in enumerate(_names(nodes, sorts)) for i, name in enumerate(names)}
    config, node = _current(request, jobs, event, sorts, {name: at for at, name in where.items()})
    restart_s = _between(request, "restart_s", 0.0, 0.0, _MOST)
    event = with_pauses(event, config, config != POSTPONED, restart_s)
    charges = charges_of(event, _choice(request, "objective", OBJECTIVES, "rolling"))
    method = _choice(request, "method", METHODS, "exact")
    found = decide(event, charges, method, config, node, _effort(request), restart_s)
    return _answer(event, caps_w, found, charges.stands_s, jobs, where)


def _effort(request: Mapping[str, Any]) -> Effort:
    usual = Effort()
    return Effort(
        tries=int(_between(request, "tries", usual.tries, 1, 1e7)),
        seed=int(_between(request, "seed", usual.seed, 0, 2**31)),
        gap=_between(request, "gap", usual.gap, 0.0, 1.0),
        time_s=_between(request, "time_s", usual.time_s, 1e-3, 1e6),
    )


def _event(
    request: Mapping[str, Any],
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    nodes: Sequence[tuple[Mapping[str, Any], str]],
    sorts: Sequence[tuple[str, int]],
) -> tuple[Event, list[int]]:
    """What is asked, and the cap of each configuration."""
    power_w = request.get("power_w", {})
    price, pue = _between(request, "price_kwh", 1.0, 0.0, _MOST), _number(request, "pue", "", 1.0)
    most = max((gpus for _, gpus in sorts), default=0)
    cost_s = np.zeros((len(sorts), most + 1))
    for s, (kind, gpus) in enumerate(sorts):
        watts = power_w.get(kind) if isinstance(power_w, Mapping) else None
        if not isinstance(watts, list) or len(watts) < gpus or not all(map(_is_amount, watts)):
            raise ConfigError(
                f"power_w.{kind} is {watts!r}, expected {gpus} numbers: watts with 1 to {gpus} GPUs busy"
            )
        cost_s[s, 1 : gpus + 1] = energy_cost(np.array(watts[:gpus], np.float64), price_kwh=price, pue=pue)
    ways = [_ways(job, where) for job, where in jobs]
    wanted = sorted({config for of_job in ways for config in of_job})
    configs = [
        (s, g, cap) for s, (kind, room) in enumerate(sorts) for k, g, cap in wanted if k == kind and g <= room
    ]
    table = [[of_job.get((sorts[s][0], g, cap), _NEVER) for s, g, cap in configs] for of_job in ways]
    numbers = np.array(table, dtype=np.float64).reshape(len(jobs), len(configs), 2)
    count = [sum((n["kind"], n["gpus"]) == sort for n, _ in nodes) for sort in sorts]
    event = Event(
        now_s=_between(request, "now_s", 0.0, -_MOST, _MOST),
        nodes=np.array(count, dtype=np.int64),
        gpus=np.array([gpus for _, gpus in sorts], dtype=np.int64),
        cost_s=cost_s,
        config_sort=np.array([s for s, _, _ in configs], dtype=np.int64),
        config_gpus=np.array([g for _, g, _ in configs], dtype=np.int64),
        left_s=numbers[:, :, 0],
        own_s=-energy_cost(numbers[:, :, 1], price_kwh=price, pue=pue),
        due_s=np.array([_between(job, "due_s", math.inf, -_MOST, math.inf, w) for job, w in jobs]),
        late=np.array([_between(job, "late_per_h", 0.0, 0.0, _MOST, w) / 3600 for job, w in jobs]),
    )
    return event, [cap for _, _, cap in configs]


class _Way(NamedTuple):
    """How long a job takes in one way, and how many watts less than usual its GPUs draw."""

    left_s: float
    less_w: float = 0.0


_NEVER = _Way(math.inf)
_Config = tuple[str, int, int]  # kind, GPUs, cap (0: none)


def _ways(job: Mapping[str, Any], where: str) -> dict[_Config, _Way]:
    """In what ways a job can run."""
    found: dict[_Config, _Way] = {}
    left_s = job.get("left_s")
    if not isinstance(left_s, Mapping) or not left_s:
        raise ConfigError(f"{where}.left_s is {left_s!r}, expected seconds by kind and number of GPUs")
    for kind, by_gpus in left_s.items():
        if not isinstance(by_gpus, Mapping):
            raise ConfigError(f"{where}.left_s.{kind} is {by_gpus!r}, expected seconds by number of GPUs")
        for gpus, value in by_gpus.items():
            here = f"{where}.left_s.{kind}"
            if not str(gpus).isdecimal() or str(int(gpus)) != str(gpus) or not 1 <= int(gpus) <= 1024:
                raise ConfigError(f"{here} has {gpus!r}, expected a number of GPUs")
            if value == []:
                raise ConfigError(f"{here}.{gpus} is empty, expected seconds, or some with their caps")
            if not isinstance(value, list):
                found[kind, int(gpus), 0] = _Way(_above_0(by_gpus, gpus, here))
                continue
            for i, capped in enumerate(value):
                at = f"{here}.{gpus}[{i}]"
                _known(capped, _CAP_KEYS, at)
                cap_w = _between(capped, "cap_w", 0.0, 0.0, 1e6, at)
                less_w = _between(capped, "less_w", 0.0, 0.0, _MOST, at)
                if cap_w != int(cap_w) or (kind, int(gpus), int(cap_w)) in found:
                    raise ConfigError(
                        f"{at}.cap_w is {cap_w:g}, expected a whole number that is not there yet"
                    )
                found[kind, int(gpus), int(cap_w)] = _Way(_above_0(capped, "left_s", at), less_w)
    return found


def _above_0(given: Mapping[str, Any], name: str, where: str) -> float:
    value = _number(given, name, where, math.nan)
    if not value > 0:
        raise ConfigError(f"{where}.{name} is {value}, expected more than 0 seconds")
    return value


def _names(
    nodes: Sequence[tuple[Mapping[str, Any], str]], sorts: Sequence[tuple[str, int]]
) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in sorts]
    for node, where in nodes:
        names[sorts.index((node["kind"], node["gpus"]))].append(_word(node, "id", where))
    return names


def _current(
    request: Mapping[str, Any],
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    event: Event,
    sorts: Sequence[tuple[str, int]],
    place: Mapping[str, tuple[int, int]],
) -> tuple[Ints, Ints]:
    """What each job has now; POSTPONED: nothing, or nothing that is still there."""
    config = np.full(event.jobs, POSTPONED, dtype=np.int64)
    node = np.full(event.jobs, -1, dtype=np.int64)
    rows = {str(job["id"]): row for row, (job, _) in enumerate(jobs)}
    current = request.get("current", {})
    if not isinstance(current, Mapping):
        raise ConfigError(f"current is {current!r}, expected a node and a number of GPUs by job")
    for name, held in current.items():
        where = f"current.{name}"
        if name not in rows or not isinstance(held, Mapping):
            raise ConfigError(f"{where} is {held!r}, expected a job with its node and gpus")
        sort, number = place.get(_word(held, "node", where), (-1, -1))
        same = (event.config_sort == sort) & (event.config_gpus == _whole(held, "gpus", where))
        if same.any():
            config[rows[name]], node[rows[name]] = int(np.argmax(same)), number
    try:
        check(event, Schedule(config, node))
    except InputError as error:
        raise ConfigError(f"current cannot be: {error.message}") from None
    return config, node


def _answer(
    event: Event,
    caps_w: Sequence[int],
    found: Decided,
    stands_s: float,
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    where: Mapping[tuple[int, int], str],
) -> dict[str, Any]:
    schedule = found.schedule
    until_s, energy, late = cost_of(event, schedule, stands_s)
    placed: dict[str, Any] = {}
    for row, (job, _) in enumerate(jobs):
        c = int(schedule.config[row])
        if c == POSTPONED:
            placed[str(job["id"])] = {"node": None, "gpus": 0, "cap_w": None, "expected_tardiness_s": None}
            continue
        left_s = float(event.left_s[row, c])
        tardy_s = max(0.0, event.now_s + left_s - float(event.due_s[row]))
        name = where[int(event.config_sort[c]), int(schedule.node[row])]
        placed[str(job["id"])] = {
            "node": name,
            "gpus": int(event.config_gpus[c]),
            "cap_w": caps_w[c] or None,
            "expected_tardiness_s": tardy_s,
        }
    return {
        "jobs": placed,
        "reschedule_s": event.now_s + until_s if until_s else None,
        "estimated_cost": energy + late,
        "energy_cost": energy,
        "tardiness_cost": late,
        "method": found.method,
        "gap": found.gap if math.isfinite(found.gap) else None,
    }


# -- fields


def _known(given: Mapping[str, Any], known: set[str], where: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where or 'the request'} is {given!r}, expected an object")
    for key in given:
        if key not in known:
            expected = f"expected some of {', '.join(sorted(known))}"
            raise ConfigError(
                f"unknown key {where}{'.' if where else ''}{key}, {expected}", did_you_mean(key, known)
            )


def _list(request: Mapping[str, Any], name: str, known: set[str]) -> list[tuple[Mapping[str, Any], str]]:
    """Entries of a list, each with where it is."""
    given = request.get(name)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(f"{name} is {given!r}, expected a list")
    seen: set[str] = set()
    for i, entry in enumerate(given):
        _known(entry, known, f"{name}[{i}]")
        word = str(entry.get("id"))
        if not isinstance(entry.get("id"), str | int) or word in seen:
            raise ConfigError(f"{name}[{i}].id is {entry.get('id')!r}, expected a name that no other has")
        seen.add(word)
    return [(entry, f"{name}[{i}]") for i, entry in enumerate(given)]


def _number(given: Mapping[str, Any], name: str, where: str, missing: float) -> float:
    value = given.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int | float) or (math.isnan(value) and name in given):
        raise ConfigError(f"{where}{'.' if where else ''}{name} is {value!r}, expected a number")
    return float(value)


def _between(
    given: Mapping[str, Any], name: str, usual: float, low: float, high: float, where: str = ""
) -> float:
    value = _number(given, name, where, usual)
    if not low <= value <= high:
        bounds = f"at least {low:g}" if math.isinf(high) or high == _MOST else f"{low:g} to {high:g}"
        raise ConfigError(f"{where}{'.' if where else ''}{name} is {value:g}, expected {bounds}")
    return value


def _is_amount(value: object) -> bool:
    """Whether it is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def _whole(given: Mapping[str, Any], name: str, where: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise ConfigError(f"{where}.{name} is {value!r}, expected a whole number from 1 to 1024")
    return value


def _word(given: Mapping[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}.{name} is {value!r}, expected a name")
    return value


def _choice(request: Mapping[str, Any], name: str, known: Sequence[str], usual: str) -> str:
    word = request.get(name, usual)
    if word not in known:
        raise ConfigError(
            f"{name} is {word!r}, expected one of {', '.join(known)}", did_you_mean(str(word), known)
        )
    return str(word)
