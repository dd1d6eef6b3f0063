"""block-swap: closed forms of time and peak on equal blocks; valid and one way on random lists of blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.offloading.block_swap import block_swap
from memplan.solvers.offloading.block_swap.swap import block_lists
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem
from memplan.solvers.registry import run as registry

MiB = 2**20
BLOCKS = 9
ROOMY = 2**40


def machine(seconds: float) -> Machine:
    """A machine whose links take so long for a MiB."""
    return Machine(links=Links(d2h=MiB / seconds, h2d=MiB / seconds))


def solved(problem: Problem, **chosen: Any) -> tuple[Schedule, Figures, str]:
    lines: list[str] = []
    answer = block_swap.solve(problem, Options(None, block_swap.Settings(**chosen), lines.append))
    figures = simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine).figures
    return answer.schedule, figures, lines[-1]


def pass_seconds(swapped: int, block: float, copy: float) -> float:
    """Of equal blocks: compute hides the link, or the link is busy from the first block's end to the last's
    start; with one slot alone nothing overlaps."""
    if swapped == BLOCKS - 1:
        return BLOCKS * block + swapped * copy
    return max(BLOCKS * block, 2 * block + swapped * copy if swapped else 0)


@pytest.mark.parametrize("activations", ["keep", "checkpoint"])
@pytest.mark.parametrize("copy", [0.5, 1.0, 2.0, 3.5])
def test_equal_blocks_take_the_longer_of_link_and_compute(copy: float, activations: str) -> None:
    """Blocks of 1 s forward and 2 s backward, 1 MiB of weights each; the loss takes 0.5 s."""
    problem = Problem(chain(BLOCKS, uniform=True), ROOMY, machine(copy))
    _schedule, without, _line = solved(problem, blocks=0, activations=activations)
    for swapped in range(BLOCKS):
        _schedule, figures, line = solved(problem, blocks=swapped, activations=activations)
        backward = 2.0 if activations == "keep" else 3.0
        expected = pass_seconds(swapped, 1.0, copy) + 0.5 + pass_seconds(swapped, backward, copy)
        assert figures.time == pytest.approx(expected)
        # Of BLOCKS - swapped slots each is one block's.
        assert figures.least_budget == without.least_budget - swapped * MiB
        assert f"{swapped} of {BLOCKS} block" in line


def test_as_few_blocks_are_swapped_as_fit() -> None:
    graph = chain(BLOCKS, uniform=True)
    peak = baseline(graph).peak
    for swapped in range(BLOCKS):
        problem = Problem(graph, peak - swapped * MiB, machine(1.0))
        assert f" {swapped} blocks swapped" in solved(problem, activations="keep")[2]
    with pytest.raises(InfeasibleError) as refusal:
        solved(Problem(graph, peak - BLOCKS * MiB, machine(1.0)), activations="keep")
    assert refusal.value.least == peak - (BLOCKS - 1) * MiB
    with pytest.raises(InputError, match=f"blocks must be at most {BLOCKS - 1}, not {BLOCKS}"):
        solved(Problem(graph, peak, machine(1.0)), blocks=BLOCKS)


def test_the_faster_of_keeping_and_checkpoints_is_taken() -> None:
    graph = chain(BLOCKS, uniform=True)
    problem = Problem(graph, baseline(graph).peak - 3 * MiB, machine(20.0))
    assert "activations: checkpoint" in solved(problem)[2]
    assert "activations: keep" in solved(replace(problem, machine=machine(1.0)))[2]


def adapted(seed: int) -> Graph:
    """The training of adapters in two lists of blocks, each with frozen weights and one that is trained.

    Some weights are not needed in backward; the lists' outputs and embeddings are read outside of them.
    """
    random, draft = Random(seed), Draft(f"adapted-{seed}")
    stems = {"double": random.randint(2, 6), "single": random.randint(2, 6)}
    x = draft.tensor("x", 3, Kind.INPUT)
    every = draft.tensor("embedding", 2, Kind.PARAMETER, "embed")
    blocks: list[tuple[str, list[int], int, int, list[int]]] = []
    for stem, count in stems.items():
        for k in range(count):
            layer = f"{stem}.{k}"
            frozen = [
                draft.tensor(f"{layer}.w{i}", random.randint(1, 9), Kind.PARAMETER, f"{layer}.l{i}")
                for i in range(3)
            ]
            lora = draft.tensor(f"{layer}.a", 1, Kind.PARAMETER, f"{layer}.a")
            inner = [x]
            for i, weight in enumerate((*frozen, lora)):
                inner.append(draft.tensor(f"{layer}.h{i}", random.randint(1, 6)))
                reads = [inner[-2], weight, *([every] if i == 0 else [])]
                draft.operation(
                    f"F.{layer}.{i}", time=random.randint(1, 4), reads=reads, writes=[inner[-1]], layer=layer
                )
            needed = [weight for weight in frozen if random.random() < 0.7]
            blocks.append((layer, inner, lora, len(frozen), needed))
            x = inner[-1]
    gradient = draft.tensor("g", 3, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x], writes=[gradient], phase=Phase.LOSS, recompute=False)
    gradients: list[tuple[int, int]] = []
    for layer, inner, lora, _count, needed in reversed(blocks):
        made = draft.tensor(f"{layer}.da", 1, Kind.PARAMETER_GRADIENT, layer)
        following = draft.tensor(f"{layer}.g", 3, Kind.GRADIENT)
        draft.operation(
            f"B.{layer}",
            time=random.randint(1, 9),
            reads=[gradient, lora, *inner[:-1], *needed],
            writes=[following, made],
            phase=Phase.BACKWARD,
            layer=layer,
        )
        gradient = following
        gradients.append((lora, made))
    for lora, made in gradients:
        name = f"U.{draft.size_of(made)}.{lora}"
        draft.operation(name, time=1, reads=[made, lora], mutates=[lora], phase=Phase.UPDATE, recompute=False)
    return draft.graph([gradient])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), checkpoint=st.booleans(), rate=st.sampled_from([0.5, 2.0, 50.0]))
def test_schedules_are_valid_one_way_and_nested(seed: int, checkpoint: bool, rate: float) -> None:
    graph = adapted(seed)
    activations = "checkpoint" if checkpoint else "keep"
    problem = Problem(graph, ROOMY, Machine(links=Links(Link(rate), Link(rate))))
    lists = block_lists("a solver", graph, activations, 1)
    assert {*lists.lists} == {"double", "single"}
    least, total = ROOMY, baseline(graph).time
    for swapped in range(lists.most + 1):
        schedule, figures, _line = solved(problem, blocks=swapped, activations=activations)
        verbs = Counter(schedule.verbs.tolist())
        assert verbs[Verb.OFFLOAD] == 0, "frozen weights are never written back"
        fetched = Counter(x for verb, x, _where in schedule.rows() if verb == Verb.PREFETCH)
        counts = lists.counts(swapped)
        assert sum(counts.values()) == swapped
        for stem, blocks in lists.lists.items():
            for weights in blocks:
                for x in weights:
                    assert fetched[x] <= (2 if counts[stem] else 0)
        assert fetched.keys() <= {x for blocks in lists.lists.values() for row in blocks for x in row}
        assert figures.least_budget <= least, "one slot less is not more memory"
        least = figures.least_budget
        assert figures.time >= (total if not checkpoint else time_bound(graph))
        if not swapped and not checkpoint:
            assert figures.time == total


def blocks(counts: dict[str, int]) -> Graph:
    """Return a forward pass through lists of so many blocks."""
    draft = Draft("lists")
    x = draft.tensor("x", 1, Kind.INPUT)
    for stem, count in counts.items():
        for k in range(count):
            weight = draft.tensor(f"{stem}.{k}", 9, Kind.PARAMETER, f"{stem}.{k}")
            made = draft.tensor(f"{stem}.{k}.y", 1)
            draft.operation(f"F.{stem}.{k}", time=1, reads=[x, weight], writes=[made], layer=f"{stem}.{k}")
            x = made
    return draft.graph([x])


def test_each_list_has_its_share() -> None:
    """As FLUX.1's: k of `--blocks_to_swap` is k // 2 of 19 and 2 (k - k // 2) of 38."""
    graph = blocks({"transformer_blocks": 19, "single_transformer_blocks": 38})
    lists = block_lists("a solver", graph, "keep", 1)
    for k in range(2, 34, 2):
        counts = lists.counts(3 * k // 2)
        assert counts == {"transformer_blocks": k // 2, "single_transformer_blocks": k}


def test_two_blocks_are_a_list_and_one_is_none() -> None:
    assert {*block_lists("a solver", blocks({"two": 2, "one": 1}), "keep", 1).lists} == {"two"}


def test_small_weights_stay() -> None:
    """Tensors whose latency costs more than their bytes stay on the device, as biases do in the tools."""
    graph = adapted(1)
    slow = Machine(links=Links(Link(1.0, latency=4.0), Link(1.0, latency=4.0)))
    schedule, _figures, _line = solved(Problem(graph, ROOMY, slow), blocks=2, activations="keep")
    moved = {x for verb, x, _where in schedule.rows() if verb == Verb.PREFETCH}
    assert moved
    assert all(graph.tensors.bytes[x] >= 4 for x in moved)


@pytest.mark.parametrize("graph", [unet(2), layered(20), chain(1), chain(4, parameters=False)])
def test_other_graphs_are_refused(graph: Graph) -> None:
    with pytest.raises(NotAcceptedError):
        registry.solve("block-swap", Problem(graph, ROOMY, machine(1.0)), None)


def test_trained_weights_are_not_swapped() -> None:
    graph = adapted(3)
    trained = {x for row in graph.mutate_lists for x in row}
    lists = block_lists("a solver", graph, "keep", 1)
    swapped = {x for blocks in lists.lists.values() for row in blocks for x in row}
    assert trained
    assert not trained & swapped


def test_a_host_too_small_is_named() -> None:
    graph = adapted(5)
    small = Machine(host_capacity=3, links=Links(Link(1.0), Link(1.0)))
    with pytest.raises(NotAcceptedError, match=r"block-swap needs .* of host memory; the machine has"):
        solved(Problem(graph, ROOMY, small), blocks=2, activations="keep")


def test_a_host_that_holds_few_blocks_is_enough_for_few() -> None:
    graph = chain(BLOCKS, uniform=True)
    peak, few = baseline(graph).peak, replace(machine(1.0), host_capacity=4 * MiB)
    for swapped in (1, 2):
        problem = Problem(graph, peak - swapped * MiB, few)
        assert f" {swapped} blocks swapped" in solved(problem, activations="keep")[2]
    with pytest.raises(NotAcceptedError, match="of host memory"):
        solved(Problem(graph, peak - (BLOCKS - 2) * MiB, few), activations="keep")
