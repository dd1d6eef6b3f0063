"""Checkmate's graphs: there and back, the objects of its class, refusals; nothing of a pickle runs."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.exchange.formats import Options, read, write
from memplan.exchange.nodes import Node, graph_of_nodes
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest
from memplan.graphs.graph import Graph, Kind
from memplan.instances.catalogue import entry
from memplan.planner.baseline import baseline
from node_graphs import nodes, peak

ARGUMENTS: dict[str, Any] = {
    "v": [0, 1, 2],
    "args": {1: [0], 2: [0, 1]},
    "backward_nodes": {2},
    "cost_cpu": {0: 1, 1: 2, 2: 4},
    "cost_ram": {0: 8, 1: 16, 2: 32},
    "node_names": {0: "conv", 1: "Loss", 2: "conv_backward"},
    "cost_ram_parameters": 100,
}


def imported(value: object, folder: Path) -> Graph:
    path = folder / "graph.pkl"
    path.write_bytes(pickle.dumps(value))
    return read("checkmate", path, Options())


@given(nodes, st.integers(0, 3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_there_and_back(tmp_path: Path, drawn: list[Node], parameters: int) -> None:
    graph, path = graph_of_nodes("drawn", drawn, Options(), {}, 2 * parameters), tmp_path / "there.pkl"
    assert write("checkmate", graph, path, Options()) == []
    recomputed = read("checkmate", path, Options())
    assert graph_digest(recomputed) == graph_digest(graph)
    assert baseline(recomputed).peak == peak(drawn) + 2 * parameters


@pytest.mark.parametrize("name", ["fcn8", "segnet"])
def test_an_instance_there_and_back(name: str, tmp_path: Path) -> None:
    graph = entry(name).graph()
    write("checkmate", graph, tmp_path / "there.pkl", Options())
    recomputed = read("checkmate", tmp_path / "there.pkl", Options())
    assert (baseline(recomputed).peak, baseline(recomputed).time) == (
        baseline(graph).peak,
        baseline(graph).time,
    )
    assert recomputed.read_lists == [sorted(row) for row in graph.read_lists]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_of_its_class(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its class pickles: a defaultdict among the attributes. The class is not there when it is read."""
    module = ModuleType("checkmate.core.dfgraph")
    kind: Any = type("DFGraph", (), {"__module__": module.__name__})
    module.DFGraph = kind  # pyright: ignore[reportAttributeAccessIssue]
    with monkeypatch.context() as patch:
        for name in ("checkmate", "checkmate.core", module.__name__):
            patch.setitem(sys.modules, name, module)
        made = kind()
        made.__dict__.update({**ARGUMENTS, "args": defaultdict(list, ARGUMENTS["args"])})
        (tmp_path / "toy.pkl").write_bytes(pickle.dumps(made, protocol=protocol))
    graph = read("checkmate", tmp_path / "toy.pkl", Options())
    assert graph.name == "toy"
    assert list(graph.operations.name) == ["conv", "Loss", "conv_backward"]
    assert graph.read_lists == [[], [0], [0, 1]]
    assert [graph.tensor(k).kind for k in range(4)] == [Kind.ACTIVATION] * 2 + [Kind.GRADIENT, Kind.BUFFER]
    assert (baseline(graph).time, baseline(graph).peak) == (7, 8 + 16 + 32 + 200)


def test_what_is_left_out_is_one_or_none(tmp_path: Path) -> None:
    graph = imported({"v": [0, 1], "args": {1: [0]}}, tmp_path)
    assert (baseline(graph).time, baseline(graph).peak) == (2, 2)
    assert list(graph.operations.name) == ["n0", "n1"]


class Runs:
    """What the attack on a reader of pickles looks like."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def test_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for call in ((Path.touch, mark), (exec, f"open({str(mark)!r}, 'w')"), (print, "ran")):
        with pytest.raises(InputError, match="is not read: it could run anything"):
            imported({**ARGUMENTS, "v": Runs(*call)}, tmp_path)
    assert not mark.exists()


FAULTS: dict[str, tuple[object, str]] = {
    "a-list": ([1], "a DFGraph must be a mapping"),
    "no-nodes": ({}, "v must be numbers of nodes"),
    "words": ({"v": ["a"]}, "a node in v must be a whole number"),
    "behind": ({"v": [0, 1], "args": {0: [1]}}, "node 0 reads node 1"),
    "unknown": ({"v": [0, 1], "args": {1: [7]}}, "node 1 reads node 7"),
    "no-time": ({**ARGUMENTS, "cost_cpu": {0: 1}}, "cost_cpu of node 1"),
    "no-number": ({**ARGUMENTS, "cost_cpu": {0: 1, 1: float("nan"), 2: 1}}, "cost_cpu of node 1"),
    "half": ({**ARGUMENTS, "cost_ram": {0: 0.5}}, "cost_ram of node 0"),
    "args": ({**ARGUMENTS, "args": 3}, "field 'args'"),
    "parameters": ({**ARGUMENTS, "cost_ram_parameters": -1}, "cost_ram_parameters"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line(fault: str, tmp_path: Path) -> None:
    value, words = FAULTS[fault]
    (tmp_path / "g.pkl").write_bytes(pickle.dumps(value))
    result = CliRunner().invoke(main, ["import", "checkmate", str(tmp_path / "g.pkl")])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert words in result.stderr
    assert "g.pkl" in result.stderr


@pytest.mark.parametrize("data", [b"", b"hello", pickle.dumps(ARGUMENTS)[:-9], b"\x80\x04Pid\n."])
def test_no_pickle_at_all(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.pkl").write_bytes(data)
    with pytest.raises(InputError, match=r"g\.pkl: (is not a pickle|names the persistent)"):
        read("checkmate", tmp_path / "g.pkl", Options())


def test_another_class_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "g.pkl").write_bytes(b"ccheckmate.core.schedule\nScheduledResult\n(tR.")
    with pytest.raises(InputError, match=r"holds a checkmate.core.schedule.ScheduledResult, not a DFGraph"):
        read("checkmate", tmp_path / "g.pkl", Options())
    with pytest.raises(InputError, match="no such file"):
        read("checkmate", tmp_path / "none.pkl", Options())


def test_what_has_no_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Checkmate's format has no place for: .*results that stay"):
        write("checkmate", entry("gpt2-6").graph(), tmp_path / "g.pkl", Options())
    lost = write("checkmate", entry("gpt2-6").graph(), tmp_path / "g.pkl", Options(lossy=True))
    assert lost
    recomputed = read("checkmate", tmp_path / "g.pkl", Options(time_unit=1e-9))
    plain = baseline(entry("gpt2-6").graph())
    assert baseline(recomputed).time == pytest.approx(plain.time, rel=1e-3)
