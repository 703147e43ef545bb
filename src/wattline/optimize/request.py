"""The optimiser for other schedulers: a description of jobs and nodes in, where everybody should run out.

Stateless and pure: what is answered depends on what is asked, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wattline.errors import ConfigError, did_you_mean
from wattline.model.cost import energy_cost
from wattline.optimize.event import POSTPONED, Event, Schedule, cost_of
from wattline.optimize.exact import solve
from wattline.optimize.greedy import greedy, randomised
from wattline.optimize.objective import Charges, rolling, to_the_end
from wattline.optimize.search import improve
from wattline.optimize.stick import stick
from wattline.table import Floats, Ints

_OBJECTIVES = {"rolling": rolling, "to_the_end": to_the_end}
_METHODS = ("exact", "search", "randomised", "greedy")
_KEYS = {
    *("now_s", "price_kwh", "pue", "jobs", "nodes", "power_w", "current"),
    *("method", "objective", "seed", "tries", "gap", "time_s"),
}
_JOB_KEYS = {"id", "due_s", "late_per_h", "left_s"}
_NODE_KEYS = {"id", "kind", "gpus"}


def optimize(request: Mapping[str, Any]) -> dict[str, Any]:
    """Where each job should run, what that costs until the next decision, and when that is due.

    *request* has `jobs` (`id`, `due_s`, `late_per_h` money, `left_s[kind][gpus]` seconds), `nodes` (`id`,
    `kind`, `gpus`), `power_w[kind]` (watts of a node with 1, 2, … busy GPUs), `price_kwh`, `pue`, `now_s`,
    `current[job]` (`node`, `gpus`), and `method`, `objective`, `seed`, `tries`, `gap`, `time_s`. A mistake
    raises a `ConfigError` that names the field.
    """
    _known(request, _KEYS, "")
    nodes = _list(request, "nodes", _NODE_KEYS)
    jobs = _list(request, "jobs", _JOB_KEYS)
    sorts = sorted({(_word(n, "kind", w), _whole(n, "gpus", w)) for n, w in nodes})
    event = _event(request, jobs, nodes, sorts)
    where = {(s, i): name for s, names in enumerate(_names(nodes, sorts)) for i, name in enumerate(names)}
    charges = _choice(request, "objective", _OBJECTIVES, "rolling")(event)
    schedule, method = _decide(request, event, charges)
    config, node = _current(request, jobs, event, sorts, {name: at for at, name in where.items()})
    schedule = stick(event, charges, schedule, config, node)
    return _answer(event, schedule, charges.stands_s, jobs, where, method)


def _decide(request: Mapping[str, Any], event: Event, charges: Charges) -> tuple[Schedule, str]:
    method = _choice(request, "method", {name: name for name in _METHODS}, "exact")
    tries, seed = int(_number(request, "tries", "", 1000.0)), int(_number(request, "seed", "", 0.0))
    tried = greedy(event, charges) if method == "greedy" else randomised(event, charges, max(1, tries), seed)
    if method in ("randomised", "greedy"):
        return tried, method
    tried = improve(event, charges, tried)
    if method == "search":
        return tried, method
    best = solve(
        event, charges, gap=_number(request, "gap", "", 1e-3), time_s=_number(request, "time_s", "", 2.0)
    )
    if best is None:
        return tried, "search"
    if tried.worth < best.worth:  # the search ran out of time
        return Schedule(tried.config, tried.node, tried.worth, best.bound), "search"
    return best, method


def _event(
    request: Mapping[str, Any],
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    nodes: Sequence[tuple[Mapping[str, Any], str]],
    sorts: Sequence[tuple[str, int]],
) -> Event:
    power_w = request.get("power_w", {})
    price, pue = _number(request, "price_kwh", "", 1.0), _number(request, "pue", "", 1.0)
    most = max((gpus for _, gpus in sorts), default=0)
    cost_s = np.zeros((len(sorts), most + 1))
    for s, (kind, gpus) in enumerate(sorts):
        watts = power_w.get(kind) if isinstance(power_w, Mapping) else None
        if not isinstance(watts, Sequence) or len(watts) < gpus:
            raise ConfigError(
                f"power_w.{kind} is {watts!r}, expected {gpus} numbers: watts with 1 to {gpus} GPUs busy"
            )
        cost_s[s, 1 : gpus + 1] = energy_cost(np.array(watts[:gpus], np.float64), price_kwh=price, pue=pue)
    configs, times = _times(jobs, sorts)
    count = [sum((n["kind"], n["gpus"]) == sort for n, _ in nodes) for sort in sorts]
    return Event(
        now_s=_number(request, "now_s", "", 0.0),
        nodes=np.array(count, dtype=np.int64),
        gpus=np.array([gpus for _, gpus in sorts], dtype=np.int64),
        cost_s=cost_s,
        config_sort=np.array([s for s, _ in configs], dtype=np.int64),
        config_gpus=np.array([g for _, g in configs], dtype=np.int64),
        left_s=times,
        due_s=np.array([_number(job, "due_s", w, math.inf) for job, w in jobs]),
        late=np.array([_number(job, "late_per_h", w, 0.0) / 3600 for job, w in jobs]),
    )


def _times(
    jobs: Sequence[tuple[Mapping[str, Any], str]], sorts: Sequence[tuple[str, int]]
) -> tuple[list[tuple[int, int]], Floats]:
    """The configurations that jobs know, and how long each takes in each."""
    known: list[dict[tuple[str, int], float]] = []
    for job, where in jobs:
        of_job = {}
        left_s = job.get("left_s")
        if not isinstance(left_s, Mapping) or not left_s:
            raise ConfigError(f"{where}.left_s is {left_s!r}, expected seconds by kind and number of GPUs")
        for kind, by_gpus in left_s.items():
            if not isinstance(by_gpus, Mapping):
                raise ConfigError(f"{where}.left_s.{kind} is {by_gpus!r}, expected seconds by number of GPUs")
            for gpus in by_gpus:
                if not str(gpus).isdecimal() or int(gpus) < 1:
                    raise ConfigError(f"{where}.left_s.{kind} has {gpus!r}, expected a number of GPUs")
                value = _number(by_gpus, gpus, f"{where}.left_s.{kind}", math.nan)
                if not value > 0:
                    raise ConfigError(
                        f"{where}.left_s.{kind}.{gpus} is {value}, expected more than 0 seconds"
                    )
                of_job[kind, int(gpus)] = value
        known.append(of_job)
    wanted = {config for of_job in known for config in of_job}
    configs = [
        (s, g) for s, (kind, room) in enumerate(sorts) for k, g in sorted(wanted) if k == kind and g <= room
    ]
    times = [[of_job.get((sorts[s][0], g), math.inf) for s, g in configs] for of_job in known]
    return configs, np.array(times, dtype=np.float64).reshape(len(jobs), len(configs))


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
    return config, node


def _answer(
    event: Event,
    schedule: Schedule,
    stands_s: float,
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    where: Mapping[tuple[int, int], str],
    method: str,
) -> dict[str, Any]:
    until_s, energy, late = cost_of(event, schedule, stands_s)
    placed: dict[str, Any] = {}
    for row, (job, _) in enumerate(jobs):
        c = int(schedule.config[row])
        if c == POSTPONED:
            placed[str(job["id"])] = {"node": None, "gpus": 0, "expected_tardiness_s": None}
            continue
        left_s = float(event.left_s[row, c])
        tardy_s = max(0.0, event.now_s + left_s - float(event.due_s[row]))
        name = where[int(event.config_sort[c]), int(schedule.node[row])]
        gpus = int(event.config_gpus[c])
        placed[str(job["id"])] = {"node": name, "gpus": gpus, "expected_tardiness_s": tardy_s}
    return {
        "jobs": placed,
        "reschedule_s": event.now_s + until_s if until_s else None,
        "estimated_cost": energy + late,
        "energy_cost": energy,
        "tardiness_cost": late,
        "method": method,
        "gap": schedule.gap if math.isfinite(schedule.gap) else None,
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
        if "id" not in entry or word in seen:
            raise ConfigError(f"{name}[{i}].id is {entry.get('id')!r}, expected a name that no other has")
        seen.add(word)
    return [(entry, f"{name}[{i}]") for i, entry in enumerate(given)]


def _number(given: Mapping[str, Any], name: str, where: str, missing: float) -> float:
    value = given.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int | float) or (math.isnan(value) and name in given):
        raise ConfigError(f"{where}{'.' if where else ''}{name} is {value!r}, expected a number")
    return float(value)


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


def _choice(request: Mapping[str, Any], name: str, known: Mapping[str, Any], usual: str) -> Any:
    word = request.get(name, usual)
    if word not in known:
        raise ConfigError(
            f"{name} is {word!r}, expected one of {', '.join(known)}", did_you_mean(str(word), known)
        )
    return known[word]
