"""Graphs of mixed precision between ranks: float32 shares of weights that are gathered in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from memplan.devices.sharded.gradients import share_sizes, with_spread_gradients
from memplan.devices.sharded.shards import Precision, Shards
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.mixed_precision import MASTER, MixedPrecision, sharded_in_mixed_precision
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, Optimizer, with_updates
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.tracing.trace import trace
from memplan.updates.choice import OptimizerChoice, updated
from torch import nn

NETWORK = Peers(2.0**30, 2.0**-15, ranks=8)
SUMMED = MixedPrecision(lambda size: size / 2.0**40)
WITH_MASTERS = Optimizer("adamw", (*ADAMW.states, MASTER))


def low() -> Graph:
    """Return a chain in 16 bits, whose states are float32: two averages and a master per weight."""
    return with_updates(
        chain(3), optimizer=WITH_MASTERS, when="in-backward", device_rate=2.0**30, state_scale=2.0
    )


def of_kind(graph: Graph, kind: Kind) -> list[int]:
    return np.flatnonzero(graph.tensors.kind == kind).tolist()


def share(graph: Graph, x: int) -> int:
    return graph.tensors.share_of(x, NETWORK)


def test_a_rank_holds_a_master_and_two_averages_of_its_share_and_no_more() -> None:
    graph = sharded_in_mixed_precision(low(), NETWORK, MixedPrecision())
    weights = [int(low().tensors.bytes[x]) for x in of_kind(low(), Kind.PARAMETER)]
    assert rank_bytes(graph) == sum(3 * -(-2 * size // 8) for size in weights)
    # A model in bfloat16 with masters has its own shares in addition.
    assert rank_bytes(sharded(low(), NETWORK)) == rank_bytes(graph) + sum(-(-size // 8) for size in weights)


def test_gradients_are_summed_up_in_float32_after_a_cast() -> None:
    before, graph = low(), sharded_in_mixed_precision(low(), NETWORK, SUMMED)
    casts = [o for o, name in enumerate(graph.operations.name) if name.endswith("/spread")]
    gradients = of_kind(graph, Kind.PARAMETER_GRADIENT)
    assert len(casts) == len(gradients) == 3
    for x in gradients:
        name, size = graph.tensors.name[x], int(before.tensors.bytes[x])
        local = graph.tensor_index[f"{name}.local"]
        (cast,) = graph.producers[x].tolist()
        assert cast in casts
        assert graph.operations.phase[cast] == Phase.BACKWARD
        assert graph.operations.time[cast] == size / 2.0**40
        assert [*graph.read_lists[cast]] == [local]
        assert (graph.tensors.bytes[x], graph.tensors.bytes[local]) == (2 * size, size)
        assert share(graph, x) == -(-2 * size // 8)
        assert local not in graph.tensors.spread


def test_the_optimizer_of_fsdp2_has_gradients_in_float32() -> None:
    graph = sharded_in_mixed_precision(low(), NETWORK, MixedPrecision(wide_shares=True))
    plain = sharded_in_mixed_precision(low(), NETWORK, MixedPrecision())
    for x in of_kind(graph, Kind.PARAMETER_GRADIENT):
        assert share(graph, x) == -(-2 * int(graph.tensors.bytes[x]) // 8) > share(plain, x)


def test_weights_without_masters_have_float32_shares_if_asked() -> None:
    made = low()
    names = [name.replace("w1.master", "w1.other") for name in made.tensors.name]
    made = replace(made, tensors=replace(made.tensors, name=names))
    frozen = made.tensor_index["w1"]
    size = int(made.tensors.bytes[frozen])
    graph = sharded_in_mixed_precision(made, NETWORK, MixedPrecision())
    assert share(graph, frozen) == -(-size // 8)
    graph = sharded_in_mixed_precision(made, NETWORK, MixedPrecision(), {frozen})
    assert share(graph, frozen) == -(-2 * size // 8)


@pytest.mark.parametrize("policy", [MixedPrecision(), SUMMED, MixedPrecision(wide_shares=True)])
def test_policies_of_fsdp2_are_valid_and_hold_what_the_shares_say(policy: MixedPrecision) -> None:
    machine = Machine(links=Links(peers=NETWORK))
    graph = sharded_in_mixed_precision(low(), NETWORK, policy)
    rows = policy_schedules(Problem(graph, 2**50, machine))
    assert rows
    for _policy, schedule, _figures in rows:
        figures = simulate(graph, schedule, machine=machine).figures
        assert figures.least_budget > rank_bytes(graph)


@pytest.mark.parametrize("policy", [MixedPrecision(), SUMMED])
def test_shares_on_the_host_are_float32_and_are_cast_before_a_gather(policy: MixedPrecision) -> None:
    """As by FSDP2's CPUOffloadPolicy: the optimizer's own float32 weights are those that move."""
    rate, whole = 2.0**30, low()
    host = Machine(host_capacity=2**30, links=Links(rate, rate))
    graph = replace(sharded_in_mixed_precision(whole, NETWORK, policy, offload_shares=True), machine=host)
    assert rank_bytes(graph) == rank_bytes(sharded_in_mixed_precision(whole, NETWORK, policy))
    for x in of_kind(whole, Kind.PARAMETER):
        name, size = whole.tensors.name[x], int(whole.tensors.bytes[x])
        gather = graph.operation(graph.operation_index[f"{name}/gather"])
        assert graph.tensor(graph.tensor_index[name]).bytes == -(-2 * size // 8)
        assert graph.tensor(graph.tensor_index[f"{name}.full"]).bytes == size
        assert (gather.workspace, gather.time) == (-(-size // 8), NETWORK.seconds(float(size)))
        master = graph.tensor_index[f"{name}.{MASTER}"]
        assert graph.tensor(master).bytes == 0
        assert not len(graph.consumers[master]) + len(graph.mutators[master])
    for x in of_kind(whole, Kind.PARAMETER_GRADIENT):
        name, size = whole.tensors.name[x], int(whole.tensors.bytes[x])
        scattered = graph.tensor(graph.tensor_index[f"{name}.share"])
        assert scattered.bytes == -(-(size if policy.cast_seconds is None else 2 * size) // 8)
    found = solve("auto", Problem(graph, baseline(graph).peak - 1, host), 2.0, bound_seconds=0)
    assert simulate(graph, found.schedule, budget=baseline(graph).peak - 1).figures == found.figures
    assert Verb.OFFLOAD in found.schedule.verbs


def test_a_graph_without_masters_is_refused() -> None:
    graph = with_updates(chain(3), optimizer=ADAMW, when="after", device_rate=2.0**30)
    with pytest.raises(InputError, match="its weights have no float32 masters: profile a model in bfloat16"):
        sharded_in_mixed_precision(graph, NETWORK, SUMMED)


# ── compared with what a sharded step plans ─────────────────────────────────────────────────────────


def traced(choice: OptimizerChoice | None) -> tuple[nn.Module, Program]:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))
    module = nn.Sequential(*layers).bfloat16()
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    return module, trace(updated(Iteration(module, (x,), torch.sum), choice))


def test_shares_and_casts_are_those_of_a_step_that_takes_over_fsdp2() -> None:
    module, program = traced(OptimizerChoice("adamw", master_weights=True))
    ranks: Any = SimpleNamespace(shards=8)
    shards = Shards(ranks)
    shards.precision = {
        name: Precision(torch.bfloat16, torch.float32) for name, _ in module.named_parameters()
    }
    graph = graph_of(program, [Cost(0.0)] * len(program.operations))
    found = sharded_in_mixed_precision(graph, NETWORK, SUMMED)
    assert found.tensors.shares == share_sizes(program, shards, MASTER)
    _module, backward = traced(None)
    spread = with_spread_gradients(backward, shards)
    casts = {one.name for one in spread.operations if one.name.endswith("/spread")}
    assert casts == {name for name in found.operations.name if name.endswith("/spread")}
    sizes = {storage.name: storage.bytes for storage in spread.storages if ".grad" in storage.name}
    own = {name: int(found.tensors.bytes[x]) for name, x in found.tensor_index.items() if name in sizes}
    assert own == sizes
