"""Jobs that this cluster can never run as they are requested: the field, its value, and what there is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Labels
from wattline.errors import Unsatisfiable, did_you_mean
from wattline.jobfile import JobFile
from wattline.jobfile.errors import format_value
from wattline.service.view import ControllerView
from wattline.units import pluralize

if TYPE_CHECKING:
    from wattline.service.submission import Submission

ALLOW_HINT = "--allow-unsatisfiable keeps it in the queue for nodes that may come"
_MODELS_SHOWN = 8


class UnmetRequest(NamedTuple):
    """A field of a job that the cluster cannot satisfy."""

    field: str
    value: str
    limit: str  # what the cluster has
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.field} is {self.value}, but {self.limit}"


def check_satisfiable(view: ControllerView, job: JobFile, submission: Submission) -> None:
    """Raise `Unsatisfiable` for the first field of *job* that this cluster can never satisfy.

    *submission* is a member of the job; members of a sweep do not differ in what they request.
    """
    for unmet in find_unmet_requests(view, submission.spec, submission.columns):
        value = _written_value(job, unmet.field)
        unmet = unmet if value is None else unmet._replace(value=format_value(value))
        raise Unsatisfiable(str(unmet), unmet.hint or ALLOW_HINT, unmet.field)


def find_unmet_requests(
    view: ControllerView, spec: Mapping[str, Any], columns: Mapping[str, Any]
) -> list[UnmetRequest]:
    """Return the fields of a job that this cluster can never satisfy, the most telling first."""
    unmet = [_check_kinds(view.nodes, columns) or _check_gpus(view.nodes, columns)]
    unmet += [*_check_host(view.nodes, spec, columns), _check_power(view, spec, columns)]
    unmet += [_check_deadline(view, spec), _check_model(view, columns)]
    return [one for one in unmet if one is not None]


def fits_host(nodes: Nodes, spec: Mapping[str, Any], columns: Mapping[str, Any]) -> bool:
    """Return whether some node has the cores and the memory that a job requests."""
    return all(one is None for one in _check_host(nodes, spec, columns))


def limit_request(columns: dict[str, Any], nodes: Nodes) -> dict[str, Any]:
    """Return the columns of an elastic job with the largest request, in its range, that the cluster has."""
    least, requested = columns["min_gpus"], columns["gpus"]
    most = max((gpus for _, gpus in _count_gpus(nodes, columns)), default=0)
    if least > most or requested <= most:
        return columns
    host = {name: columns[name] * most / requested for name in ("cpus", "mem_gib")}
    return {**columns, **host, "gpus": most}


def describe_gpus(nodes: Nodes) -> str:
    """Return `6 GPUs: 4 a100, 2 v100`."""
    counts = [(nodes.kind.names[code], gpus) for code, gpus in _count_by_kind(nodes)]
    total = pluralize(sum(gpus for _, gpus in counts), "GPU")
    return f"{total}: {', '.join(f'{gpus} {kind}' for kind, gpus in counts)}"


def _count_by_kind(nodes: Nodes) -> list[tuple[int, int]]:
    codes = np.unique(nodes.kind.codes).tolist()
    return [(code, int(nodes.gpus[nodes.kind.codes == code].sum())) for code in codes]


def _count_gpus(nodes: Nodes, columns: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return code and number of GPUs of each kind that the job accepts."""
    accepted = int(nodes.accepted_kinds(Labels.of([columns["gpu_kind"]]))[0])
    return [(code, gpus) for code, gpus in _count_by_kind(nodes) if accepted >> code & 1]


def _check_kinds(nodes: Nodes, columns: Mapping[str, Any]) -> UnmetRequest | None:
    if _count_gpus(nodes, columns):
        return None
    wanted = columns["gpu_kind"].split("|")
    hint = next(filter(None, (did_you_mean(kind, nodes.kind.names) for kind in wanted)), "")
    limit = f"this cluster has {describe_gpus(nodes)}"
    return UnmetRequest("resources.gpu_type", ", ".join(wanted), limit, hint)


def _check_gpus(nodes: Nodes, columns: Mapping[str, Any]) -> UnmetRequest | None:
    least = columns["min_gpus"] or columns["gpus"]
    if least <= max(gpus for _, gpus in _count_gpus(nodes, columns)):
        return None
    kinds = columns["gpu_kind"].replace("|", ", ")
    limit = f"this cluster has {describe_gpus(nodes)}"
    if kinds:
        limit += f"; the job accepts {kinds}"
    elif len(nodes.kind.names) > 1:
        limit += "; a job runs on GPUs of one kind"
    return UnmetRequest("resources.gpus", str(least), limit)


def _check_host(
    nodes: Nodes, spec: Mapping[str, Any], columns: Mapping[str, Any]
) -> list[UnmetRequest | None]:
    least = max(columns["min_gpus"], 1)
    codes = [code for code, _ in _count_gpus(nodes, columns)]
    accepted = np.isin(nodes.kind.codes, codes) if codes else np.ones(len(nodes), np.bool_)
    result: list[UnmetRequest | None] = []
    requests = (
        ("resources.cpus_per_gpu", columns["cpus"] / max(columns["gpus"], 1), nodes.cpus, "", "CPU cores"),
        ("resources.memory_per_gpu", spec["memory_gib"], nodes.mem_gib, " GiB", "GiB of memory for jobs"),
    )
    for field, per_gpu, of_node, unit, noun in requests:
        held = np.where(accepted, of_node, 0.0)
        per_kind = [float(held[nodes.kind.codes == code].sum()) for code in codes] or [float(held.sum())]
        if per_gpu <= held.max() * (1 + 1e-9) and per_gpu * least <= max(per_kind) * (1 + 1e-9):
            continue
        for_all = f" for each of {least} GPUs" if least > 1 else ""
        limit = f"this cluster has {max(per_kind):.4g} {noun}"
        result.append(UnmetRequest(field, f"{per_gpu:,.12g}{unit}{for_all}", limit))
    return result


def _check_power(
    view: ControllerView, spec: Mapping[str, Any], columns: Mapping[str, Any]
) -> UnmetRequest | None:
    codes = {code for code, _ in _count_gpus(view.nodes, columns)}
    ranges = [
        (view.nodes.kind.word(node), limits)
        for node, limits in enumerate(view.cap_ranges_w)
        if view.nodes.kind.codes[node] in codes and limits is not None
    ]
    if spec["power_w"] is None or not ranges or spec["power_w"] >= min(low for _, (low, _) in ranges):
        return None
    texts = dict.fromkeys(f"{low:g} W to {high:g} W on {kind}" for kind, (low, high) in ranges)
    limit = f"the power limit of a GPU here can be set from {', '.join(texts)}"
    hint = "--allow-unsatisfiable runs it at the lowest limit"
    return UnmetRequest("energy.power", f"{spec['power_w']:g} W", limit, hint)


def _check_deadline(view: ControllerView, spec: Mapping[str, Any]) -> UnmetRequest | None:
    deadline_s, now_s = spec["deadline_s"], view.clock()
    if deadline_s is None or deadline_s > now_s:
        return None
    then, now = (time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at_s)) for at_s in (deadline_s, now_s))
    hint = "give a later one; --allow-unsatisfiable submits it all the same"
    return UnmetRequest("deadline", then, f"that has passed: it is {now} here", hint)


def _check_model(view: ControllerView, columns: Mapping[str, Any]) -> UnmetRequest | None:
    model, workloads = columns["model"], getattr(view.models, "workloads", None)
    if not model or workloads is None or view.models.knows(model):  # type: ignore[attr-defined]
        return None
    names = sorted({one.model for one in workloads}, key=str.casefold)
    hint = did_you_mean(model, names)
    shown = ", ".join(names[:_MODELS_SHOWN]) + (" and more" if len(names) > _MODELS_SHOWN else "")
    limit = f"the models of this service have no such workload; they have {shown}"
    listed = "wattline library lists them all; without a model the job is scheduled all the same"
    return UnmetRequest("model", repr(model), limit, f"{hint} {listed}".strip())


def _written_value(job: JobFile, field: str) -> Any:
    """Return the value of a field as the user wrote it; None: it is the default."""
    section: Any = job
    for name in field.split("."):
        if name not in section.model_fields_set:
            return None
        section = getattr(section, name)
    if isinstance(section, float) and section.is_integer():
        return int(section)
    return " or ".join(section) if isinstance(section, tuple) else section
