"""Revolve against its closed form, a plain recursion, and rotor where both are optimal."""

from __future__ import annotations

from functools import cache
from math import comb

import pytest
from attempts import assert_honest, attempt
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.chains.runs import Move, Pass
from memplan.solvers.problem import InfeasibleError, Problem, Status, ValidatedSolution
from memplan.solvers.recomputation.checkpointing.revolve import moves
from memplan.solvers.registry import run as registry
from not_none import not_none


@cache
def least_extra(blocks: int, checkpoints: int) -> int:
    """t(l, s) by trying every place of the first checkpoint."""
    if blocks == 1:
        return 0
    if checkpoints == 1:
        return blocks * (blocks - 1) // 2
    return min(
        k + least_extra(blocks - k, checkpoints - 1) + least_extra(k, checkpoints) for k in range(1, blocks)
    )


def extra_forwards(blocks: int, checkpoints: int) -> int:
    """Return t(l, s), the forward executions beyond one per block, by the paper's closed form."""
    repetitions = 0
    while comb(checkpoints + repetitions, checkpoints) < blocks:
        repetitions += 1
    most = comb(checkpoints + repetitions, repetitions - 1) if repetitions else 0
    return repetitions * blocks - most


def test_the_closed_form_is_the_recursion() -> None:
    for blocks in range(1, 50):
        for checkpoints in range(1, 12):
            assert extra_forwards(blocks, checkpoints) == least_extra(blocks, checkpoints)


def most_inputs_kept(sequence: list[Move]) -> int:
    """Most block inputs that wait for a later run while some block is saved, its own not counted."""
    most = 0
    for position, (kind, block) in enumerate(sequence):
        if kind != Pass.SAVE:
            continue
        waiting: set[int] = set()
        remade = {block + 1}
        for later, number in sequence[position + 1 :]:
            if later != Pass.BACKWARD:
                if number not in remade:
                    waiting.add(number)
                remade.add(number + 1)
        most = max(most, len(waiting - {block}))
    return most


@given(st.integers(1, 60), st.integers(1, 12))
def test_the_moves_take_as_many_forwards_and_checkpoints_as_promised(blocks: int, checkpoints: int) -> None:
    sequence = list(moves(blocks, checkpoints))
    assert sum(kind == Pass.ADVANCE for kind, _block in sequence) == extra_forwards(blocks, checkpoints)
    assert [block for kind, block in sequence if kind == Pass.BACKWARD] == list(reversed(range(blocks)))
    assert most_inputs_kept(sequence) <= checkpoints
    reached = 0
    for kind, block in sequence:
        assert kind == Pass.BACKWARD or block <= reached
        reached = max(reached, block + 1)


def uniform(blocks: int, saved_bytes: int) -> Graph:
    """F_i makes x_i (1 byte) and a_i, the gradients take nothing: memory is checkpoints and what is saved.

    x0 ─ F1 ─ x1 ─ F2 ─ x2 ─ … ─ loss ─ … ─ B2 ─ B1
         a1        a2                      a2   a1
    """
    draft = Draft(f"uniform-{blocks}")
    x = [draft.tensor("x0", 1, Kind.INPUT)]
    a: list[int] = []
    for i in range(1, blocks + 1):
        x.append(draft.tensor(f"x{i}", 1))
        a.append(draft.tensor(f"a{i}", saved_bytes))
        draft.operation(f"F{i}", time=1, reads=[x[i - 1]], writes=[x[i], a[-1]])
    loss, g = draft.tensor("loss", 0), draft.tensor("g", 0, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[-1]], writes=[loss, g], phase=Phase.LOSS, recompute=False)
    for i in range(blocks, 0, -1):
        before, g = g, draft.tensor(f"g{i}", 0, Kind.GRADIENT)
        draft.operation(f"B{i}", time=1, reads=[before, a[i - 1], x[i - 1]], writes=[g], phase=Phase.BACKWARD)
    return draft.graph([loss])


def forwards(graph: Graph, found: ValidatedSolution) -> int:
    """Forward operations in the schedule, the loss not counted."""
    steps = zip(found.schedule.verbs.tolist(), found.schedule.targets.tolist(), strict=True)
    return sum(
        verb == Verb.COMPUTE and graph.operations.phase[target] == Phase.FORWARD for verb, target in steps
    )


@pytest.mark.parametrize("blocks", [1, 2, 5, 9, 14])
def test_on_equal_blocks_revolve_is_as_good_as_rotor(blocks: int) -> None:
    """Where what a block saves is too large to be kept twice, rotor can do no better at any budget."""
    graph = uniform(blocks, saved_bytes=1000)
    least = 1 + 1 + 1 + 1000
    for budget in range(least, least + blocks + 3):
        revolve = registry.solve("revolve", Problem(graph, budget), bound_seconds=0)
        rotor = registry.solve("rotor", Problem(graph, budget), settings={"slots": "2000"}, bound_seconds=0)
        assert revolve.figures.time == rotor.figures.time
        assert revolve.status == Status.OPTIMAL
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("revolve", Problem(graph, least - 2), bound_seconds=0)
    assert not_none(refusal.value.least) <= least


@given(st.integers(2, 25), st.integers(1, 8))
def test_forward_executions_are_those_of_the_closed_form(blocks: int, checkpoints: int) -> None:
    graph = uniform(blocks, saved_bytes=1000)
    settings = {"checkpoints": str(checkpoints)}
    found = registry.solve("revolve", Problem(graph, 10**6), settings=settings, bound_seconds=0)
    assert forwards(graph, found) == blocks + extra_forwards(blocks, checkpoints)
    assert found.figures.peak <= 1000 + checkpoints + 3


@given(st.integers(1, 20), st.integers(0, 10**6), st.floats(0.2, 1.1))
def test_never_over_budget_and_heuristic_on_unequal_blocks(blocks: int, seed: int, part: float) -> None:
    graph = chain(blocks, seed=seed)
    budget = int(part * baseline(graph).peak)
    found = attempt("revolve", graph, budget)
    if isinstance(found, InfeasibleError):
        assert_honest(found, "revolve", graph, budget)
        return
    assert simulate(graph, found.schedule, budget=budget).figures.peak <= budget
    assert found.status == Status.HEURISTIC or blocks <= 2


def test_settings_are_checked() -> None:
    graph = chain(3)
    with pytest.raises(InputError, match="revolve: checkpoints must be 0"):
        registry.solve("revolve", Problem(graph, 10**9), settings={"checkpoints": "-1"}, bound_seconds=0)
