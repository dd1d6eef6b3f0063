"""`plan partition --dot`: the nodes are the clusters, and the edges what passes between their operations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.clusters.dot import dot
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.partition.partition import partition

NODE = re.compile(r"^ +([oc]\d+) \[label=(.*)\];$", re.MULTILINE)
EDGE = re.compile(r"^  ([oc]\d+) -> ([oc]\d+) \[label=.*\];$", re.MULTILINE)


@pytest.mark.scripts
@pytest.mark.parametrize("graph", [layered(60), unet(4)], ids=lambda graph: graph.name)
def test_drawn_to_its_depth_it_is_the_forward_graph(graph: Graph) -> None:
    found = partition(graph, top=6, lower=5)
    text = dot(found, depth=99)
    assert text.count("{") == text.count("}")
    assert text.count("subgraph") == sum(1 for _ in found.root.walk()) - 1
    names = {node: json.loads(label) for node, label in NODE.findall(text)}
    forward: set[int] = set(found.forward.tolist())
    assert sorted(names.values()) == sorted(graph.operations.name[o] for o in forward)
    wanted = {
        (graph.operations.name[producer], graph.operations.name[reader])
        for producer in forward
        for reader in forward - {producer}
        if set(graph.operation(producer).writes) & set(graph.operation(reader).reads)
    }
    assert {(names[a], names[b]) for a, b in EDGE.findall(text)} == wanted


def test_above_its_depth_a_cluster_is_one_node() -> None:
    found = partition(layered(60), top=6, lower=5)
    text = dot(found, depth=0)
    assert len(NODE.findall(text)) == len(found.root.children)
    sizes = [len(child.forward) for child in found.root.children if child.children]
    assert sizes
    assert re.findall(r'^  c\d+ \[label="(\d+) operations"\];$', text, re.MULTILINE) == list(map(str, sizes))


@pytest.mark.scripts
def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(layered(60), "g.json")
    words = ["partition", "g.json", "--top", "6", "--lower", "5", "--depth", "1", "--dot"]
    assert CliRunner().invoke(main, [*words, "c.dot"]).exit_code == 0
    assert Path("c.dot").read_text() == dot(partition(layered(60), top=6, lower=5), depth=1)
    ended = CliRunner().invoke(main, [*words, "c.svg"])
    assert ended.exit_code == 2
    assert "c.svg: the suffix must be .dot or .gv" in ended.stderr
