"""`plan partition`: what it prints agrees with the clusters; every error a user can cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.clusters.clusters import Cluster
from memplan.graphs.clusters.interface import Spans
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain, layered
from memplan.graphs.partition.partition import partition

Plan = Callable[..., Result]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan partition` in a folder with chain.json (40 blocks, all alike) and dag.json."""
    monkeypatch.chdir(tmp_path)
    save_graph(chain(40, uniform=True), "chain.json")
    save_graph(layered(60), "dag.json")
    return lambda *arguments: CliRunner().invoke(main, ["partition", *map(str, arguments)])


@pytest.mark.parametrize("name", ["chain.json", "dag.json"])
def test_json_tells_the_clusters(plan: Plan, name: str) -> None:
    result = plan(name, "--top", 6, "--lower", 5, "--depth", 9, "--json")
    assert result.exit_code == 0, result.stderr
    reported = json.loads(result.stdout)
    graph = load_graph(name)
    found = partition(graph, top=6, lower=5)
    rows = iter(reported["clusters"])
    letters: dict[str, str] = {}
    spans = Spans.of(found)

    def compare(cluster: Cluster, level: int) -> None:
        row = next(rows)
        assert row["level"] == level
        assert row["forward"] == [graph.operations.name[o] for o in cluster.forward.tolist()]
        assert row["backward"] == [graph.operations.name[o] for o in cluster.backward.tolist()]
        assert (row["bytes_in"], row["bytes_out"]) == spans.interface(cluster)
        assert letters.setdefault(cluster.identity, row["identity"]) == row["identity"]
        for child in cluster.children:
            compare(child, level + 1)

    compare(found.root, 0)
    assert next(rows, None) is None
    assert len(set(letters.values())) == len(letters)
    walked = list(found.root.walk())
    assert reported["count"] == len(walked)
    assert reported["distinct"] == len({cluster.identity for cluster in walked})
    assert reported["top_level"] == len(found.root.children) <= 6
    assert (reported["top"], reported["lower"], reported["alpha"], reported["tolerance"]) == (6, 5, 0.5, 0.2)


def test_lines_for_people(plan: Plan) -> None:
    result = plan("chain.json", "--top", 6, "--lower", 5)
    assert result.exit_code == 0, result.stderr
    found = partition(load_graph("chain.json"), top=6, lower=5)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("graph     chain-40: 81 operations")
    distinct = len({cluster.identity for cluster in found.root.walk()})
    assert lines[1] == f"clusters  {len(list(found.root.walk()))}, {distinct} distinct, {found.levels} levels"
    assert lines[2] == "apart     1 at the loss, 0 after the backward part"
    assert len(lines) == 6 + len(found.root.children)
    assert lines[5].split()[:3] == ["40", "40", str(len(found.root.children))]
    assert lines[5].endswith("A  block.1 … block.40")


def test_identical_blocks_have_the_same_letter(plan: Plan) -> None:
    rows = json.loads(plan("chain.json", "--top", 45, "--depth", 1, "--json").stdout)["clusters"]
    assert len(rows) == 41
    assert len({row["identity"] for row in rows[2:-1]}) == 1


def test_no_tolerance_at_all(plan: Plan) -> None:
    assert json.loads(plan("dag.json", "--tolerance", "inf", "--json").stdout)["tolerance"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chain.json", "--top", 0], "the top level must have room for one node at least, not 0"),
        (["chain.json", "--lower", 1], "a cluster must have room for two nodes at least, not 1"),
        (["chain.json", "--alpha", "nan"], "alpha must lie between 0 and 8, not nan"),
        (["chain.json", "--alpha", "x"], "'x' is not a valid float"),
        (["chain.json", "--tolerance", -1], "the tolerance must be 0 or more, not -1.0"),
        (["chain.json", "--depth", -1], "-1 is not in the range x>=0"),
        (["nowhere.json"], "nowhere.json: "),
        ([], "Missing argument 'GRAPH'"),
    ],
)
def test_errors_are_one_line(plan: Plan, arguments: list[object], words: str) -> None:
    result = plan(*arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout
