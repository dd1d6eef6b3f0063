"""The order of collectives: that of the schedule, in the code of each rank, for a hundred budgets."""

from __future__ import annotations

import re

import pytest
import torch
from memplan.devices.sharded.gradients import with_padding
from memplan.devices.sharded.shards import Shards
from memplan.graphs.machine import Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.runtime.run.cycle import Cycle, Terms
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry.run import solve
from memplan.tracing.output_layouts import trace_real_layouts
from torch import Tensor, nn

pytestmark = pytest.mark.scripts

SIZE, BUDGETS = 4, 100
NETWORK = Peers(2.0**30, 2.0**-15, ranks=SIZE)
COLLECTIVE = re.compile(r"COMM, (gather|scatter), \((.*?\),) \)|(clip_over_ranks)")
TARGET = re.compile(r", [dh](\d+)\)")


class _Some:
    """A rank of a group that is not there."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size, self.lost = rank, SIZE, ""
        self.shard, self.shards, self.replicas = rank, SIZE, 1


def model() -> nn.Sequential:
    torch.manual_seed(3)
    wide = [nn.Sequential(nn.Linear(16, 46), nn.GELU(), nn.Linear(46, 16)) for _ in range(3)]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.Linear(16, 3))


def squares(output: Tensor) -> Tensor:
    return output.square().mean()


def program_of(rank: int) -> tuple[Program, Shards]:
    """Trace the module as the rank does."""
    module = model()
    shards = Shards(_Some(rank))  # pyright: ignore[reportArgumentType]
    updates = Updates(torch.optim.AdamW(module.parameters()), clipping=Clipping(1.0))
    iteration = Iteration(module, (torch.randn(48, 6),), squares, updates, shards=shards)
    return with_padding(trace_real_layouts(iteration), shards), shards


def collectives(source: str) -> list[tuple[str, int]]:
    """Return the collectives in the code. Those of several tensors are as many, in their order."""
    all_ = list[tuple[str, int]]()
    for match in COLLECTIVE.finditer(source):
        kind, pairs, norm = match.groups()
        all_ += [(norm, 0)] if norm else [(kind, int(x)) for x in TARGET.findall(pairs)]
    return all_


def scheduled(schedule: Schedule, clip: int) -> list[tuple[str, int]]:
    """Return the collectives of the schedule. clip: the operation that adds norms up over the ranks."""
    kinds = {Verb.PREFETCH: "gather", Verb.OFFLOAD: "scatter"}
    rows = ((Verb(verb), target) for verb, target, _where in schedule.rows())
    return [
        (kinds[verb], target) if verb in kinds else ("clip_over_ranks", 0)
        for verb, target in rows
        if verb in kinds or (verb == Verb.COMPUTE and target == clip)
    ]


def test_all_ranks_have_one_order_for_a_hundred_budgets() -> None:
    ranks = [program_of(rank) for rank in range(SIZE)]
    first = ranks[0][0]
    graph = sharded(graph_of(first, [Cost(1e-5)] * len(first.operations)), NETWORK)
    clip = graph.operations.name.index("gradients/clip")
    peak, planned, joined, orders = baseline(graph).peak, 0, 0, set[tuple[tuple[str, int], ...]]()
    for number in range(BUDGETS):
        budget = round(peak * (0.3 + 0.7 * (number + 1) / BUDGETS))
        try:
            solution = solve(
                "fsdp" if number % 3 == 0 else "joint", Problem(graph, budget), 0.05, bound_seconds=0
            )
        except InfeasibleError:
            continue
        planned += 1
        own = scheduled(solution.schedule, clip)
        assert own.count(("clip_over_ranks", 0)) == 1
        for program, shards in ranks:
            cycle = Cycle(program, solution.schedule, Terms(graph, budget), shards=shards)
            assert collectives(cycle.sources[0]) == own
            cycle.queues.close()
            joined += len(re.findall(r"now\[\d+\] = now", cycle.sources[0]))
        orders.add(tuple(own))
    assert planned > BUDGETS // 2
    assert joined > planned  # several gathers are one collective
    assert len(orders) > 5  # budgets differ in what they gather, and when
