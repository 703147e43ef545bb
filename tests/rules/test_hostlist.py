import pytest

from wattline.cluster import parse_cluster
from wattline.errors import ConfigError
from wattline.rules.hostlist import expand_hostlist, find_nodes, match_lists


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7],m2", ["n01", "n02", "n03", "n7", "m2"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("gpu[08-10]-ib", ["gpu08-ib", "gpu09-ib", "gpu10-ib"]),
        ("", []),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, names: list[str]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[1-999999999]"])
def test_a_list_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="the list of nodes"):
        expand_hostlist(text)


def test_other_names_stand_for_nodes_in_order() -> None:
    nodes = parse_cluster("4xv100:8")
    rows, how = match_lists(["gpu[1-2]", "gpu[9-10]"], nodes)
    assert "stand for" in how
    assert find_nodes("gpu[2,10]", nodes, rows).tolist() == [False, True, False, True]
    assert match_lists(["v100-[0-3]"], nodes)[1] == ""
    with pytest.raises(ConfigError, match="rules name the node 'gpu1', expected nodes of the cluster"):
        match_lists(["gpu[1-5]"], nodes)


def test_nodes_can_be_named_by_their_kind() -> None:
    nodes = parse_cluster("1xv100:8+2xa100:8")
    assert find_nodes("kind:a100", nodes, {}).tolist() == [False, True, True]
    assert find_nodes("ALL", nodes, {}).all()
    with pytest.raises(ConfigError, match="has no h100"):
        find_nodes("kind:h100", nodes, {})
