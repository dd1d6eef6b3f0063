"""MOCCASIN's instances: there and back, both dialects, the same optimum, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner
from exact import optimal_time
from hypothesis import HealthCheck, given, settings
from memplan.cli.main import main
from memplan.exchange.formats import Options, read, write
from memplan.exchange.nodes import Node
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, save_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Phase
from memplan.instances.catalogue import entry
from memplan.planner.baseline import baseline
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from node_graphs import graph_with, nodes, peak, random_nodes

LAYERED = {
    "directed": True,
    "multigraph": False,
    "graph": {"name": "layered", "order": [0, 2, 3, 1]},
    "nodes": [
        {"out_cost": 5, "param_cost": 0, "duration": 0, "name": 0},
        {"out_cost": 1, "param_cost": 0, "duration": 7, "name": 1},
        {"out_cost": 3, "param_cost": 0, "duration": 2, "name": 2},
        {"out_cost": 2, "param_cost": 0, "duration": 4, "name": 3},
    ],
    "links": [{"0": 0, "1": 2}, {"0": 0, "1": 3}, {"0": 2, "1": 1}, {"0": 3, "1": 1}],
}
Document = dict[str, Any]


def imported(document: object, folder: Path) -> Graph:
    path = folder / "instance.json"
    path.write_text(json.dumps(document))
    return read("moccasin", path, Options())


@given(nodes)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_there_and_back(tmp_path: Path, drawn: list[Node]) -> None:
    graph, path = graph_with(drawn), tmp_path / "there.json"
    assert write("moccasin", graph, path, Options()) == []
    recomputed = read("moccasin", path, Options())
    assert graph_digest(recomputed) == graph_digest(graph)
    figures = baseline(recomputed)
    assert (figures.peak, figures.time) == (peak(drawn), sum(node.time for node in drawn))


@pytest.mark.parametrize("name", ["fcn8", "unet", "segnet"])
def test_an_instance_there_and_back(name: str, tmp_path: Path) -> None:
    graph = entry(name).graph()
    write("moccasin", graph, tmp_path / "there.json", Options())
    recomputed = read("moccasin", tmp_path / "there.json", Options())
    assert np.array_equal(recomputed.tensors.bytes, graph.tensors.bytes)
    assert np.array_equal(recomputed.operations.time, graph.operations.time)
    assert recomputed.read_lists == [sorted(row) for row in graph.read_lists]
    assert (baseline(recomputed).peak, baseline(recomputed).time) == (
        baseline(graph).peak,
        baseline(graph).time,
    )


def test_what_networkx_writes_is_read(tmp_path: Path) -> None:
    dag = nx.DiGraph(name="two")
    dag.add_node(0, name="a", backward=False, cost_cpu=2, cost_ram=8)
    dag.add_node(1, name="b", backward=True, cost_cpu=3, cost_ram=4)
    dag.add_edge(0, 1)
    for edges in ("links", "edges"):
        graph = imported(nx.node_link_data(dag, edges=edges), tmp_path)
        assert list(graph.operations.name) == ["a", "b"]
        assert list(graph.operations.phase) == [Phase.FORWARD, Phase.BACKWARD]
        assert (baseline(graph).time, baseline(graph).peak) == (5, 12)


def test_a_random_layered_graph_keeps_its_order(tmp_path: Path) -> None:
    graph = imported(LAYERED, tmp_path)
    assert list(graph.operations.name) == ["n0", "n2", "n3", "n1"]
    assert list(graph.operations.time) == [0, 2, 4, 7]
    assert baseline(graph).peak == 5 + 3 + 2


def test_a_solved_schedule_by_the_simulator(tmp_path: Path) -> None:
    """The optimum by exhaustive search of what was written; bound and schedule of what was read."""
    for seed in range(3):
        graph = graph_with(random_nodes(Random(seed), 6))
        write("moccasin", graph, tmp_path / "there.json", Options())
        recomputed = read("moccasin", tmp_path / "there.json", Options())
        budget = baseline(recomputed).peak - 1
        best = optimal_time(graph, budget)
        assert best is not None
        found = solve("search", Problem(recomputed, budget))
        assert found.figures.peak <= budget
        assert found.lower_bound is not None
        assert found.lower_bound <= best <= found.figures.time


def test_times_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(LAYERED))
    graph = read("moccasin", path, Options(time_unit=1e-6))
    assert graph.operations.time.tolist() == pytest.approx([0, 2e-6, 4e-6, 7e-6])
    assert write("moccasin", graph, tmp_path / "there.json", Options(time_unit=1e-6)) == []
    recomputed = read("moccasin", tmp_path / "there.json", Options(time_unit=1e-6))
    assert graph_digest(recomputed) == graph_digest(graph)


def with_node(**fields: Any) -> Document:
    return {**LAYERED, "nodes": [{**LAYERED["nodes"][0], **fields}, *LAYERED["nodes"][1:]]}


FAULTS = {
    "no-graph": ({"nodes": []}, "no directed graph"),
    "no-links": ({"directed": True, "nodes": []}, "field 'links' must be a list"),
    "circle": ({**LAYERED, "links": [*LAYERED["links"], {"0": 1, "1": 0}]}, "go round in a circle"),
    "unknown-node": ({**LAYERED, "links": [{"0": 0, "1": 9}]}, "a link names 9"),
    "half-a-link": ({**LAYERED, "links": [{"0": 0}]}, "a link names None"),
    "twice": (with_node(name=1), "two nodes have the id 1"),
    "no-id": (with_node(name=None), "has no id"),
    "no-time": (with_node(duration=None), "'cost_cpu' (or 'duration')"),
    "endless": (with_node(duration="x"), "'cost_cpu' (or 'duration')"),
    "negative": (with_node(out_cost=-1), "'cost_ram' (or 'out_cost')"),
    "half-a-byte": (with_node(out_cost=1.5), "'cost_ram' (or 'out_cost')"),
    "parameters": (with_node(param_cost=3), "param_cost"),
    "order-lacks": ({**LAYERED, "graph": {"order": [0, 2, 3]}}, "not the nodes, each once"),
    "order-wrong": ({**LAYERED, "graph": {"order": [0, 1, 2, 3]}}, "has 1 before 2"),
    "too-large": (with_node(out_cost=2**62), "2 EiB"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line(fault: str, tmp_path: Path) -> None:
    document, words = FAULTS[fault]
    (tmp_path / "m.json").write_text(json.dumps(document))
    result = CliRunner().invoke(main, ["import", "moccasin", str(tmp_path / "m.json")])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
    assert "m.json" in result.stderr


def test_what_has_no_place_is_refused_or_named(tmp_path: Path) -> None:
    graph, path = chain(4), tmp_path / "there.json"
    with pytest.raises(InputError, match=r"MOCCASIN's format has no place for: .*--lossy"):
        write("moccasin", graph, path, Options())
    assert not path.exists()
    lost = write("moccasin", graph, path, Options(lossy=True))
    assert any("inputs and persistent" in line for line in lost)
    recomputed = read("moccasin", path, Options(time_unit=1e-9))
    assert len(recomputed.operations) == len(graph.operations)
    assert baseline(recomputed).time == pytest.approx(baseline(graph).time)


def test_several_outputs_and_contributions_count_where_they_come(tmp_path: Path) -> None:
    two = graph_with([Node("a", 1, 3, []), Node("b", 1, 4, [0]), Node("c", 1, 5, [0, 1])])
    written = replace(
        two.operations, writes=two.operations.writes.joined(type(two.operations.writes).of([[1], [], []]))
    )
    graph = replace(two, operations=written)
    lost = write("moccasin", graph, tmp_path / "there.json", Options(lossy=True))
    assert [line.split(" ", 1)[1][:20] for line in lost] == ["operations with seve", "tensors that are sum"]
    recomputed = read("moccasin", tmp_path / "there.json", Options())
    assert recomputed.tensors.bytes.tolist() == [7, 0, 5]


def test_import_and_export_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def plan(*words: str) -> Any:
        result = CliRunner().invoke(main, [*words, "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    save_graph(entry("unet").graph(), "unet.json")
    assert plan("export", "moccasin", "unet.json", "-o", "m.json")["lost"] == []
    said = plan("import", "moccasin", "m.json", "-o", "again.yaml")
    assert (said["operations"], said["graph"], said["name"]) == (71, "again.yaml", "unet")
    assert said["source"]["kind"] == "moccasin"
    solved = plan("solve", "again.yaml", "--budget", "90%", "--solver", "search", "-o", "s.json")
    assert plan("check", "s.json", "--graph", "again.yaml")["time"] == solved["time"]


@pytest.mark.parametrize(
    ("unit", "words"), [("0s", "above 0"), ("x", "not a time"), ("nan", "not a time"), ("2h", "not a time")]
)
def test_a_unit_that_is_none(unit: str, words: str) -> None:
    result = CliRunner().invoke(main, ["import", "moccasin", "m.json", "--time-unit", unit])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert words in result.stderr
