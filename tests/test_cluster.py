from pathlib import Path

import pytest

from wattline.cluster import join_nodes, nodes, parse_cluster, read_cluster
from wattline.errors import ConfigError


def test_a_cluster_text_may_have_several_kinds() -> None:
    cluster = parse_cluster("16xv100:8,cpus=24,mem=500G+4xa100:4,cpus=48,mem=1T")
    assert len(cluster) == 20
    assert cluster.gpus.sum() == 16 * 8 + 4 * 4
    assert cluster.kind.names == ("v100", "a100")
    assert cluster.cpus[-1] == 48
    assert cluster.mem_gib[-1] == 1024
    assert cluster.busy_w[0] < cluster.busy_w[-1]
    assert len(set(cluster.name.tolist())) == 20


def test_racks_are_filled_in_order_and_not_shared_between_kinds() -> None:
    cluster = join_nodes(nodes("v100", count=5, rack_size=2), nodes("a100", count=2))
    assert cluster.rack.tolist() == [0, 0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read ''"),
        ("16", "expected COUNTxKIND:GPUS"),
        ("4xv200:8", "unknown GPU kind 'v200'"),
        ("4xv100:8,cpu=3", "unknown key 'cpu'"),
        ("4xv100:8,cpus=many", "cpus is 'many', expected a number"),
        ("0xv100:8", "count must be above 0, got 0"),
        ("4xv100:0", "gpus must be above 0, got 0"),
        ("4xv100:8,base_w=-1", "base_w must be at least 0"),
        ("missing.toml", "missing.toml: cannot be read"),
    ],
)
def test_an_invalid_cluster_text_is_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    assert words in caught.value.message


def test_a_misspelt_kind_gets_a_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster("4xa10:8")
    assert caught.value.hint.startswith("did you mean a")


def test_an_unknown_kind_is_accepted_if_its_watts_are_given() -> None:
    assert len(parse_cluster("2xz9:4,base_w=400,idle_w=20,busy_w=500")) == 2


def test_a_cluster_is_read_from_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[[nodes]]\nkind = "v100"\ncount = 2\nname = "old"\n\n[[nodes]]\nkind = "a100"\ngpus = 4\n'
    )
    cluster = read_cluster(file)
    assert cluster.name.tolist() == ["old-0", "old-1", "a100-0"]
    assert parse_cluster(str(file)).gpus.tolist() == [8, 8, 4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[nodes]]\ncount = 2", "nodes[0]: kind is missing"),
        ('[[nodes]]\nkind = "v100"\ngpu = 4', "unknown key 'gpu'"),
        ('[[nodes]]\nkind = "v100"\ngpus = "four"', "gpus is 'four', expected a number"),
        ("nodes = 3", "expected [[nodes]] tables"),
        ("= broken", "not TOML"),
    ],
)
def test_an_invalid_toml_file_is_explained(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cluster(file)
    assert words in caught.value.message
    assert str(file) in caught.value.message
