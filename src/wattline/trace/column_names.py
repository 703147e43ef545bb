"""Names that tables of jobs use for their columns, and the units that such names carry."""

from __future__ import annotations

import re

NEEDED = ("submit", "gpus")
"""What a table must have, besides a duration, or start and end."""

TIMES = ("submit", "start", "end")
SPANS = ("duration", "wait", "time_limit")
WORDS = ("id", "user", "team", "model", "kind", "name", "partition", "qos", "status", "nodes")
TARGETS = (*("submit", "duration", "gpus", "start", "end", "wait", "time_limit"), *WORDS, "priority")
"""What a column can be mapped to."""

_SYNONYMS = {
    "submit": (
        "submit submitted submission submit_time submitted_time submission_time time_submit submitted_at"
        " arrival arrive arrived arrival_time arrive_time arrived_at created created_at creation_time"
        " create_time queued_at enqueued enqueued_at enqueue_time submit_date"
    ),
    "duration": (
        "duration runtime run_time running_time service service_time elapsed elapsed_time elapsedraw"
        " execution_time exec_time job_duration job_length length wallclock wallclock_used walltime_used"
        " time_used run_duration"
    ),
    "gpus": (
        "gpus gpu num_gpus num_gpu gpu_num gpus_num gpu_count gpus_count n_gpus n_gpu ngpus ngpu nb_gpus"
        " number_of_gpus requested_gpus gpus_requested req_gpus gpus_req gpu_request gpu_requested"
        " allocated_gpus gpus_allocated alloc_gpus gpu_alloc total_gpus gpus_total used_gpus gpus_used"
        " request_gpus"
    ),
    "start": (
        "start started start_time time_start started_at start_at start_date begin begin_time begun_at"
        " scheduled scheduled_time scheduled_at launch_time launched_at"
    ),
    "end": (
        "end ended end_time time_end ended_at end_at end_date finish finished finish_time finished_at"
        " completion_time completed completed_at complete_time stop_time stopped_at deletion_time"
        " terminated_at"
    ),
    "wait": "wait wait_time waiting_time queue_time queue_wait queued queueing_time queuing_time queue_delay",
    "time_limit": (
        "time_limit timelimit timelimitraw limit walltime wall_time wallclock_limit wallclock_requested"
        " requested_time req_time time_requested requested_walltime walltime_limit walltime_requested"
        " max_runtime max_duration"
    ),
    "id": "id job_id jobid job jobidraw job_uuid uuid task_id run_id pod_id workload_id",
    "user": "user username user_name user_id userid owner uid submitter requester",
    "team": (
        "team account group project vc virtual_cluster organization organisation org department namespace"
        " tenant group_name project_name account_name team_name"
    ),
    "model": "model model_name application app network architecture",
    "kind": "kind gpu_kind gpu_type gpu_model gpu_spec gpu_name gpu accelerator accelerator_type device_type",
    "name": "name job_name jobname task_name pod_name title",
    "partition": "partition queue queue_name partition_name pool resource_pool",
    "qos": "qos priority_class service_class",
    "status": "status state job_state job_status outcome phase exit_state exit_status result",
    "nodes": "nodes num_nodes n_nodes nnodes node_num node_count nodes_allocated node_list nodelist hosts",
    "priority": "priority",
}
SYNONYMS = {target: frozenset(words.split()) for target, words in _SYNONYMS.items()}
"""Names of columns without unit, by what they hold."""

UNITS_S = {
    **dict.fromkeys(
        ("s", "sec", "secs", "second", "seconds", "ts", "timestamp", "epoch", "unix", "utc"), 1.0
    ),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds", "millisecond"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanos", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
"""Seconds of a unit that ends the name of a column."""


def normalize_name(name: str) -> str:
    """Return a column's name in lower case, words separated by one underscore."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", spaced.casefold()).strip("_")


def split_unit(name: str) -> tuple[str, float | None]:
    """Return a column's name without its unit, and the unit in seconds; None: it names none."""
    normal = normalize_name(name)
    stem, _, last = normal.rpartition("_")
    return (stem, UNITS_S[last]) if stem and last in UNITS_S else (normal, None)


def find_targets(name: str) -> tuple[str, ...]:
    """Return what the column *name* may hold, by its name alone."""
    stem, unit_s = split_unit(name)
    words = {stem, stem.replace("_", "")} if unit_s is not None else {stem, normalize_name(name)}
    words |= {normalize_name(name.casefold())}
    found = [target for target in TARGETS if words & SYNONYMS[target]]
    return tuple(t for t in found if unit_s is None or t in (*TIMES, *SPANS))
