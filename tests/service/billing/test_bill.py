"""Bills from events that are written by hand; every figure is computed again here, from the same events."""

from __future__ import annotations

import json
import math
import sqlite3
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattline.energy.prices import Price
from wattline.energy.time_series import TimeSeries
from wattline.errors import ConfigError
from wattline.measurement.settings import Settings
from wattline.models.library import library
from wattline.service.billing.bill import TeamBill, build_bill, parse_month
from wattline.service.billing.settings import NO_TARIFF, BillSettings, parse_bill_settings
from wattline.service.storage.events import NewEvent, PowerSample
from wattline.service.storage.store import Store

NOVEMBER_S = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
NOW_S = NOVEMBER_S + 16 * 86400.0
HOUR_S = 3600.0


class Writer:
    """Writes the events of jobs as the service does."""

    def __init__(self, store: Store) -> None:
        self.store, self._number = store, 0

    def accept(self, at_s: float, team: str = "vision", user: str = "ann", **more: Any) -> str:
        self._number += 1
        spec = {
            "command": ["true"],
            "workdir": "/",
            "group": more.pop("group", ""),
            "batch_sizes": more.pop("batch_sizes", []),
            "batch": more.pop("batch", 0),
        }
        data = {
            "name": "job",
            "user": user,
            "team": team,
            "priority": 0,
            "sweep": "",
            "submit_s": at_s,
            "fuse": "",
            "submission": {"spec": spec, "columns": {"model": more.pop("model", ""), "gpus": 1, "batch": 0}},
            **more,
        }
        self.store.append(NewEvent(at_s, "accepted", str(self._number), data))
        return str(self._number)

    def start(self, job: str, at_s: float, attempt: int = 1, **more: Any) -> None:
        data = {"attempt": attempt, "gpus": [0], "kind": "v100", "cap_w": None, "fused_with": [], **more}
        self.store.append(NewEvent(at_s, "started", job, data))

    def end(self, job: str, at_s: float, energy_j: float | None, kind: str = "ended", **more: Any) -> None:
        data = {
            "state": "SUCCEEDED",
            "energy_j": energy_j,
            "energy_method": "nvml energy counter",
            "completed_fraction": 1.0,
            "service_s": 1.0,
            "message": "",
            **more,
        }
        self.store.append(NewEvent(at_s, kind, job, data))

    def run(self, at_s: float, lasts_s: float, energy_j: float, start: Any = None, **more: Any) -> str:
        job = self.accept(at_s, **more)
        self.start(job, at_s, **(start or {}))
        self.end(job, at_s + lasts_s, energy_j)
        return job


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with Store.open(tmp_path) as store:
        yield Writer(store)


def bill_of(
    writer: Writer, settings: BillSettings = NO_TARIFF, team: str | None = None, month: str = "2026-11",
    live: dict[str, dict[str, Any]] | None = None,
) -> TeamBill:  # fmt: skip
    return build_bill(
        writer.store,
        settings,
        parse_month(month),
        team,
        now_s=NOW_S,
        models=library(),
        read_live=lambda job: (live or {}).get(job, {}),
    )


def sum_events(path: Path, since_s: float, until_s: float, price: Any = lambda at_s: 1.0) -> dict[str, float]:
    """Return the joules of each job in a time, times a price, by the events alone, in slices of a minute."""
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT at_s, kind, job, data FROM event WHERE job IS NOT NULL ORDER BY seq")
        begun: dict[str, float] = {}
        before: dict[str, float] = {}
        sums: dict[str, float] = {}
        for at_s, kind, job, data in rows.fetchall():
            if kind == "started":
                begun[job] = at_s
            elif kind in ("stopped", "retry", "ended"):
                used_j = json.loads(data)["energy_j"] - before.get(job, 0.0)
                before[job] = json.loads(data)["energy_j"]
                steps = max(1, round((at_s - begun[job]) / 60.0))
                for step in range(steps):
                    middle_s = begun[job] + (step + 0.5) * (at_s - begun[job]) / steps
                    if since_s <= middle_s < until_s:
                        sums[job] = sums.get(job, 0.0) + used_j / steps * price(middle_s)
    return sums


def test_joules_money_and_co2_are_those_of_the_events(writer: Writer) -> None:
    first = writer.accept(NOVEMBER_S - 2 * HOUR_S)
    writer.start(first, NOVEMBER_S - HOUR_S)
    writer.end(first, NOVEMBER_S + HOUR_S, 2.0e6, "stopped")
    writer.start(first, NOVEMBER_S + 2 * HOUR_S, 2, gpus=[0, 1])
    writer.end(first, NOVEMBER_S + 5 * HOUR_S, 9.0e6)
    writer.run(NOVEMBER_S + 10 * HOUR_S, 30 * HOUR_S, 5e6, team="nlp", user="bob")
    writer.run(NOVEMBER_S - 9 * HOUR_S, HOUR_S, 7e6)  # of October
    writer.run(DECEMBER_S + HOUR_S, HOUR_S, 7e6)
    tariff = TimeSeries((0.0, 7 * HOUR_S, 20 * HOUR_S), (0.10, 0.30, 0.20), 86400.0)
    settings = BillSettings(Price(tariff, 1.2), Price.flat(400.0, 1.2), "EUR")
    bill = bill_of(writer, settings)

    energy_j = sum_events(writer.store.path, NOVEMBER_S, DECEMBER_S)
    assert set(energy_j) == {"1", "2"} == {line.job for line in bill.jobs}
    for line in bill.jobs:
        assert line.use.energy_j == pytest.approx(energy_j[line.job])
    assert bill.total.energy_j == pytest.approx(1e6 + 7e6 + 5e6)
    assert bill.teams["vision"].energy_j == bill.users["ann"].energy_j == pytest.approx(8e6)
    assert bill.jobs[0].use.gpu_hours == pytest.approx(1 + 2 * 3)

    def price(at_s: float) -> float:
        hour = at_s % 86400.0 / HOUR_S
        return 1.2 / 3.6e6 * (0.30 if 7 <= hour < 20 else 0.10 if hour < 7 else 0.20)

    money = sum_events(writer.store.path, NOVEMBER_S, DECEMBER_S, price)
    assert bill.total.money == pytest.approx(sum(money.values()), rel=1e-6)
    assert bill.teams["nlp"].money == pytest.approx(money["2"], rel=1e-6)
    assert bill.total.co2_kg == pytest.approx(0.4 * 1.2 * 13e6 / 3.6e6)


def test_the_bill_of_a_team_has_only_its_jobs(writer: Writer) -> None:
    writer.run(NOVEMBER_S, HOUR_S, 1e6, team="vision")
    writer.run(NOVEMBER_S, HOUR_S, 2e6, team="nlp")
    bill = bill_of(writer, team="nlp")
    assert [line.job for line in bill.jobs] == ["2"]
    assert bill.total.energy_j == 2e6


def test_unmetered_and_unknown_energy_is_counted_apart_and_never_0(writer: Writer) -> None:
    unmetered, unknown = writer.accept(NOVEMBER_S), writer.accept(NOVEMBER_S)
    for job, facts in ((unmetered, {"energy_method": "unmetered"}), (unknown, {})):
        writer.start(job, NOVEMBER_S + 1)
        writer.end(job, NOVEMBER_S + 2, 0.0 if job == unmetered else None, **facts)
    bill = bill_of(writer, BillSettings(Price.flat(0.2)))
    assert bill.total.energy_j is None
    assert bill.total.money is None
    assert bill.total.unknown_attempts == 2
    writer.run(NOVEMBER_S, HOUR_S, 1e6)
    assert bill_of(writer).total.energy_j == 1e6


def test_a_running_job_is_billed_until_now(writer: Writer) -> None:
    job = writer.accept(NOW_S - HOUR_S)
    writer.start(job, NOW_S - HOUR_S)
    bill = bill_of(writer, live={job: {"energy_j": 5e5, "energy_method": "nvml energy counter"}})
    assert bill.total.energy_j == 5e5
    assert bill.total.gpu_hours == pytest.approx(1.0)
    assert "the month is not over: this is the bill so far" in bill.notes


def write_samples(writer: Writer, job: str, since_s: float, watts: list[float | None]) -> None:
    """Write a sample of the job's GPU, and one of another GPU, every 10 s."""
    for number, power_w in enumerate(watts):
        at_s = since_s + 10.0 * number
        writer.store.add_power_samples(
            [
                PowerSample(at_s, "n", 0, power_w, None, ("77", job)),
                PowerSample(at_s, "n", 1, 500.0, None, (f"{job}1",)),
            ]
        )


def test_an_attempt_across_the_month_is_divided_by_its_power_samples(writer: Writer) -> None:
    start_s = NOVEMBER_S - 600.0
    job = writer.run(start_s, 1200.0, 90_000.0)
    write_samples(writer, job, start_s, [100.0] * 60 + [200.0] * 60)
    of_november, of_october = bill_of(writer), bill_of(writer, month="2026-10")
    assert of_november.total.energy_j == pytest.approx(60_000.0)
    assert of_october.total.energy_j == pytest.approx(30_000.0)
    note = "1 attempt across the start or end of the month divided by power samples"
    assert note in of_november.notes
    assert note in of_october.notes


@pytest.mark.parametrize("watts", [[100.0] * 60, [], [*[100.0] * 119, None]])
def test_an_attempt_with_missing_samples_is_divided_evenly_and_that_is_announced(
    writer: Writer, watts: list[float | None]
) -> None:
    start_s = NOVEMBER_S - 300.0
    job = writer.run(start_s, 1200.0, 90_000.0)
    writer.run(NOVEMBER_S + 9999.0, 60.0, 5.0)
    write_samples(writer, job, start_s, watts)
    bill = bill_of(writer)
    assert bill.total.energy_j == pytest.approx(67_505.0)
    (note,) = [note for note in bill.notes if "divided" in note]
    assert note.endswith("month divided evenly over time, as power samples are missing")


def test_deleted_jobs_and_missing_tariffs_are_announced(writer: Writer) -> None:
    for _ in range(3):
        writer.run(NOVEMBER_S, HOUR_S, 1e6)
    writer.store.delete(("DELETE FROM job WHERE id = '2'", ()))
    notes = "\n".join(bill_of(writer).notes)
    assert "1 jobs with lower numbers were deleted" in notes
    assert "no tariff is set" in notes
    assert "no CO₂ intensity is set" in notes


def test_caps_save_what_the_measured_model_predicts(writer: Writer) -> None:
    models = library()
    workload = next(one for one in models.workloads if one.metered and "cap_w" in one.measured)
    low_w, high_w = workload.measured["cap_w"]
    cap_w = (low_w + high_w) / 2
    where = {"cap_w": cap_w, "kind": workload.gpu}
    writer.run(NOVEMBER_S, HOUR_S, 6e5, model=workload.model, start=where)
    writer.run(NOVEMBER_S, HOUR_S, 1e5, model="no such model", start=where)
    writer.run(NOVEMBER_S, HOUR_S, 1e5, model=workload.model, start={"kind": workload.gpu})
    caps = bill_of(writer).savings[0]
    samples_s, watts = workload.predict(Settings.of(cap_w=np.array([cap_w, math.nan])))
    per_sample = watts / samples_s
    assert caps.saved_j == pytest.approx(6e5 * (per_sample[1] / per_sample[0] - 1))
    assert caps.extra_s == pytest.approx(HOUR_S * (1 - samples_s[0] / samples_s[1]))
    error = math.hypot(workload.source.samples_error, workload.source.watts_error)
    if math.isfinite(error):
        assert caps.error_j == pytest.approx(6e5 * per_sample[1] / per_sample[0] * math.sqrt(2) * error)
    else:
        assert caps.error_j is None
    assert (caps.jobs, caps.not_estimated_j) == (1, 1e5)
    assert sum(caps.reasons.values()) == 1


def test_fusion_is_compared_with_members_that_ran_alone(writer: Writer) -> None:
    alone_j, fused_j = [1.0e6, 1.2e6, 1.1e6], [4e5, 5e5]
    for used_j in alone_j:
        writer.run(NOVEMBER_S, HOUR_S, used_j, sweep="1", fuse="k")
    for used_j, other in zip(fused_j, ("5", "4"), strict=True):
        writer.run(NOVEMBER_S, HOUR_S, used_j, sweep="1", fuse="k", start={"fused_with": [other]})
    failed = writer.accept(NOVEMBER_S, sweep="1", fuse="k")
    writer.start(failed, NOVEMBER_S, fused_with=["4"])
    writer.end(failed, NOVEMBER_S + HOUR_S, 3e5, state="FAILED")
    fusion = bill_of(writer).savings[1]
    mean_j = sum(alone_j) / 3
    assert fusion.saved_j == pytest.approx(2 * mean_j - sum(fused_j) - 3e5)
    assert fusion.error_j == pytest.approx(2 * statistics.stdev(alone_j) / math.sqrt(3))
    assert fusion.jobs == 3


def test_fusion_without_members_that_ran_alone_is_not_estimated(writer: Writer) -> None:
    writer.run(NOVEMBER_S, HOUR_S, 1e6, sweep="1", fuse="k", start={"fused_with": ["2"]})
    fusion = bill_of(writer).savings[1]
    assert fusion.saved_j is None
    assert fusion.reasons == {"fewer than two members of its sweep succeeded alone": 1}


def test_tuning_is_compared_with_the_default_batch_size_and_pays_for_failed_trials(writer: Writer) -> None:
    def run(batch: int, energy_j: float, state: str = "SUCCEEDED", at_s: float = NOVEMBER_S) -> None:
        job = writer.accept(at_s, group="nightly", batch_sizes=[32, 64, 128], batch=32)
        writer.start(job, at_s, batch=batch)
        writer.end(job, at_s + HOUR_S, energy_j, state=state)

    for energy_j in (1.0e6, 1.4e6):
        run(32, energy_j, at_s=NOVEMBER_S - 5 * 86400.0)  # the baseline may be older than the month
    run(32, 1.3e6)
    run(64, 0.7e6)
    run(128, 0.2e6, "FAILED")
    tuning = bill_of(writer).savings[2]
    baseline = [1.0e6, 1.4e6, 1.3e6]
    assert tuning.saved_j == pytest.approx(sum(baseline) / 3 - 0.7e6 - 0.2e6)
    assert tuning.error_j == pytest.approx(statistics.stdev(baseline) / math.sqrt(3))
    assert tuning.jobs == 2


@pytest.mark.parametrize("text", ["2026-13", "2026-00", "26-11", "2026-1", "9999-12", "now"])
def test_an_invalid_month_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        parse_month(text)


def test_months_end_where_the_next_begin() -> None:
    assert parse_month("2026-11").until_s == parse_month("2026-12").since_s == DECEMBER_S
    assert parse_month("2026-12").until_s == parse_month("2027-01").since_s


def test_tariffs_are_read_from_files_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("time_s,price,carbon\n0,0.1,100\n43200,0.3,500\n")
    table = {"price": "prices.csv/1d", "pue": 1.5, "currency": "EUR"}
    settings = parse_bill_settings(table, "settings.toml", tmp_path)
    assert settings.price is not None
    assert settings.carbon is not None
    assert settings.carbon.per_kwh.values == (100.0, 500.0)
    assert settings.pue == 1.5
    number = parse_bill_settings({"price": 0.2, "carbon": 380}, "settings.toml", tmp_path)
    assert number.carbon == Price.flat(380.0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"prise": 1}, "bill.prise is unknown"),
        ({"price": True}, "bill.price is True, expected a number per kWh, or a CSV file"),
        ({"pue": 0.5}, "bill.pue is 0.5, expected a number from 1 to 10"),
        ({"currency": "E\nR"}, "bill.currency is 'E\\nR'"),
        ({"price": "none.csv"}, "none.csv: cannot be read"),
        ({"carbon": "dear"}, "carbon 'dear': expected g CO₂ per kWh"),
        ([], "bill is [], expected a table"),
    ],
)
def test_wrong_settings_name_the_value(table: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bill_settings(table, "settings.toml", tmp_path)
    assert message in caught.value.message
