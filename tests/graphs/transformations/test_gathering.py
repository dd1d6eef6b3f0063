"""Graphs of sharded training whose gathers and scatters are operations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Peers, Replicas
from memplan.graphs.transformations.gathering import with_gathers
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from not_none import not_none

RATE, RANKS = 2.0**30, 4
NETWORK = Peers(RATE, 2.0**-15, ranks=RANKS)
HOST = Machine(host_capacity=2**30, links=Links(RATE, RATE))


def updated(*, clip: bool = False, length: int = 4) -> Graph:
    return with_updates(
        chain(length),
        optimizer=ADAMW,
        when="in-backward",
        device_rate=RATE,
        host_rate=RATE / 8,
        clip_rate=RATE if clip else None,
    )


def test_a_share_is_a_tensor_and_its_full_weight_a_result() -> None:
    whole = updated()
    graph = with_gathers(whole, NETWORK)
    names = graph.operations.name
    gathers = [name for name in names if name.endswith("/gather")]
    scatters = [name for name in names if name.endswith("/scatter")]
    assert len(gathers) == len(scatters) == 4
    assert graph.operations.comm == {names.index(name) for name in (*gathers, *scatters)}
    for name in gathers:
        weight = graph.tensor(graph.tensor_index[name.removesuffix("/gather")])
        full = graph.tensor(graph.tensor_index[f"{weight.name}.full"])
        size = whole.tensor(whole.tensor_index[weight.name]).bytes
        assert (weight.bytes, full.bytes) == (size // RANKS, size)
        assert (weight.kind, full.kind) == (Kind.PARAMETER, Kind.ACTIVATION)
        assert graph.operation(names.index(name)).time == NETWORK.seconds(float(size))
    for o, name in enumerate(names):
        one = graph.operation(o)
        if one.phase == Phase.UPDATE:
            own = whole.operation(whole.operation_index[name])
            assert [graph.tensor(x).kind for x in one.reads] == [Kind.PARAMETER_GRADIENT]
            assert one.time == own.time / RANKS
            assert [mode.time for mode in one.modes] == [mode.time / RANKS for mode in own.modes] != []
    assert rank_bytes(graph) == rank_bytes(sharded(whole, NETWORK))
    assert not graph.tensors.spread


def test_its_machine_has_no_network() -> None:
    """Its times are those of operations: solvers that weigh copies take the links to the host."""
    machine = replace(HOST, links=replace(HOST.links, peers=NETWORK))
    assert with_gathers(replace(updated(), machine=machine), NETWORK).machine == HOST


def test_a_gather_comes_before_the_first_reader_and_a_scatter_after_the_last_maker() -> None:
    graph = with_gathers(updated(clip=True), NETWORK)
    for o, after in pairwise(range(len(graph.operations))):
        one, other = graph.operation(o), graph.operation(after)
        if one.name.endswith("/gather"):
            assert {*one.writes} <= {*other.reads}
        if other.name.endswith("/scatter"):
            assert {*other.reads} <= {*one.writes, *one.mutates}
    norms = [graph.operation(o) for o, name in enumerate(graph.operations.name) if name.endswith("/norm")]
    assert len(norms) == 4
    assert all(graph.tensor(x).name.endswith(".share") for one in norms for x in one.reads)


def test_a_scatter_includes_the_replicas() -> None:
    network = replace(NETWORK, replicas=Replicas(RATE, 2.0**-14, count=2))
    graph = with_gathers(updated(), network)
    assert graph.name == "chain-4-seed0-2x4ranks"
    size = max(graph.tensors.bytes[graph.operations.reads[o]].sum() for o in graph.operations.comm)
    longest = max(graph.operations.time[list(graph.operations.comm)])
    assert longest == network.scatters.seconds(float(size)) > NETWORK.seconds(float(size))


def test_the_baseline_takes_what_its_queues_take() -> None:
    """All kept: no more than one after the other, no less than one of both queues."""
    whole = updated()
    graph = with_gathers(whole, NETWORK)
    comm = list(graph.operations.comm)
    computing, communicating = graph.operations.time.sum(), graph.operations.time[comm].sum()
    found = baseline(graph).time
    assert max(computing - communicating, communicating) <= found <= computing * (1 + 1e-9)


@pytest.mark.scripts
def test_budgets_below_the_shares_have_plans() -> None:
    """With the shares of weights on the device there is none below the smallest of `sharded`."""
    whole = updated(length=12)
    graph = with_gathers(whole, NETWORK)
    resident = sharded(replace(whole, machine=HOST), NETWORK)
    budget = minimum_memory(resident, resident.machine) - 1
    found = solve("joint", Problem(graph, budget, HOST), 5.0, {})
    checked = simulate(graph, found.schedule, budget=budget, machine=HOST).figures
    assert checked.peak <= budget
    moved = {
        graph.tensors.name[x] for x in found.schedule.targets[found.schedule.verbs == Verb.PREFETCH].tolist()
    }
    assert moved & {
        name for name in whole.tensors.name if whole.tensor(whole.tensor_index[name]).kind == Kind.PARAMETER
    }
    assert not_none(found.lower_bound) <= checked.time


def test_a_file_of_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    graph = with_gathers(updated(), NETWORK)
    save_graph(graph, tmp_path / "g.json")
    read = load_graph(tmp_path / "g.json")
    assert read.operations.comm == graph.operations.comm
    assert baseline(read) == baseline(graph)


def test_what_communicates_already_is_refused() -> None:
    graph = with_gathers(updated(), NETWORK)
    with pytest.raises(InputError, match="its ranks communicate already, see "):
        with_gathers(graph, NETWORK)
    with pytest.raises(InputError, match="it has no optimizer updates: add them with --optimizer adamw"):
        with_gathers(chain(3), NETWORK)
