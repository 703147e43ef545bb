"""Division of an attempt's joules at the edges of a month, by the samples of its power."""

from __future__ import annotations

from wattline.service.billing.attempts import AttemptUse
from wattline.service.storage.queries import StoreReader

_SAMPLE_S = 10.0  # between samples
_COMPLETE = 0.9  # of the samples of an attempt have to be there
_MOST_SAMPLES = 2_000_000  # that are read for one attempt, of all GPUs of the cluster


def crosses_edge(attempt: AttemptUse, since_s: float, until_s: float) -> bool:
    """Return whether an attempt has one part within a time and one part outside."""
    starts_before = attempt.start_s < since_s < attempt.end_s
    return starts_before or attempt.start_s < until_s < attempt.end_s


def read_sampled_share(
    store: StoreReader, attempt: AttemptUse, since_s: float, until_s: float
) -> float | None:
    """Return the share of an attempt's joules in a time; None: its samples are missing or too many."""
    expected = (attempt.end_s - attempt.start_s) / _SAMPLE_S
    ((gpus,),) = store.read_rows(
        "SELECT count(*) FROM power_sample WHERE at_s = (SELECT max(at_s) FROM power_sample)"
    )
    if expected * gpus > _MOST_SAMPLES:
        return None
    ((times, samples, known, total, within),) = store.read_rows(
        "SELECT count(DISTINCT at_s), count(*), count(power_w), total(power_w),"
        " total(CASE WHEN at_s >= :since AND at_s < :until THEN power_w END) FROM power_sample"
        " WHERE at_s >= :start AND at_s <= :end AND ',' || jobs || ',' LIKE :job",
        {
            "since": since_s, "until": until_s, "start": attempt.start_s, "end": attempt.end_s,
            "job": f"%,{attempt.job},%",
        },
    )  # fmt: skip
    is_complete = times >= _COMPLETE * expected and samples == known and times >= 2
    return within / total if is_complete and total > 0 else None
