"""The joint search on a language model whose states lie on the host: where updates run, what is left free."""

from random import Random

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.instances.families import decoder
from memplan.solvers.offloading.joint.anneal import Anneal
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.offloading.joint.start import Starts, other_modes, together
from memplan.solvers.offloading.joint.state import State
from not_none import not_none

BUDGET = 12_000_000_000


@pytest.fixture(scope="module")
def phi() -> Graph:
    return decoder("phi-2", "rtx3060", 1)


@pytest.fixture
def state(phi: Graph) -> State:
    """A greedy start with a third of the updates on the CPU."""
    machine = not_none(phi.machine)
    starts = Starts(Drops(phi), machine, BUDGET, lambda: True)
    assert starts.attempt(starts.choice(0.5, 0.33))
    residency = not_none(starts.best).residency
    state = State(phi, machine, BUDGET, residency.runs)
    state.send_as(residency.offloaded)
    return state


@pytest.mark.scripts
def test_annealing_gets_away_from_a_start_with_few_large_tensors(phi: Graph, state: State) -> None:
    """Each move costs much there: one that is too hot, or has no room for an update, ends where it began."""
    start = state.evaluate(1.0)
    anneal = Anneal(state, start, other_modes(phi), 0)
    anneal.run(lambda: anneal.tried / 5_000)
    assert anneal.best.outcome.seconds < 0.9 * start.seconds


def test_an_update_that_comes_to_the_device_fits(phi: Graph, state: State) -> None:
    anneal = Anneal(state, state.evaluate(1.0), other_modes(phi), 0)
    came = 0
    for seed in range(60):
        anneal.random = Random(seed)
        before = [run[1] for run in state.runs]
        if anneal._switch():
            assert state.demand <= BUDGET
            changed = [place for place, run in enumerate(state.runs) if run[1] != before[place]]
            came += all(state.runs[place][1] == 0 for place in changed)
        state.rollback(0)
    assert came > 10


def test_room_for_what_leaves_is_tried(phi: Graph, state: State) -> None:
    anneal = Anneal(state, state.evaluate(1.0), other_modes(phi), 0)
    reserves = {anneal.now.reserve for _ in range(100) if anneal._time()}
    assert len(reserves) == 6
    assert max(reserves) == 2 * anneal.largest > 0


def row_blocks(weights: int, blocks: int) -> Graph:
    """Updates of each weight by row blocks, on the device or the host."""
    draft = Draft("row blocks")
    x = draft.tensor("x", 1, Kind.INPUT)
    host = (Mode("host", 4.0, 0, (), on_host=True),)
    for i in range(weights):
        w, d = draft.tensor(f"w{i}", 8, Kind.PARAMETER), draft.tensor(f"d{i}", 8, Kind.PARAMETER_GRADIENT)
        draft.operation(f"B{i}", time=1, reads=[x, w], writes=[d], phase=Phase.BACKWARD)
        for block in range(blocks):
            state = draft.tensor(f"s{i}.{block}", 4, Kind.OPTIMIZER_STATE)
            draft.operation(
                f"U{i}.{block}", time=1, reads=[d], mutates=[w, state], phase=Phase.UPDATE, modes=host
            )
    return draft.graph([])


@pytest.mark.parametrize(("weights", "blocks"), [(4, 1), (3, 2), (2, 5)])
def test_row_blocks_of_a_weight_are_updated_on_one_side(weights: int, blocks: int) -> None:
    """Else one block waits for the weight to come back from the other side."""
    graph = row_blocks(weights, blocks)
    machine = Machine(links=Links(1.0, 1.0))
    groups = together(graph, other_modes(graph))
    assert sorted(map(len, groups)) == [blocks] * weights
    starts = Starts(Drops(graph), machine, 10**6, lambda: True)
    for share in (0.0, 0.3, 0.5, 0.8, 1.0):
        on_host = starts.choice(0.0, share).on_host
        assert all(on_host.issuperset(group) or on_host.isdisjoint(group) for group in groups)
        assert len(on_host) == blocks * round(share * weights)
    state = State(graph, machine, 10**6, Drops(graph).runs)
    anneal = Anneal(state, state.evaluate(1.0), other_modes(graph), 0)
    for seed in range(20):
        anneal.random = Random(seed)
        assert anneal._switch()
        sides = [{mode for operation, mode in state.runs if operation in group} for group in groups]
        assert all(len(side) == 1 for side in sides)
