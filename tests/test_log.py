import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from wattline import policy as p
from wattline.engine import run
from wattline.errors import TraceError
from wattline.log import Log, read_log, write_log
from wattline.testing import Scenario, scenarios
from wattline.trace import synth


@pytest.fixture
def log() -> Log:
    from wattline.backend.sim import Sim
    from wattline.cluster import nodes

    return run(Sim(synth(count=40, seed=1), nodes("v100", count=2)), p.Las(), trace={"name": "synth"})


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=scenarios())
def test_a_log_reads_back_as_it_was_written(scenario: Scenario, tmp_path: Path) -> None:
    log = run(scenario.sim(), p.Gandiva(60.0))
    for name in ("run.jsonl", "run.jsonl.gz"):
        write_log(log, tmp_path / name)
        back = read_log(tmp_path / name)
        assert back.header == log.header
        assert np.array_equal(back.events, log.events)
        assert np.array_equal(back.actions, log.actions)
        assert np.array_equal(back.held, log.held)
        assert back.jobs.id.tolist() == log.jobs.id.tolist()
        assert np.array_equal(back.jobs.deadline_s, log.jobs.deadline_s)
        assert back.nodes.kind.words() == log.nodes.kind.words()
        write_log(back, tmp_path / f"again-{name}")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


def test_every_line_is_json_and_the_first_names_policy_seed_and_cluster(log: Log, tmp_path: Path) -> None:
    write_log(log, tmp_path / "run.jsonl")
    header, *rounds = (json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    assert header["policy"] == "Las(quantum_s=300.0)"
    assert header["place"] == "Pack(backfill='easy')"
    assert header["seed"] == 0
    assert header["trace"] == {"name": "synth"}
    assert header["version"]
    assert len(header["nodes"]["gpus"]) == 2
    assert all(set(r) == {"t", "events", "actions", "held"} for r in rounds)
    assert [r["t"] for r in rounds] == sorted(r["t"] for r in rounds)


def test_the_same_run_writes_the_same_bytes_whatever_the_file_is_called(log: Log, tmp_path: Path) -> None:
    write_log(log, tmp_path / "a.gz")
    write_log(log, tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_broken_logs_are_named_by_file_and_line(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_log(log, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + "{broken\n")
    with pytest.raises(TraceError, match=r"run\.jsonl:3: not a line of a run log"):
        read_log(path)
    path.write_text('{"wattline_log": 99}\n')
    with pytest.raises(TraceError, match="wattline_log is 99, expected 2"):
        read_log(path)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(TraceError, match="the log ends early"):
        read_log(path)
    path.write_text(lines[0])
    with pytest.raises(TraceError, match="the log ends early"):
        read_log(path)
    path.write_text('{"wattline_log": 1, "policy": "fifo"}\n')
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
    ],
)
def test_numbers_that_cannot_be_are_found_before_anything_uses_them(
    log: Log, tmp_path: Path, good: str, bad: str, words: str
) -> None:
    path = tmp_path / "run.jsonl"
    write_log(log, path)
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad))
    with pytest.raises(TraceError) as caught:
        read_log(path)
    assert words in caught.value.message
    assert caught.value.line is not None
