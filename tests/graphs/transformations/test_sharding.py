"""Graphs of sharded training: how they are made, their files, and the machines that they are for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import read_document, write_document
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.files.machine import (
    load_machine,
    machine_from_document,
    machine_to_document,
    save_machine,
)
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import JointRate, Links, Machine, Peers, Replicas
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.residency.residency import Residency
from memplan.planner.schedule.file import load_schedule, save_schedule

SHARED_KINDS = (Kind.PARAMETER, Kind.OPTIMIZER_STATE)
NETWORK = Peers(2.0**30, 2.0**-15, ranks=8)


def updated(*, clip: bool = False) -> Graph:
    rate = 2.0**30
    graph = chain(3)
    return with_updates(
        graph,
        optimizer=ADAMW,
        when="in-backward",
        device_rate=rate,
        host_rate=rate / 8,
        clip_rate=rate if clip else None,
    )


def test_weights_and_gradients_are_spread_and_states_are_shares() -> None:
    graph, plain = sharded(updated(), NETWORK), updated()
    kinds = {graph.tensor(x).kind for x in graph.tensors.spread}
    assert kinds == {Kind.PARAMETER, Kind.PARAMETER_GRADIENT}
    assert len(graph.tensors.spread) == 2 * 3
    states = np.flatnonzero(plain.tensors.kind == Kind.OPTIMIZER_STATE)
    assert len(states) == 2 * 3
    assert graph.tensors.bytes[states].tolist() == [-(-int(b) // 8) for b in plain.tensors.bytes[states]]
    weights = np.flatnonzero(plain.tensors.kind == Kind.PARAMETER)
    held = (NETWORK.share_of(int(b)) for b in plain.tensors.bytes[[*weights, *states]])
    assert rank_bytes(graph) == sum(held)
    for o, name in enumerate(graph.operations.name):
        share = 8 if name.endswith("/update") else 1
        assert graph.seconds(o) == pytest.approx(plain.seconds(o) / share)
        assert {*graph.on_peers(o)} == ({*graph.input_lists[o]} - {*states} if share == 8 else set())
    assert not any(graph.operations.phase[o] == Phase.UPDATE for o in graph.operations.modes)
    assert graph.machine == Machine(links=Links(peers=NETWORK))


def test_norms_are_of_the_sums_over_ranks() -> None:
    graph = sharded(updated(clip=True), NETWORK)
    norms = [o for o, name in enumerate(graph.operations.name) if name.endswith("/norm")]
    assert len(norms) == 3
    assert all(graph.on_peers(o) == tuple(graph.read_lists[o]) for o in norms)


def summed(count: int) -> Graph:
    """A weight that is used count + 1 times; its gradients are added up in place."""
    draft = Draft("tied")
    weight = draft.tensor("w", 1024, Kind.PARAMETER)
    state = draft.tensor("w.exp_avg", 1024, Kind.OPTIMIZER_STATE)
    gradient = draft.tensor("w.grad", 1024, Kind.PARAMETER_GRADIENT)
    backward: dict[str, Any] = {"phase": Phase.BACKWARD, "recompute": False}
    draft.operation("B", time=1.0, reads=[weight], writes=[gradient], **backward)
    for k in range(count):
        part = draft.tensor(f"part{k}", 1024, Kind.GRADIENT)
        draft.operation(f"B{k}", time=1.0, reads=[weight], writes=[part], **backward)
        draft.operation(f"add{k}", time=0.5, reads=[part], mutates=[gradient], **backward)
    update: dict[str, Any] = {"phase": Phase.UPDATE, "recompute": False}
    draft.operation("w/update", time=1.0, reads=[gradient], mutates=[weight, state], **update)
    return draft.graph()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_are_summed_up_out_of_place(count: int) -> None:
    plain = summed(count)
    graph = sharded(plain, NETWORK)
    gradient = graph.tensor_index["w.grad"]
    names = graph.operations.name
    assert not len(graph.mutators[gradient])
    assert [names[o] for o in graph.producers[gradient].tolist()] == [f"add{count - 1}"]
    assert names == plain.operations.name
    # Each sum reads the one before, and what it is added to; nobody else reads that.
    before = [graph.tensor_index[f"w.grad.{k}"] for k in range(count)]
    for k, x in enumerate(before):
        assert [names[o] for o in graph.producers[x].tolist()] == ["B" if k == 0 else f"add{k - 1}"]
        assert [names[o] for o in graph.consumers[x].tolist()] == [f"add{k}"]
    found = baseline(graph)
    assert found.time == pytest.approx(baseline(plain).time - 1.0 + 1.0 / 8)
    # Two summands, the sum, the weight if it is read afterwards; shares of these and of the state.
    full = 3 + (count > 1)
    assert full * 1024 + 2 * 1024 // 8 <= found.least_budget <= full * 1024 + 3 * 1024 // 8


def unshareable(fault: str) -> Graph:
    """A weight with two contributions to its gradient, and something that stands in the way of shares."""
    draft = Draft("odd")
    weight = draft.tensor("w", 1024, Kind.PARAMETER)
    gradient, x = draft.tensor("w.grad", 1024, Kind.PARAMETER_GRADIENT), draft.tensor("x", 8)
    state = draft.tensor("w.state", 1024, Kind.OPTIMIZER_STATE)
    draft.operation("F", time=1.0, reads=[weight], writes=[x])
    if fault == "changes":
        draft.operation("norm_", time=1.0, mutates=[weight])
    backward: dict[str, Any] = {"phase": Phase.BACKWARD, "time": 1.0, "writes": [gradient]}
    for name in ("B1", "B2"):
        draft.operation(name, reads=[x, weight], **backward)
    update: dict[str, Any] = {"phase": Phase.UPDATE, "recompute": False, "time": 1.0}
    made = [gradient] if fault == "makes" else []
    reads = [] if made else [gradient]
    draft.operation("w/update", reads=reads, writes=made, mutates=[weight, state], **update)
    draft.operation("w/last", reads=[gradient], mutates=[weight, state], **update)
    return draft.graph([gradient] if fault == "leaves" else [])


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("changes", "odd: w can't be spread over ranks: see norm_"),
        ("makes", "odd: w.grad can't be spread over ranks: see w/update"),
        ("leaves", "odd: w.grad can't be spread over ranks: see B2"),
    ],
)
def test_what_is_in_the_way_of_shares_is_named(fault: str, line: str) -> None:
    with pytest.raises(InputError) as refusal:
        sharded(unshareable(fault), NETWORK)
    assert str(refusal.value) == line
    sharded(unshareable(""), NETWORK)


@pytest.mark.parametrize(
    ("graph", "fault"),
    [
        (chain(3), "it has no optimizer updates"),
        (sharded(updated(), NETWORK), "its tensors are spread over ranks already"),
    ],
)
def test_what_cannot_be_sharded_is_refused(graph: Graph, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        sharded(graph, NETWORK)


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_version_2_is_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    graph, path = sharded(updated(), NETWORK), tmp_path / f"graph{suffix}"
    save_graph(graph, path)
    document: Any = read_document(path)
    assert document["format"] == "plan-graph/2"
    again = load_graph(path)
    assert again.tensors.spread == graph.tensors.spread
    assert again.machine == graph.machine
    assert graph_digest(again) == graph_digest(graph) != graph_digest(updated())
    save_graph(updated(), path)
    document = read_document(path)
    assert document["format"] == "plan-graph/1"


def test_shares_of_another_dtype_have_bytes_of_their_own(tmp_path: Path) -> None:
    """A weight in bfloat16 whose share is in float32, and a state that is this very share."""
    plain, path = updated(), tmp_path / "graph.json"
    weight, state = (int(np.flatnonzero(plain.tensors.kind == kind)[0]) for kind in SHARED_KINDS)
    size = 2 * NETWORK.share_of(int(plain.tensors.bytes[weight]))
    graph, known = sharded(plain, NETWORK, {weight: size, state: 0}), sharded(plain, NETWORK)
    more = size // 2 - NETWORK.share_of(int(plain.tensors.bytes[state]))
    assert rank_bytes(graph) == rank_bytes(known) + more
    assert baseline(graph).least_budget == baseline(known).least_budget + more
    save_graph(graph, path)
    assert load_graph(path).tensors.shares == graph.tensors.shares == {weight: size, state: 0}
    assert graph_digest(load_graph(path)) == graph_digest(graph) != graph_digest(known)


FAULTS = {
    "an input": ({"tensors.0.spread": True}, "x0.*: spread, but of kind input"),
    "a share of a whole": ({"tensors.0.share": 1}, "'share' is of tensors with 'spread: true'"),
    "not a flag": ({"tensors.1.spread": 1}, "spread"),
    "changed in forward": ({"operations.0.mutates": ["w1"]}, r"F1.*: changes w1, which is spread"),
    "in host memory": (
        {"operations.0.modes": {"direct": {"reads_host": ["w1"]}}},
        "mode 'direct' has w1 in host memory, but it is spread over the ranks",
    ),
}


@pytest.mark.parametrize(("changes", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_graph_that_ranks_cannot_share_is_refused(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    path = tmp_path / "graph.json"
    save_graph(sharded(updated(), NETWORK), path)
    document: Any = read_document(path)
    for place, value in changes.items():
        section, number, field = place.split(".")
        document[section][int(number)][field] = value
    write_document(document, path)
    with pytest.raises(InputError, match=fault) as refusal:
        load_graph(path)
    assert str(refusal.value).count("\n") == 0


def test_schedules_of_version_2_gather_and_scatter(tmp_path: Path) -> None:
    graph, path = sharded(updated(), NETWORK), tmp_path / "schedule.json"
    schedule = build_schedule(graph, Residency([(o, 0) for o in range(len(graph.operations))]))
    save_schedule(path, graph, schedule)
    document: Any = read_document(path)
    assert document["format"] == "plan-schedule/2"
    assert {step[0] for step in document["steps"]} == {"compute", "delete", "gather", "scatter"}
    assert ["delete", "dw1", "peers"] in document["steps"]
    assert {*document["initial"]["peers"]} == {
        graph.tensors.name[x] for x in graph.tensors.spread if graph.persistent[x]
    }
    again = load_schedule(path, graph).schedule
    assert list(again) == list(schedule)
    assert again.initial == schedule.initial


STEP_FAULTS = {
    "not spread": (["gather", "x1"], "gather: x1 is not spread over the ranks"),
    "to a memory": (["scatter", "dw1", "peers"], "scatter takes a tensor alone"),
    "unknown tensor": (["gather", "w9"], "the graph has no tensor 'w9'"),
    "unknown verb": (["collect", "w1"], "one of compute, delete, offload, prefetch, gather, scatter"),
}


@pytest.mark.parametrize(("step", "fault"), STEP_FAULTS.values(), ids=STEP_FAULTS)
def test_a_step_that_cannot_be_is_refused(tmp_path: Path, step: list[str], fault: str) -> None:
    graph, path = sharded(updated(), NETWORK), tmp_path / "schedule.json"
    schedule = build_schedule(graph, Residency([(o, 0) for o in range(len(graph.operations))]))
    save_schedule(path, graph, schedule)
    document: Any = read_document(path)
    document["steps"][0] = step
    write_document(document, path)
    with pytest.raises(InputError, match=fault):
        load_schedule(path, graph)
    write_document({**document, "format": "plan-schedule/1"}, path)
    with pytest.raises(InputError, match="is 'plan-schedule/1', not 'plan-schedule/2'"):
        load_schedule(path, graph)


def test_a_machine_has_a_network_and_links_that_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(
        "links: {d2h: 12GB/s, h2d: 12GB/s, disk_read: 3GB/s, disk_write: 2GB/s,"
        " peers: {rate: 45GB/s, latency: 30us, ranks: 8}}\n"
        "shared: [[d2h, h2d], [disk_read, disk_write]]\n"
    )
    machine = load_machine(path)
    assert machine.links.peers == Peers(45e9, 30e-6, ranks=8)
    assert machine.shared == (("d2h", "h2d"), ("disk_read", "disk_write"))
    assert machine_from_document(machine_to_document(machine)) == machine
    assert machine_to_document(replace(machine, shared=())).keys() == {"links"}


def test_a_link_crosses_several_resources(tmp_path: Path) -> None:
    """A slot whose directions are apart, and a root complex for both directions of four slots."""
    path = tmp_path / "machine.yaml"
    path.write_text(
        "links: {d2h: 25GB/s, h2d: 25GB/s, peers: {rate: 20GB/s, ranks: 4}}\n"
        "shared: [[d2h, peers], [h2d, peers], {links: [d2h, h2d], rate: 80GB/s, slots: 4}]\n"
    )
    machine = load_machine(path)
    assert machine.shared == (("d2h", "peers"), ("h2d", "peers"))
    assert machine.joint_rates == (JointRate(("d2h", "h2d"), 80e9, 4),)
    assert machine_from_document(machine_to_document(machine)) == machine
    save_machine(machine, path)
    assert load_machine(path) == machine
    slow = replace(machine, joint_rates=(JointRate(("disk_read", "disk_write"), 5.0),))
    save_machine(slow, path)  # with units, or the file would be taken for one of gigabytes
    assert load_machine(path) == slow


def test_a_network_has_replicas(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(
        "links: {peers: {rate: 350GB/s, ranks: 8, replicas: {count: 2, rate: 11GB/s, latency: 30us}}}\n"
    )
    machine = load_machine(path)
    between = Replicas(11e9, 30e-6, count=2)
    assert machine.links.peers == Peers(350e9, ranks=8, replicas=between)
    assert machine_from_document(machine_to_document(machine)) == machine
    slow = Machine(links=Links(peers=Peers(350e9, ranks=8, replicas=replace(between, rate=5.0, latency=2.0))))
    save_machine(slow, path)  # with units, or the file would be taken for one of gigabytes
    assert load_machine(path) == slow


MACHINES = {
    "no ranks": ("links: {peers: {rate: 45GB/s}}", "how many ranks share it"),
    "a bare rate": ("links: {peers: 45GB/s}", "peers must be a mapping"),
    "ranks": ("links: {peers: {rate: 45GB/s, ranks: 0}}", "ranks is a whole number from 1 to"),
    "a small rate": ("links: {peers: {rate: 45, ranks: 8}}", "write 45GB/s"),
    "pageable": ("links: {peers: {rate: 45GB/s, ranks: 8, pageable: 1GB/s}}", "unknown field 'pageable'"),
    "no replicas": (
        "links: {peers: {rate: 45GB/s, ranks: 8, replicas: {count: 1, rate: 11GB/s}}}",
        "field 'replicas': count is a whole number from 2 to",
    ),
    "uncounted replicas": (
        "links: {peers: {rate: 45GB/s, ranks: 8, replicas: {rate: 11GB/s}}}",
        "field 'replicas': how many are there",
    ),
    "a small rate of replicas": (
        "links: {peers: {rate: 45GB/s, ranks: 8, replicas: {count: 2, rate: 11}}}",
        "field 'replicas': 11 without a unit .* write 11GB/s",
    ),
    "ranks of replicas": (
        "links: {peers: {rate: 45GB/s, ranks: 8, replicas: {count: 2, rate: 11GB/s, ranks: 8}}}",
        "field 'replicas': unknown field 'ranks'",
    ),
    "one link": ("shared: [[d2h]]", "list two links or more"),
    "unknown link": (
        "shared: [[d2h, nvme]]",
        "'nvme' is not one of d2h, h2d, disk_write, disk_read, peers, cpu",
    ),
    "twice": ("shared: [[d2h, h2d, d2h]]", "'d2h' stands twice in a group"),
    "a group twice": ("shared: [[d2h, h2d], [h2d, d2h]]", r"the group \[d2h, h2d\] stands twice"),
    "a rate of the CPU": ("shared: [{links: [cpu, d2h], rate: 40GB/s}]", "moves no bytes"),
    "one link on one slot": ("shared: [{links: [d2h], rate: 40GB/s}]", "one link on one slot"),
    "no slots": ("shared: [{links: [d2h, h2d], rate: 40GB/s, slots: 0}]", "no number of devices"),
    "a rate of gigabytes": (
        "shared: [{links: [d2h, h2d], rate: 40}]",
        "'shared d2h, h2d': 40 without a unit .* write 40GB/s",
    ),
    "faster than what it shares": (
        "links: {d2h: 50GB/s, h2d: 10GB/s}\nshared: [{links: [d2h, h2d], rate: 40GB/s}]",
        "d2h alone has 5e",
    ),
}


@pytest.mark.parametrize(("text", "fault"), MACHINES.values(), ids=MACHINES)
def test_a_network_that_cannot_be_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(text + "\n")
    with pytest.raises(InputError, match=fault) as refusal:
        load_machine(path)
    assert str(refusal.value).count("\n") == 0
