"""The optimiser for other schedulers: a description of jobs and nodes in, an assignment out.

Stateless and pure: the answer depends on the request alone.
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
from wattline.optimize.decide import DecisionResult, Effort, compute_charges, decide
from wattline.optimize.instance import (
    POSTPONED,
    Assignment,
    Instance,
    add_restart_pauses,
    check_assignment,
    compute_cost_until_end,
)

_KEYS = {
    *("now_s", "price_kwh", "pue", "jobs", "nodes", "power_w", "current", "restart_s"),
    *("method", "objective", "seed", "tries", "gap", "node_limit", "time_s"),
}
_JOB_KEYS = {"id", "due_s", "late_per_h", "left_s"}
_MOST = 1e15  # of anything: finite
_CAP_KEYS = {"cap_w", "left_s", "less_w"}
_NODE_KEYS = {"id", "kind", "gpus"}


def optimize(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return where each job should run, the cost until the next decision, and when that is due.

    *request* has `jobs` (`id`, `due_s`, `late_per_h` money, `left_s[kind][gpus]` seconds, or a list of
    `cap_w`, `left_s` and `less_w`, the watts that its GPUs draw less under the cap), `nodes` (`id`, `kind`,
    `gpus`), `power_w[kind]` (watts of a node with 1, 2, … busy GPUs), `price_kwh`, `pue`, `now_s`,
    `current[job]` (`node`, `gpus`), `restart_s` (time to move a job), and `method`, `objective`, `seed`,
    `tries`, `gap`, `node_limit`, `time_s`. A mistake raises a `ConfigError` that names the field.
    """
    _check_keys(request, _KEYS, "")
    nodes = _read_list(request, "nodes", _NODE_KEYS)
    jobs = _read_list(request, "jobs", _JOB_KEYS)
    node_types = sorted({(_read_name(n, "kind", w), _read_gpus(n, "gpus", w)) for n, w in nodes})
    instance, caps_w = _build_instance(request, jobs, nodes, node_types)
    where = {
        (s, i): name
        for s, names in enumerate(_list_node_names(nodes, node_types))
        for i, name in enumerate(names)
    }
    config, node = _read_current(
        request, jobs, instance, node_types, {name: at for at, name in where.items()}
    )
    restart_s = _read_between(request, "restart_s", 0.0, 0.0, _MOST)
    instance = add_restart_pauses(instance, config, config != POSTPONED, restart_s)
    charges = compute_charges(instance, _read_choice(request, "objective", OBJECTIVES, "rolling"))
    method = _read_choice(request, "method", METHODS, "exact")
    found = decide(instance, charges, method, config, node, _read_effort(request), restart_s)
    return _build_answer(instance, caps_w, found, charges.valid_s, jobs, where)


def _read_effort(request: Mapping[str, Any]) -> Effort:
    usual = Effort()
    return Effort(
        tries=int(_read_between(request, "tries", usual.tries, 1, 1e7)),
        seed=int(_read_between(request, "seed", usual.seed, 0, 2**31)),
        gap=_read_between(request, "gap", usual.gap, 0.0, 1.0),
        node_limit=int(_read_between(request, "node_limit", usual.node_limit, 1, 1e9)),
        time_s=_read_between(request, "time_s", usual.time_s, 1e-3, 1e6),
    )


def _build_instance(
    request: Mapping[str, Any],
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    nodes: Sequence[tuple[Mapping[str, Any], str]],
    node_types: Sequence[tuple[str, int]],
) -> tuple[Instance, list[int]]:
    """Return the instance of *request*, and the cap of each configuration."""
    power_w = request.get("power_w", {})
    price, pue = _read_between(request, "price_kwh", 1.0, 0.0, _MOST), _read_number(request, "pue", "", 1.0)
    most = max((gpus for _, gpus in node_types), default=0)
    cost_per_s = np.zeros((len(node_types), most + 1))
    for s, (kind, gpus) in enumerate(node_types):
        watts = power_w.get(kind) if isinstance(power_w, Mapping) else None
        if not isinstance(watts, list) or len(watts) < gpus or not all(map(_is_amount, watts)):
            raise ConfigError(
                f"power_w.{kind} is {watts!r}, expected {gpus} numbers: watts with 1 to {gpus} GPUs busy"
            )
        cost_per_s[s, 1 : gpus + 1] = energy_cost(
            np.array(watts[:gpus], np.float64), price_kwh=price, pue=pue
        )
    by_job = [_read_configurations(job, where) for job, where in jobs]
    wanted = sorted({config for of_job in by_job for config in of_job})
    configs = [
        (s, g, cap)
        for s, (kind, room) in enumerate(node_types)
        for k, g, cap in wanted
        if k == kind and g <= room
    ]
    table = [[of_job.get((node_types[s][0], g, cap), _NEVER) for s, g, cap in configs] for of_job in by_job]
    numbers = np.array(table, dtype=np.float64).reshape(len(jobs), len(configs), 2)
    count = [sum((n["kind"], n["gpus"]) == node_type for n, _ in nodes) for node_type in node_types]
    instance = Instance(
        now_s=_read_between(request, "now_s", 0.0, -_MOST, _MOST),
        node_counts=np.array(count, dtype=np.int64),
        gpus=np.array([gpus for _, gpus in node_types], dtype=np.int64),
        cost_per_s=cost_per_s,
        config_node_type=np.array([s for s, _, _ in configs], dtype=np.int64),
        config_gpus=np.array([g for _, g, _ in configs], dtype=np.int64),
        left_s=numbers[:, :, 0],
        own_cost_per_s=-energy_cost(numbers[:, :, 1], price_kwh=price, pue=pue),
        due_s=np.array([_read_between(job, "due_s", math.inf, -_MOST, math.inf, w) for job, w in jobs]),
        late_per_s=np.array([_read_between(job, "late_per_h", 0.0, 0.0, _MOST, w) / 3600 for job, w in jobs]),
    )
    return instance, [cap for _, _, cap in configs]


class _RunTime(NamedTuple):
    """Remaining time of a job in one configuration, and watts that its GPUs draw less than without cap."""

    left_s: float
    less_w: float = 0.0


_NEVER = _RunTime(math.inf)
_Config = tuple[str, int, int]  # kind, GPUs, cap (0: none)


def _read_configurations(job: Mapping[str, Any], where: str) -> dict[_Config, _RunTime]:
    """Return the configurations in which a job can run, with its remaining time in each."""
    found: dict[_Config, _RunTime] = {}
    left_s = job.get("left_s")
    if not isinstance(left_s, Mapping) or not left_s:
        raise ConfigError(f"{where}.left_s is {left_s!r}, expected seconds by kind and number of GPUs")
    for kind, by_gpus in left_s.items():
        if not isinstance(by_gpus, Mapping):
            raise ConfigError(f"{where}.left_s.{kind} is {by_gpus!r}, expected seconds by number of GPUs")
        for gpus, value in by_gpus.items():
            here = f"{where}.left_s.{kind}"
            if not str(gpus).isdecimal() or str(int(gpus)) != str(gpus) or not 1 <= int(gpus) <= 1024:
                raise ConfigError(f"{here} has {gpus!r}, expected a number of GPUs from 1 to 1024")
            if value == []:
                raise ConfigError(f"{here}.{gpus} is empty, expected seconds, or a list of seconds with caps")
            if not isinstance(value, list):
                found[kind, int(gpus), 0] = _RunTime(_read_positive_s(by_gpus, gpus, here))
                continue
            for i, capped in enumerate(value):
                at = f"{here}.{gpus}[{i}]"
                _check_keys(capped, _CAP_KEYS, at)
                cap_w = _read_between(capped, "cap_w", 0.0, 0.0, 1e6, at)
                less_w = _read_between(capped, "less_w", 0.0, 0.0, _MOST, at)
                if cap_w != int(cap_w) or (kind, int(gpus), int(cap_w)) in found:
                    raise ConfigError(
                        f"{at}.cap_w is {cap_w:g}, expected a whole number that is not in the list yet"
                    )
                found[kind, int(gpus), int(cap_w)] = _RunTime(_read_positive_s(capped, "left_s", at), less_w)
    return found


def _read_positive_s(given: Mapping[str, Any], name: str, where: str) -> float:
    value = _read_number(given, name, where, math.nan)
    if not value > 0:
        raise ConfigError(f"{where}.{name} is {value}, expected more than 0 seconds")
    return value


def _list_node_names(
    nodes: Sequence[tuple[Mapping[str, Any], str]], node_types: Sequence[tuple[str, int]]
) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in node_types]
    for node, where in nodes:
        names[node_types.index((node["kind"], node["gpus"]))].append(_read_name(node, "id", where))
    return names


def _read_current(
    request: Mapping[str, Any],
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    instance: Instance,
    node_types: Sequence[tuple[str, int]],
    place: Mapping[str, tuple[int, int]],
) -> tuple[Ints, Ints]:
    """Return the present configuration and node of each job; POSTPONED: none, or none that still exists."""
    config = np.full(instance.jobs, POSTPONED, dtype=np.int64)
    node = np.full(instance.jobs, -1, dtype=np.int64)
    rows = {str(job["id"]): row for row, (job, _) in enumerate(jobs)}
    current = request.get("current", {})
    if not isinstance(current, Mapping):
        raise ConfigError(f"current is {current!r}, expected a node and a number of GPUs by job")
    for name, held in current.items():
        where = f"current.{name}"
        if name not in rows or not isinstance(held, Mapping):
            raise ConfigError(f"{where} is {held!r}, expected a job with its node and gpus")
        node_type, number = place.get(_read_name(held, "node", where), (-1, -1))
        same = (instance.config_node_type == node_type) & (
            instance.config_gpus == _read_gpus(held, "gpus", where)
        )
        if same.any():
            config[rows[name]], node[rows[name]] = int(np.argmax(same)), number
    try:
        check_assignment(instance, Assignment(config, node))
    except InputError as error:
        raise ConfigError(f"current is impossible: {error.message}") from None
    return config, node


def _build_answer(
    instance: Instance,
    caps_w: Sequence[int],
    found: DecisionResult,
    valid_s: float,
    jobs: Sequence[tuple[Mapping[str, Any], str]],
    where: Mapping[tuple[int, int], str],
) -> dict[str, Any]:
    assignment = found.assignment
    until_s, energy, late = compute_cost_until_end(instance, assignment, valid_s)
    placed: dict[str, Any] = {}
    for row, (job, _) in enumerate(jobs):
        c = int(assignment.config[row])
        if c == POSTPONED:
            placed[str(job["id"])] = {"node": None, "gpus": 0, "cap_w": None, "expected_tardiness_s": None}
            continue
        left_s = float(instance.left_s[row, c])
        tardy_s = max(0.0, instance.now_s + left_s - float(instance.due_s[row]))
        name = where[int(instance.config_node_type[c]), int(assignment.node[row])]
        placed[str(job["id"])] = {
            "node": name,
            "gpus": int(instance.config_gpus[c]),
            "cap_w": caps_w[c] or None,
            "expected_tardiness_s": tardy_s,
        }
    return {
        "jobs": placed,
        "reschedule_s": instance.now_s + until_s if until_s else None,
        "estimated_cost": energy + late,
        "energy_cost": energy,
        "tardiness_cost": late,
        "method": found.method,
        "gap": found.gap if math.isfinite(found.gap) else None,
    }


# -- fields


def _check_keys(given: Mapping[str, Any], known: set[str], where: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where or 'the request'} is {given!r}, expected an object")
    for key in given:
        if key not in known:
            expected = f"expected some of {', '.join(sorted(known))}"
            raise ConfigError(
                f"unknown key {where}{'.' if where else ''}{key}, {expected}", did_you_mean(key, known)
            )


def _read_list(request: Mapping[str, Any], name: str, known: set[str]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the entries of a list, each with its path for messages."""
    given = request.get(name)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(f"{name} is {given!r}, expected a list")
    seen: set[str] = set()
    for i, entry in enumerate(given):
        _check_keys(entry, known, f"{name}[{i}]")
        word = str(entry.get("id"))
        if not isinstance(entry.get("id"), str | int) or word in seen:
            raise ConfigError(
                f"{name}[{i}].id is {entry.get('id')!r}, expected a name or number that is unique"
            )
        seen.add(word)
    return [(entry, f"{name}[{i}]") for i, entry in enumerate(given)]


def _read_number(given: Mapping[str, Any], name: str, where: str, missing: float) -> float:
    value = given.get(name, missing)
    if isinstance(value, bool) or not isinstance(value, int | float) or (math.isnan(value) and name in given):
        raise ConfigError(f"{where}{'.' if where else ''}{name} is {value!r}, expected a number")
    return float(value)


def _read_between(
    given: Mapping[str, Any], name: str, usual: float, low: float, high: float, where: str = ""
) -> float:
    value = _read_number(given, name, where, usual)
    if not low <= value <= high:
        bounds = f"at least {low:g}" if math.isinf(high) or high == _MOST else f"{low:g} to {high:g}"
        raise ConfigError(f"{where}{'.' if where else ''}{name} is {value:g}, expected {bounds}")
    return value


def _is_amount(value: object) -> bool:
    """Return whether *value* is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def _read_gpus(given: Mapping[str, Any], name: str, where: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise ConfigError(f"{where}.{name} is {value!r}, expected a whole number from 1 to 1024")
    return value


def _read_name(given: Mapping[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}.{name} is {value!r}, expected a name")
    return value


def _read_choice(request: Mapping[str, Any], name: str, known: Sequence[str], usual: str) -> str:
    word = request.get(name, usual)
    if word not in known:
        raise ConfigError(
            f"{name} is {word!r}, expected one of {', '.join(known)}", did_you_mean(str(word), known)
        )
    return str(word)
