"""Rockmate's graphs: a chain by hand, figures in closed form, a solved schedule, refusals.

The pickles are of stand-ins with rkgb's class names and attributes: rkgb itself needs another PyTorch.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.graph import Kind, Phase
from memplan.planner.baseline import baseline
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

CLASSES = {
    "rkgb.rkgb": ["Result"],
    "rkgb.core.backward": ["ForwardAndBackwardGraph", "ComputationNode", "AllocationNode", "ParameterNode"],
}


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """rkgb's, as far as pickles know them: gone when the test reads."""
    found: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        for name in ("rkgb", "rkgb.core", *CLASSES):
            patch.setitem(sys.modules, name, ModuleType(name))
        for module, names in CLASSES.items():
            for name in names:
                found[name] = type(name, (), {"__module__": module})
                setattr(sys.modules[module], name, found[name])
        yield found


def made(kind: Any, **fields: Any) -> Any:
    one = kind()
    one.__dict__.update(fields)
    return one


def chain(classes: dict[str, Any]) -> Any:
    def computation(name: str, time: float, overhead: int, *, is_fwd: bool = True, rand: bool = False) -> Any:
        return made(
            classes["ComputationNode"],
            name=name,
            is_fwd=is_fwd,
            is_rand=rand,
            time=time,
            mem_overhead=overhead,
            deps_real=set(),
            required_parameter_nodes_real=set(),
        )

    def allocation(name: str, kind: str, mem: int, *deps: Any) -> Any:
        fields: Any = {"name": f"{name} {kind}", "allocation_type": kind, "mem": mem, "deps": set(deps)}
        return made(classes["AllocationNode"], **fields)

    f1, f2 = computation("FWD[a]", 1.0, 3, rand=True), computation("FWD[b]", 2.0, 0)
    loss = computation("FWD[loss]", 0, 0)
    b2, b1 = computation("BWD[b]", 4.0, 5, is_fwd=False), computation("BWD[a]", 8.0, -1, is_fwd=False)
    d1, phantoms = allocation("a", "data", 4, f1), allocation("a", "phantoms", 2, f1)
    d2, g2, g1 = (
        allocation("b", "data", 8, f2),
        allocation("b", "grad", 8, loss),
        allocation("a", "grad", 4, b2),
    )
    weight = made(classes["ParameterNode"], param_name="w", mem=16, is_buffer=False)
    for node, reads in ((f2, {d1}), (loss, {d2}), (b2, {d1, g2}), (b1, {g1, phantoms})):
        node.deps_real = reads
    f1.required_parameter_nodes_real = {weight}
    return made(
        classes["ForwardAndBackwardGraph"],
        computation_nodes=[f1, f2, loss, b2, b1],
        allocation_nodes=[d1, d2, g2, g1, phantoms],
        parameter_nodes=[weight],
        loss_cnode=loss,
    )


def written(value: object, folder: Path) -> Path:
    (folder / "net.pkl").write_bytes(pickle.dumps(value))
    return folder / "net.pkl"


class Model:
    """Stands for a user's model in a Result: to load it would run this."""

    def __reduce__(self) -> Any:
        return print, ("loaded",)


def test_a_chain(classes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = made(classes["Result"], original_mod=Model(), forward_and_backward_graph=chain(classes))
    graph = read("rkgb", written(result, tmp_path), Options())
    assert capsys.readouterr().out == ""
    assert graph.name == "net"
    assert list(graph.operations.name) == ["FWD[a]", "FWD[b]", "FWD[loss]", "BWD[b]", "BWD[a]"]
    words = [Phase(int(phase)).word for phase in graph.operations.phase]
    assert words == ["forward", "forward", "loss", "backward", "backward"]
    assert graph.tensor(0).kind == Kind.PARAMETER
    assert graph.operations.random.tolist() == [True, False, False, False, False]
    plain = baseline(graph)
    assert plain.time == pytest.approx(0.015)
    at_b2 = 4 + 2 + 8 + 4 + 5  # a's data and phantoms, the gradients of b and a, the overhead
    assert plain.peak == 16 + at_b2


def test_a_solved_schedule_and_the_file_again(classes: dict[str, Any], tmp_path: Path) -> None:
    graph = read("rkgb", written(chain(classes), tmp_path), Options())
    save_graph(graph, tmp_path / "g.yaml")
    recomputed = load_graph(tmp_path / "g.yaml")
    assert graph_digest(recomputed) == graph_digest(graph)
    found = solve("search", Problem(recomputed, baseline(recomputed).peak - 1), bound_seconds=0)
    assert found.figures.peak < baseline(graph).peak
    assert found.figures.time == pytest.approx(0.016)  # FWD[a] runs once more, for its phantoms


def fault(name: str, classes: dict[str, Any]) -> object:
    graph = chain(classes)
    node, block = graph.computation_nodes[0], graph.allocation_nodes[0]
    if name == "dict":
        return {}
    if name == "no-graph":
        return made(classes["Result"], forward_and_backward_graph=None)
    if name == "no-time":
        node.time = None
    if name == "no-size":
        block.mem = None
    if name == "nodes":
        graph.computation_nodes = [3]
    if name == "list":
        graph.allocation_nodes = None
    if name == "set":
        node.deps_real = [3]
    if name == "name":
        node.name = None
    if name == "twice":
        node.name = "BWD[a]"
    if name == "order":
        graph.computation_nodes.reverse()
    return graph


FAULTS = {
    "dict": "holds no forward and backward graph",
    "no-graph": "holds no forward and backward graph",
    "no-time": "time of FWD[a] must be a finite number",
    "no-size": "mem of a data must be a whole number",
    "nodes": "holds something else than nodes",
    "list": "'allocation_nodes' must be a list",
    "set": "'deps_real' of a node must be a set",
    "name": "a node has no 'name'",
    "order": "before it could be written",
    "twice": "two operations have the name 'BWD[a]'",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line(name: str, classes: dict[str, Any], tmp_path: Path) -> None:
    path = written(fault(name, classes), tmp_path)
    result = CliRunner().invoke(main, ["import", "rkgb", str(path)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert FAULTS[name] in result.stderr


def test_no_unit_of_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--time-unit is not for rkgb: it is for moccasin, checkmate"):
        read("rkgb", tmp_path / "net.pkl", Options(time_unit=1.0))
