"""No schedule in the file's order whose backward operations run once passes below the once-floor."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import backward_once, minimum_memory, minimum_memory_once
from memplan.planner.schedule.schedule import DEFAULT_MODE
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from odd_graphs import odd_graph
from small_graphs import small_graph
from stages import least_time


def trained(random: Random) -> Graph:
    """A small graph, backward from some operation on."""
    graph = small_graph(random)
    first = random.randrange(len(graph.operations))
    graph.operations.phase[first:] = Phase.BACKWARD
    return graph


def minimum_of(graph: Graph) -> int:
    min_memory = minimum_memory_once(graph)
    assert min_memory is not None
    return min_memory


def by_definition(graph: Graph) -> int:
    """Moment by moment, tensor by tensor. Without modes."""
    operations = [graph.operation(k) for k in range(len(graph.operations))]
    size = graph.tensors.bytes.tolist()

    def gone(k: int, now: int) -> bool:
        """Operation k has run and can't run again."""
        operation = operations[k]
        touched = {*operation.reads, *operation.writes}
        changed = any(touched & {*operations[m].mutates} for m in range(k + 1, now + 1))
        once = operation.phase >= Phase.BACKWARD or not operation.recompute or bool(operation.mutates)
        return k <= now and (once or changed)

    def there(now: int) -> set[int]:
        made = {x for k, operation in enumerate(operations) if gone(k, now) for x in operation.writes}
        later = {x for operation in operations[now + 1 :] for x in (*operation.reads, *operation.mutates)}
        here = operations[now]
        return (made & {*later, *graph.results}) | {*here.reads, *here.writes, *here.mutates}

    touched = {x for operation in operations for x in (*operation.reads, *operation.mutates)}
    resident = {
        x for x in range(len(size)) if graph.resident[x] and (x in touched or not graph.persistent[x])
    }
    apart = {x for x in range(len(size)) if graph.resident[x]} - resident
    moments = [
        sum(size[x] for x in (there(now) | resident) - apart) + operations[now].workspace
        for now in range(len(operations))
    ]
    return max(*moments, sum(size[x] for x in (resident | {*graph.results}) - apart))


def least_budget(graph: Graph) -> int | None:
    """Bytes of the smallest budget within which an exhaustive search finds a schedule in the file's order."""
    low, high = minimum_memory(graph), baseline(graph).peak
    return next((budget for budget in range(low, high + 1) if least_time(graph, budget) is not None), None)


@settings(max_examples=80)
@given(st.integers(0, 10**9))
def test_no_schedule_with_backward_once_is_below(seed: int) -> None:
    """Several contributions and outputs, changes in place, modes, workspaces: against all schedules."""
    graph = trained(Random(seed))
    least = least_budget(backward_once(graph))
    assert least is None or minimum_memory(graph) <= minimum_of(graph) <= least


def test_it_is_often_reached_and_says_more() -> None:
    """The exhaustive search counts weights that nobody touches, so it is above at times."""
    graphs = [trained(Random(seed)) for seed in range(60)]
    minimums = [
        (minimum_of(graph), minimum_memory(graph), least_budget(backward_once(graph))) for graph in graphs
    ]
    assert sum(min_memory == least for min_memory, _any, least in minimums) >= 30
    assert sum(min_memory > general for min_memory, general, _least in minimums) >= 15
    repeated = [
        (graph, min_memory) for graph, (min_memory, _any, _least) in zip(graphs, minimums, strict=True)
    ]
    assert any(least_time(graph, min_memory - 1) is not None for graph, min_memory in repeated), (
        "backward runs again"
    )


@settings(max_examples=150)
@given(st.integers(0, 10**9))
def test_equals_its_definition(seed: int) -> None:
    random = Random(seed)
    graph = odd_graph(random)
    if not graph.operations.modes and (graph.operations.phase == Phase.BACKWARD).any():
        assert minimum_of(graph) == by_definition(graph)


@pytest.mark.parametrize("graph", [chain(9), unet(4), layered(60)], ids=lambda graph: graph.name)
def test_random_recomputations_never_pass_it(graph: Graph) -> None:
    """Forward operations again at random places, backward ones once, as the simulator counts."""
    graph.operations.phase[len(graph.operations) // 2 :] = Phase.BACKWARD
    recomputed = [o for o, may in enumerate(backward_once(graph).operations.recompute.tolist()) if may]
    random, min_memory = Random(0), minimum_of(graph)
    for _case in range(40):
        runs = [(o, DEFAULT_MODE) for o in range(len(graph.operations))]
        for o in random.choices(recomputed, k=random.randint(0, 2 * len(recomputed))):
            runs.insert(random.randint(runs.index((o, DEFAULT_MODE)) + 1, len(runs)), (o, DEFAULT_MODE))
        assert simulate(graph, schedule_of(graph, runs)).figures.peak >= min_memory


def summed(modes: tuple[Mode, ...] = (), phase: Phase = Phase.BACKWARD) -> Graph:
    """Two gradients kept over a large third operation."""
    draft = Draft("summed")
    x = draft.tensor("x", 1, Kind.INPUT)
    g, h, r = draft.tensor("g", 10), draft.tensor("h", 100), draft.tensor("r", 1)
    draft.operation("B1", time=1, reads=[x], writes=[g], phase=phase)
    draft.operation("B2", time=1, reads=[x], writes=[h], phase=phase)
    draft.operation("B3", time=1, reads=[x], writes=[r], workspace=1000, phase=phase, modes=modes)
    draft.operation("B4", time=1, reads=[g, h, r], writes=[], phase=phase)
    return draft.graph([])


def test_what_is_kept_counts_and_a_mode_that_needs_less() -> None:
    assert minimum_memory_once(summed()) == 1 + 10 + 100 + 1 + 1000
    assert minimum_memory(summed()) == 1 + 1 + 1000
    assert minimum_memory_once(summed((Mode("slow", 2, 50, (3,)),))) == 1 + 10 + 100 + 1 + 50


def test_graphs_that_have_none() -> None:
    assert minimum_memory_once(summed(phase=Phase.FORWARD)) is None, "nothing behind a loss"
    assert minimum_memory_once(summed(), Machine(links=Links(d2h=1.0))) is None, "tensors may leave"
    assert minimum_memory_once(summed((Mode("below", 2, 0, (3,), writes_host=(3,)),))) is None
    unused = summed((Mode("cpu", 2, 0, (3,), on_host=True),))
    assert minimum_memory_once(unused) == minimum_memory_once(summed()), "x gets to no host"


def test_a_weight_that_nobody_touches_may_lie_on_the_host() -> None:
    draft = Draft("apart")
    x, y, g = draft.tensor("x", 1, Kind.INPUT), draft.tensor("y", 2), draft.tensor("g", 4)
    draft.tensor("w", 100, Kind.PARAMETER)
    draft.operation("f", time=1, reads=[x], writes=[y])
    draft.operation("b", time=1, reads=[y], writes=[g], phase=Phase.BACKWARD)
    assert minimum_memory_once(draft.graph([g])) == 7
