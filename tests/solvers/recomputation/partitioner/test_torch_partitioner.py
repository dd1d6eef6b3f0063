"""`torch-partitioner` beside PyTorch's own partitioner on the same graph, and what comes of its choices."""

from __future__ import annotations

import operator as python_operator
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import layered
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.instances.catalogue import entry
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, NotFoundError, Problem
from memplan.solvers.recomputation.partitioner import operators
from memplan.solvers.recomputation.partitioner.joint import Joint, joint
from memplan.solvers.recomputation.partitioner.saved import Partitioner
from memplan.solvers.recomputation.partitioner.torch_partitioner import candidates
from memplan.solvers.registry.run import solve
from odd_graphs import odd_problem
from solver_cases import verdict
from torch import fx
from torch._functorch import config, partitioners
from torch.utils.checkpoint import CheckpointPolicy

SHARES = [step / 20 for step in range(20, 0, -1)]
OTHER = torch.ops.aten.cumsum.default
"""In none of PyTorch's lists."""


def overload(name: str) -> Any:
    for namespace in (torch.ops.aten, torch.ops.prims):
        if packet := getattr(namespace, name, None):
            return getattr(packet, packet.overloads()[0])
    return OTHER


def fx_graph(nodes: Joint) -> tuple[fx.GraphModule, list[fx.Node], int]:
    """The same graph as AOTAutograd would give it, its nodes as they are numbered here, and the results of
    forward. Values are as many bytes, on no device."""
    graph = fx.Graph()
    tangents = None
    made = list[fx.Node]()
    for node, name in enumerate(nodes.operator):
        read = [made[other] for other in nodes.reads[node]]
        if nodes.operation[node] < 0:
            new = graph.placeholder(f"primals_{node}")
        elif name == operators.GETITEM:
            place = len(read[0].users)
            new = graph.call_function(python_operator.getitem, (read[0], place))
        else:
            if nodes.backward[node] and not any(nodes.backward[other] for other in nodes.reads[node]):
                if tangents is None:
                    tangents = graph.placeholder("tangents_1")
                    tangents.meta["val"] = torch.empty(4, dtype=torch.uint8, device="meta")
                read.append(tangents)
            new = graph.call_function(overload(name), tuple(read))
        if nodes.fixed[node] and name != operators.GETITEM:
            new.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        made.append(new)
    for node, new in enumerate(made):
        parts = [x for x in nodes.users[node] if nodes.operator[x] == operators.GETITEM]
        sizes = [nodes.size[x] for x in parts]
        values = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes or [nodes.size[node]]]
        new.meta["val"] = tuple(values) if nodes.tensor[node] < 0 else values[0]
    used = {other for read in nodes.reads for other in read}
    ends = [x for x in range(len(nodes)) if x not in used or nodes.result[x]]
    forward = [made[x] for x in ends if nodes.forward[x] and nodes.operation[x] >= 0]
    backward = [made[x] for x in ends if nodes.backward[x]]
    graph.output((*forward, *backward))
    return fx.GraphModule(torch.nn.Module(), graph), made, len(forward)


def theirs(nodes: Joint, shares: list[float]) -> list[set[int]]:
    """What PyTorch saves, each operation taking as long as the others."""
    module, made, outputs = fx_graph(nodes)
    number = {node: place for place, node in enumerate(made)}
    constant = [place for place, x in enumerate(nodes.sources) if nodes.free[x]]
    info: Any = partitioners.classify_nodes(module, constant, outputs)
    for node in reversed(module.graph.nodes):
        far = node.op == "output" or info.is_required_fw(node)
        steps = (user.dist_from_bw + 1 for user in node.users) if node.op != "output" else ()
        node.dist_from_bw = min(10**9, *steps, 10**9) if far else 0
    with config.patch(activation_memory_budget_runtime_estimator="testing"):
        found = [partitioners.choose_saved_values_set(module.graph, info, share) for share in shares]
    return [{number[node] for node in saved} for saved in found]


def own(nodes: Joint, graph: Graph, shares: list[float]) -> list[set[int]]:
    partitioner = Partitioner(nodes, [1.0] * len(graph.operations))
    return [set(partitioner.saved(share)) for share in shares]


NAMES = sorted(operators.CHEAP - {operators.GETITEM}) + 20 * [
    "mm",
    "addmm",
    "native_dropout",
    "cat",
    "cumsum",
]


def random_training(seed: int, length: int = 40, names: Sequence[str] = NAMES) -> Graph:
    """Forward operations of all sorts; backward ones that each read some of what forward has made."""
    chance = Random(seed)
    draft = Draft(f"random-{seed}")
    made = [draft.tensor("x", 10, kind=Kind.INPUT)]
    made += [draft.tensor(f"w{k}", chance.randint(1, 50), kind=Kind.PARAMETER) for k in range(4)]
    for k in range(length):
        name = f"h.{k}/{chance.choice(names)}"
        parts = chance.choice((1, 1, 1, 2))
        results = [draft.tensor(f"a{k}.{part}", chance.randint(1, 60)) for part in range(parts)]
        read = sorted({made[-1], *chance.sample(made[-8:], min(len(made), 2)), chance.choice(made)})
        draft.operation(name, time=1, reads=read, writes=results)
        made += results
    gradient = draft.tensor("g", 4)
    loss = draft.tensor("loss", 4)
    draft.operation("loss", time=1, reads=made[5:], writes=[loss], phase=Phase.LOSS, recompute=False)
    draft.operation("backward/ones_like", time=1, reads=[], writes=[gradient], phase=Phase.BACKWARD)
    for k in reversed(range(length)):
        read = sorted({gradient, *chance.sample(made, 3)})
        gradient = draft.tensor(f"g{k}", 4)
        name = f"h.{k}/backward/{chance.choice(NAMES)}_{k}"
        draft.operation(name, time=1, reads=read, writes=[gradient], phase=Phase.BACKWARD)
    return draft.graph(results=[gradient, loss])


def test_its_operators_are_pytorchs() -> None:
    known = partitioners.get_default_op_list()

    def names(ops: Any) -> set[str]:
        named = {str(op) for op in ops if isinstance(op, torch._ops.OpOverloadPacket)}
        found = {name.rpartition(".")[2] for name in named}
        return {name for name in found if name.endswith("__") or not name.endswith("_")}

    in_place = {"__ilshift__", "__irshift__", "__ixor__"}
    assert names(known.recomputable_ops) - in_place == operators.CHEAP - {operators.GETITEM}
    assert names(known.random_ops) == operators.RANDOM
    assert names(known.view_ops) == operators.VIEWS
    assert names(known.compute_intensive_ops) == operators.EXPENSIVE
    assert names(known.fusible_ops) - in_place == operators.FUSIBLE - {operators.GETITEM}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(30))
def test_it_saves_what_pytorch_saves(seed: int) -> None:
    graph = random_training(seed)
    nodes = joint(graph, frozenset())
    assert own(nodes, graph, SHARES) == theirs(nodes, SHARES)


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_of_long_chains_of_cheap_operations_it_saves_what_pytorch_saves(seed: int) -> None:
    graph = random_training(seed, 250, ["add", "mul", "relu"])
    nodes = joint(graph, frozenset())
    assert own(nodes, graph, SHARES[:3]) == theirs(nodes, SHARES[:3])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2-6", "resnet50-adamw", "unet-16", "t5-3", "bert-6"])
def test_it_saves_what_pytorch_saves_of_models(name: str) -> None:
    graph = entry(name).graph()
    nodes = joint(graph, frozenset())
    shares = [1.0, 0.8, 0.5, 0.3, 0.1]
    found = own(nodes, graph, shares)
    assert found == theirs(nodes, shares)
    assert len({frozenset(saved) for saved in found}) > 2


def repeats(graph: Graph, share: float) -> set[str]:
    """What runs twice; nothing runs oftener, and nothing of backward again."""
    found = solve("torch-partitioner", Problem(graph, 10**15), None, {"share": str(share)}, bound_seconds=0)
    order = [target for verb, target, _where in found.schedule.rows() if verb == Verb.COMPUTE]
    runs = Counter(order)
    assert set(runs) == set(range(len(graph.operations)))
    assert set(runs.values()) <= {1, 2}
    recomputed = {operation for operation, count in runs.items() if count == 2}
    assert all(graph.operations.phase[operation] == Phase.FORWARD for operation in recomputed)
    return {graph.operations.name[operation] for operation in recomputed}


def two_layers(*, changes: bool = False) -> Graph:
    """mm, tanh, mm, tanh and back; each backward operation reads what its layer has made. changes: the weight
    is changed in place when the loss is there."""
    draft = Draft("two-layers")
    x, weight = draft.tensor("x", 10, kind=Kind.INPUT), draft.tensor("w", 5, kind=Kind.PARAMETER)
    made = list[int]()
    for k in range(2):
        product, result = draft.tensor(f"m{k}", 100), draft.tensor(f"t{k}", 90)
        draft.operation(f"{k}/mm", time=8 + k, reads=[made[-1] if made else x, weight], writes=[product])
        draft.operation(f"{k}/tanh", time=1, reads=[product], writes=[result])
        made += [product, result]
    loss, gradient = draft.tensor("loss", 1), draft.tensor("g", 1)
    draft.operation("loss", time=1, reads=[made[-1]], writes=[loss], phase=Phase.LOSS, recompute=False)
    if changes:
        draft.operation("change", time=1, reads=[loss], mutates=[weight], phase=Phase.UPDATE, recompute=False)
    draft.operation("backward/ones_like", time=1, reads=[], writes=[gradient], phase=Phase.BACKWARD)
    for k in reversed(range(2)):
        following = draft.tensor(f"g{k}", 1)
        reads = [gradient, made[2 * k], made[2 * k + 1]]
        draft.operation(f"{k}/b", time=2, reads=reads, writes=[following], phase=Phase.BACKWARD)
        gradient = following
    return draft.graph(results=[gradient, loss])


def test_less_share_makes_more_again() -> None:
    graph = two_layers()
    assert repeats(graph, 1) == set(), "backward reads all of it, and can't fuse it"
    assert repeats(graph, 0.9) == {"0/tanh", "1/tanh"}, "what is cheap goes first"
    assert repeats(graph, 0.4) == {"0/mm", "0/tanh", "1/tanh"}, "one mm fits no more, the quicker one"
    assert repeats(graph, 0) == {"0/mm", "0/tanh", "1/mm", "1/tanh"}


def test_what_reads_a_tensor_that_is_changed_by_then_is_saved() -> None:
    assert repeats(two_layers(changes=True), 0) == {"0/tanh", "1/tanh"}


@pytest.mark.parametrize("name", ["gpt2-6-adamw", "unet-16"])
def test_its_schedules_hold_at_every_share(name: str) -> None:
    graph = entry(name).graph()
    plain = baseline(graph)
    found = list(candidates(graph, [1.0, 0.7, 0.4, 0.1, 0.0]))
    for one in found:
        figures = simulate(graph, one.schedule).figures
        assert (figures.time, figures.peak) == (pytest.approx(one.time), one.peak)
        assert figures.time >= plain.time
    assert min(one.peak for one in found) < 0.9 * plain.peak
    assert found[0].time == min(one.time for one in found)


@pytest.mark.scripts
def test_it_takes_the_fastest_share_that_fits() -> None:
    graph = entry("unet-16").graph()
    all_of_them = list(candidates(graph, [step / 20 for step in range(20, -1, -1)]))
    least = min(one.peak for one in all_of_them)
    for budget in {one.peak for one in all_of_them}:
        found = solve("torch-partitioner", Problem(graph, budget), bound_seconds=0).figures
        assert found.time == pytest.approx(min(one.time for one in all_of_them if one.peak <= budget))
    with pytest.raises(InfeasibleError) as refusal:
        solve("torch-partitioner", Problem(graph, least - 1), bound_seconds=0)
    assert refusal.value.least == least
    with pytest.raises(NotFoundError):
        solve("torch-partitioner", Problem(graph, least - 1), 0.0, bound_seconds=0)


def test_what_it_does_not_take() -> None:
    graph = layered(20)
    with pytest.raises(NotAcceptedError, match="backward"):
        solve("torch-partitioner", Problem(graph, baseline(graph).peak))
    for wrong in ({"share": "2"}, {"share": "-0.1"}, {"steps": "0"}):
        with pytest.raises(InputError, match="must be from"):
            solve("torch-partitioner", Problem(two_layers(), 10**6), None, wrong)


def test_odd_graphs_have_valid_schedules_or_refusals() -> None:
    """Changes in place, operations that run once, phases in any order: and each answer comes soon."""
    for seed in range(120):
        assert not verdict("torch-partitioner", odd_problem(Random(seed)), 1.0, 0.0).faults, seed
