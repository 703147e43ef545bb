from __future__ import annotations

import pytest

from wattline.backend.engine.slurm.cluster_state import NodeUse, SlurmState, parse_jobs, parse_nodes

SEPARATOR = "\x1f"


def row(*columns: str) -> str:
    return SEPARATOR.join(columns)


def test_jobs_are_found_by_the_prefix_of_their_comment() -> None:
    text = "\n".join(
        [
            row("7", "RUNNING", "None", "n1", "ann", "wl:a:1:1"),
            row("8", "RUNNING", "None", "n2", "eve", "see wl:a:1:1"),
            row("9", "PENDING", "Resources", "", "ann", "wl:b:1:1"),
            row("12+0", "RUNNING", "None", "n3", "ann", "wl:a:2:3"),
            row("12+1", "RUNNING", "None", "n4", "ann", "wl:a:2:3"),
        ]
    )
    jobs = parse_jobs(text, "wl:a:", own="ann")
    assert {comment: (job.id, job.nodes) for comment, job in jobs.items()} == {
        "wl:a:1:1": ("7", "n1"),
        "wl:a:2:3": ("12", "n3"),
    }


def test_of_two_jobs_with_one_comment_the_one_that_is_not_over_counts() -> None:
    rows = [
        row("5", "COMPLETED", "None", "n1", "ann", "wl:a:1:1"),
        row("4", "RUNNING", "None", "n1", "ann", "wl:a:1:1"),
    ]
    for text in ("\n".join(rows), "\n".join(reversed(rows))):
        assert parse_jobs(text, "wl:a:", own="ann")["wl:a:1:1"].id == "4"


def test_a_job_counts_only_if_it_is_of_the_user_that_its_comment_names() -> None:
    rows = [
        row("5", "RUNNING", "None", "n1", "eve", "wl:a:1:1"),
        row("6", "RUNNING", "None", "n1", "eve", "wl:a:2:1:bob"),
        row("7", "RUNNING", "None", "n1", "bob", "wl:a:2:1:bob"),
        row("8", "RUNNING", "None", "n1", "eve", "wl:a:2:1:bob"),
        row("9", "RUNNING", "None", "n1", "bob", "wl:a:3:1"),
    ]
    found = parse_jobs("\n".join(rows), "wl:a:", own="ann")
    assert {comment: job.id for comment, job in found.items()} == {"wl:a:2:1:bob": "7"}


@pytest.mark.parametrize(
    ("state", "is_pending", "is_over"),
    [
        ("PENDING", True, False),
        ("RUNNING", False, False),
        ("COMPLETING", False, False),
        ("SUSPENDED", False, False),
        ("COMPLETED", False, True),
        ("NODE_FAIL", False, True),
        ("OUT_OF_MEMORY", False, True),
        ("A_STATE_OF_A_LATER_RELEASE", False, True),
    ],
)
def test_states_of_jobs(state: str, is_pending: bool, is_over: bool) -> None:
    job = parse_jobs(row("1", state, "None", "", "ann", "wl:a:1:1"), "wl:a:", own="ann")["wl:a:1:1"]
    assert (job.is_pending, job.is_over) == (is_pending, is_over)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("idle", ""),
        ("mixed", ""),
        ("allocated*", ""),
        ("idle~", ""),
        ("down*", "down"),
        ("down", "down"),
        ("fail", "down"),
        ("powering_down", ""),
        ("idle%", ""),
        ("drained", "drained"),
        ("draining@", "drained"),
        ("drained*", "drained"),
        ("unknown*", "unknown"),
        ("unk*", "unknown"),
    ],
)
def test_states_of_nodes(state: str, kind: str) -> None:
    states, _ = parse_nodes(node_row(state))
    view = SlurmState(node_states=states)
    found = {"down": view.is_down("n1"), "drained": view.is_drained("n1"), "unknown": view.is_unknown("n1")}
    assert [name for name, is_so in found.items() if is_so] == ([kind] if kind else [])


def node_row(state: str, cpus: str = "0/16/0/16", mem_mib: str = "0", gres: str = "gpu:0") -> str:
    return f"{'n1':<64}{state:<32}{cpus:<40}{mem_mib:<24}{gres:<512}"


def test_the_resources_that_jobs_hold_on_a_node_are_read() -> None:
    _, use = parse_nodes(node_row("mixed", "6/10/0/16", "12000", "gpu:a100:3(IDX:0-1,5),shard:0"))
    assert use == {"n1": NodeUse(3, 6, 12_000)}


@pytest.mark.parametrize(
    ("state", "power"),
    [
        ("idle", "on"),
        ("allocated", "on"),
        ("down*", "on"),
        ("idle~", "off"),
        ("idle%", "off"),
        ("idle!", "off"),
        ("powered_down", "off"),
        ("powering_down", "off"),
        ("idle#", "booting"),
        ("mixed#", "booting"),
        ("powering_up", "booting"),
    ],
)
def test_states_of_power_saving(state: str, power: str) -> None:
    assert SlurmState(node_states={"n1": state}).power_state("n1") == power
