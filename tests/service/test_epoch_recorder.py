"""The run log that a service writes, replayed."""

from pathlib import Path

import pytest

from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.protocols import Policy
from wattline.loop.log_reader import read_log
from wattline.loop.run import build_header, iterate, run
from wattline.loop.runlog import Log
from wattline.loop.state import build_empty_state
from wattline.models import TraceModels
from wattline.placement import Pack
from wattline.service.epoch_recorder import EpochRecorder, read_run_log
from wattline.service.storage.store import Store


@pytest.mark.parametrize(
    "policy", [p.Gavel(round_s=600.0), p.Sia(interval_s=600.0), p.Pollux(explore=2.0), p.Gittins(), p.Las()]
)
def test_the_log_of_an_epoch_replays_also_with_a_policy_that_keeps_a_note(
    tmp_path: Path, policy: Policy
) -> None:
    # The second job comes within a round that the first one's policy has decided without any change.
    jobs = Jobs.of(
        submit_s=[0, 5000, 5100, 9999],
        gpus=[1, 1, 2, 1],
        duration_s=[30000, 9000, 5000, 8000],
        max_gpus=[8] * 4,
    )
    sim = Sim(jobs, parse_cluster("1xv100:2+1xa100:1"))
    state = build_empty_state(jobs, sim.nodes)
    store = Store.open(tmp_path / "store")
    header = build_header(sim, policy, TraceModels(), Pack(), 0, {"epoch": 1}, None, state, state.quotas)
    recorder = EpochRecorder(store, 1, Log(header, jobs, sim.nodes), lambda write: write() and None)
    recorder.record_start(state, 0.0)
    actions = 0
    for number, step in enumerate(iterate(sim, policy, TraceModels(), Pack(), state), 1):
        recorder.record_step(number, step, jobs)
        actions += len(step.actions)
    path = tmp_path / "epoch.jsonl"
    path.write_text("".join(read_run_log(store, 1)))
    log = read_log(path)
    backend = Replay(log)
    again = run(backend, policy, place=Pack(), initial_state=backend.initial_state)
    assert len(again.actions) == actions > 3
