import copy
import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.random_decisions import RandomSwitching, RandomTuning, add_models_and_teams, random_logs
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.events import EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, LEASE_END_EVENTS, METERED
from wattline.core.jobs import Jobs
from wattline.core.table import Labels, Table
from wattline.errors import TraceError
from wattline.loop.log_reader import read_log
from wattline.loop.log_writer import write_log
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.placement.pack import Pack
from wattline.reports import report
from wattline.testing import Scenario, scenarios
from wattline.trace import synth

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def log() -> Log:
    return run(Sim(synth(count=40, seed=1), nodes("v100", count=2)), p.Las(), trace={"name": "synth"})


@pytest.fixture(scope="module")
def varied_log() -> Log:
    """Return a log with every kind of action, and readings by team."""
    jobs = Jobs.of(submit_s=np.arange(12) * 90, gpus=[1, 8, 2] * 4, duration_s=[300, 200, 700, 1000] * 3)
    sim = Sim(add_models_and_teams(jobs, seed=1), nodes("v100", count=2))
    return run(sim, RandomTuning(p.Las(), 1), place=RandomSwitching(Pack(), 1))


def assert_same(one: Table, two: Table) -> None:
    for field in fields(one):  # type: ignore[arg-type]
        ours, theirs = getattr(one, field.name), getattr(two, field.name)
        if isinstance(ours, Labels):
            ours, theirs = np.array(ours.words()), np.array(theirs.words())
        assert np.array_equal(ours, theirs), field.name


def assert_round_trips(log: Log, folder: Path) -> None:
    for name in ("run.jsonl", "run.jsonl.gz"):
        write_log(log, folder / name)
        back = read_log(folder / name)
        assert back.header == log.header
        assert np.array_equal(back.now_s, log.now_s)
        assert np.array_equal(back.events, log.events)
        assert np.array_equal(back.actions, log.actions)
        assert np.array_equal(back.wait_reasons, log.wait_reasons)
        assert_same(back.jobs, log.jobs)
        assert_same(back.nodes, log.nodes)
        write_log(back, folder / f"again-{name}")
        assert (folder / name).read_bytes() == (folder / f"again-{name}").read_bytes()


@RELAXED
@given(scenario=scenarios())
def test_logs_round_trip(scenario: Scenario, tmp_path: Path) -> None:
    assert_round_trips(run(scenario.sim(), p.Gandiva(60.0)), tmp_path)


@pytest.mark.slow
@RELAXED
@given(log=random_logs())
def test_logs_with_caps_batches_switches_and_readings_round_trip(log: Log, tmp_path: Path) -> None:
    assert_round_trips(log, tmp_path)


def test_every_action_and_event_has_its_keys(varied_log: Log, tmp_path: Path) -> None:
    write_log(varied_log, tmp_path / "run.jsonl")
    _, *rounds = (json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    actions = [entry for r in rounds for entry in r["actions"]]
    keys = {tuple(entry) for entry in actions}
    assert ("power_off",) in keys
    assert ("power_on",) in keys
    assert ("retune", "group", "cap_w", "batch", "mcpus", "mem_mib", "read_mib_s") in keys
    assert ("start", "group", "on", "cap_w", "batch") in keys
    assert ("start", "group", "on") in keys
    events = {next(iter(entry)): tuple(entry) for r in rounds for entry in r["events"]}
    assert events["ran"] == ("ran", "at_s", "steps", "rate", "watts")
    assert events["metered"] == ("metered", "at_s", "energy_j")
    assert events["node_back"] == ("node_back", "at_s")
    assert events["ready"] == ("ready", "at_s", "startup_s")


def test_team_numbers_do_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    # The team with number 0 arrives last.
    jobs = add_models_and_teams(Jobs.of(submit_s=range(6), gpus=[4] * 6, duration_s=[300] * 6), seed=2)
    names = ("late", "early", "unused")
    teams = Labels(np.array([1, 1, 1, 1, 1, 0]), names)
    jobs = type(jobs)(**vars(jobs) | {"team": teams})
    log = run(Sim(jobs, nodes("v100", count=2)), RandomTuning(p.fifo))
    write_log(log, tmp_path / "run.jsonl")
    back = read_log(tmp_path / "run.jsonl")
    assert back.jobs.team.names == names
    ended = back.events[np.isin(back.events[:, EVENT_VERB], LEASE_END_EVENTS)]
    is_reading = back.events[:, EVENT_VERB] == METERED
    for number, name in enumerate(names):
        (last_j,) = back.events[is_reading & (back.events[:, EVENT_JOB] == number)][-1:, EVENT_ENERGY_J]
        mine = [back.jobs.team.word(int(job)) == name for job in ended[:, EVENT_JOB]]
        assert last_j == pytest.approx(ended[mine, EVENT_ENERGY_J].sum())


def test_a_run_with_switches_caps_and_readings_is_replayed_from_its_file(
    varied_log: Log, tmp_path: Path
) -> None:
    write_log(varied_log, tmp_path / "run.jsonl.gz")
    again = run(
        Replay(read_log(tmp_path / "run.jsonl.gz")),
        RandomTuning(p.Las(), 1),
        place=RandomSwitching(Pack(), 1),
    )
    assert np.array_equal(again.events, varied_log.events)
    assert np.array_equal(again.actions, varied_log.actions)


def test_every_line_is_json_and_the_header_has_policy_seed_and_cluster(log: Log, tmp_path: Path) -> None:
    write_log(log, tmp_path / "run.jsonl")
    header, *rounds = (json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    assert header["policy"] == "las"
    assert header["place"] == "pack"
    assert header["seed"] == 0
    assert header["trace"] == {"name": "synth"}
    assert header["version"]
    assert len(header["nodes"]["gpus"]) == 2
    assert all(set(r) == {"t", "events", "actions", "held"} for r in rounds)
    assert [r["t"] for r in rounds] == sorted(r["t"] for r in rounds)


@pytest.mark.slow
def test_equal_runs_write_equal_bytes_under_any_file_name(log: Log, tmp_path: Path) -> None:
    write_log(log, tmp_path / "a.gz")
    write_log(log, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_invalid_logs_are_reported_with_file_and_line(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_log(log, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + "{broken\n")
    with pytest.raises(TraceError, match=r"run\.jsonl:3: not a line of a run log"):
        read_log(path)
    path.write_text('{"wattline_log": 99}\n')
    with pytest.raises(TraceError, match="wattline_log is 99, expected 3"):
        read_log(path)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(TraceError, match="the log ends early"):
        read_log(path)
    path.write_text(lines[0])
    with pytest.raises(TraceError, match="the log ends early"):
        read_log(path)
    path.write_text('{"wattline_log": 3, "policy": "fifo"}\n')
    with pytest.raises(TraceError, match="'seed'"):
        read_log(path)
    path.write_text("")
    with pytest.raises(TraceError, match="is empty"):
        read_log(path)
    path.write_bytes(gzip.compress(b"x" * 10_000)[:40])
    with pytest.raises(TraceError, match="cannot be read as a run log"):
        read_log(path)
    with pytest.raises(TraceError, match="cannot be read as a run log"):
        read_log(tmp_path / "missing")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ('"arrived":1,', '"arrived":900000000,', "expected 1: jobs arrive in order"),
        ('"finished":', '"finished":-', "job -"),
        ('"on":[[', '"on":[[7', "node 7"),
        ('"start":', '"start":88', "job 88"),
        ('"group":', '"group":99', "group 99"),
        ('"power_off":', '"power_off":55', "node 55"),
        ('"power_on":1', '"power_on":1.0', "node 1.0 does not exist, expected 0 to 1"),
        ('"power_on":', '"power_up":', "'power_up' is none of start, stop, retune, power_off, power_on"),
        ('"cap_w":110', '"cap_w":110.5', "cap_w is 110.5, expected a whole number"),
        ('"cap_w":110', '"cap_w":-110', "cap_w is -110, expected a whole number"),
        ('"batch":512', '"batch":"512"', "batch is '512', expected a whole number"),
        ('"on":[[0,', '"on":[[0,0.', "expected a whole number above 0"),
        ('"on":[[', '"on":[],"off":[[', "starts on no node"),
        ('"metered":2', '"metered":3', "team 3 does not exist, expected -1 to 2"),
        ('"metered":-1', '"metered":-2', "team -2 does not exist"),
        ('"watts":', '"watts":[],"w":', "watts is [], expected a number"),
        ('"watts":', '"watts":NaN,"w":', "NaN is not a number"),
        ('"watts":', '"watts":1e999,"w":', "watts is inf, expected a number"),
        ('"energy_j":', '"energy_j":true,"e":', "energy_j is True, expected a number"),
        ('"ready":', '"ready":77', "job 77"),
        ('"startup_s":', '"startup_s":null,"s":', "startup_s is None, expected a number"),
        ('"max_gpus":', '"max_gpus":0.5,"m":', "max_gpus is 0.5, expected a whole number"),
        ('"max_batch":1024', '"max_batch":4', "max_batch is 4, expected 0, or at least batch"),
        ('"noise":', '"noise":-1,"n":', "noise is -1.0, expected a finite number, not negative"),
        ('"teams":[', '"teams":["",', "expected each once"),
        ('"off_w":[', '"off_w":["x",', "off_w is 'x', expected a number"),
        ('"boot_s":[', '"boot_s":[1,', "has 3 rows, expected 2"),
        ('"boot_w":[8', '"boot_w":[-8', "negative watts"),
        ('"held":{"', '"held":{"9', "job 9"),
        (':"no_room"', ':"bored"', "'bored' is none of"),
        ('{"t":9', '{"t":-9', "time does not go back"),
        ('"events":[', '"events":[{},', "is empty"),
    ],
)
def test_impossible_values_are_rejected_with_their_line(
    varied_log: Log, tmp_path: Path, good: str, bad: str, words: str
) -> None:
    path = tmp_path / "run.jsonl"
    write_log(varied_log, path)
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad))
    with pytest.raises(TraceError) as caught:
        read_log(path)
    assert words in caught.value.message
    assert caught.value.line is not None
    assert good in text.splitlines()[caught.value.line - 1]


def iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key of nested JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(inside):
        yield value, key
        yield from iterate_places(inner)


@pytest.mark.slow
@settings(RELAXED, max_examples=60)
@given(draw=st.data())
def test_a_log_with_one_wrong_value_is_rejected_or_can_be_reported(
    varied_log: Log, draw: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    write_log(varied_log, path)
    lines = path.read_text().splitlines(keepends=True)
    at = draw.draw(st.one_of(st.just(0), st.integers(0, len(lines) - 1)))
    line = copy.deepcopy(json.loads(lines[at]))
    holder, key = draw.draw(st.sampled_from(list(iterate_places(line))))
    if draw.draw(st.booleans()):
        holder[key] = draw.draw(st.sampled_from((None, -1, 0, 3, 10**30, 0.5, "", "x", True, [], {}, [[0]])))
    else:
        del holder[key]
    lines[at] = json.dumps(line) + "\n"
    path.write_text("".join(lines))
    with suppress(TraceError):
        assert report(read_log(path)).jobs <= report(varied_log).jobs


def test_a_damaged_archive_is_rejected(varied_log: Log, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    write_log(varied_log, path)
    data = bytearray(path.read_bytes())
    for at in range(20, len(data), len(data) // 40):
        torn = data.copy()
        torn[at] ^= 0xFF
        path.write_bytes(torn)
        with pytest.raises(TraceError):
            read_log(path)
