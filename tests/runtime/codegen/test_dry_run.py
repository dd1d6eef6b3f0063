"""The rehearsal of turns: what the runtime holds and waits for is what the simulator counted."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.baseline import baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, Verb, delete, offload
from memplan.planner.simulator.simulate import simulate
from memplan.planner.simulator.walk import Walk
from memplan.runtime.codegen.dry_run import DryRun
from random_schedules import random_initial, random_schedule
from strategies import random_graph

MACHINE = Machine(links=Links(1e9, 1e9, 1e9, 1e9))
TURNS = 6


def valid_case(rng):
    """A random graph with a valid schedule, and a budget under which it holds."""
    while True:
        graph = random_graph(rng)
        schedule = random_schedule(rng, graph, MACHINE, random_initial(rng, graph, MACHINE))
        try:
            figures = simulate(graph, schedule, machine=MACHINE).figures
        except InvalidScheduleError:
            continue
        return graph, schedule, rng.choice((None, figures.peak, figures.least_budget))


@given(st.integers(0, 10**6))
def test_every_pending_delete_ends_once_and_in_time(seed):
    graph, schedule, budget = valid_case(random.Random(seed))
    rehearsal = DryRun(graph, schedule, budget=budget, machine=MACHINE)
    turns = [rehearsal.rehearse() for _ in range(TURNS)]
    ended = [
        (number - ago, key)
        for number, turn in enumerate(turns)
        for ends in turn.ends.values()
        for ago, key in ends.deletes
    ]
    pending = {(number, key) for number, turn in enumerate(turns) for key in turn.pending}
    assert len(ended) == len(set(ended))
    assert set(ended) <= pending
    assert {delete for delete in pending if delete[0] < TURNS - 2} <= set(ended)


@given(st.integers(0, 10**6))
def test_no_wait_of_the_simulator_is_forgotten(seed):
    graph, schedule, budget = valid_case(random.Random(seed))
    walk = Walk(graph, schedule, budget=budget, machine=MACHINE)
    rehearsal = DryRun(graph, schedule, budget=budget, machine=MACHINE)
    for _ in range(TURNS):
        walk.run_iteration()
        turn = rehearsal.rehearse()
        for step, waits in walk.waits.items():
            assert set(waits) <= set(turn.waits[step])
        assert all(max(waits) < step for step, waits in turn.waits.items() if waits)
        assert turn.late <= {step for step in range(len(schedule)) if schedule.verbs[step] != Verb.DELETE}


@given(st.integers(0, 10**6))
def test_turns_that_leave_the_same_are_followed_by_the_same(seed):
    graph, schedule, budget = valid_case(random.Random(seed))
    rehearsal = DryRun(graph, schedule, budget=budget, machine=MACHINE)
    turns = [rehearsal.rehearse() for _ in range(2 * TURNS)]
    following = {}
    for one, other in pairwise(turns):
        assert following.setdefault(one.state, other) == other
    assert len(following) < 2 * TURNS - 1


def test_a_result_is_taken_from_the_device_if_it_is_there():
    graph = chain(3)
    x = min(graph.results)
    for left, memory in (([], Memory.DEVICE), ([delete(x)], Memory.HOST)):
        steps = [*baseline_schedule(graph), offload(x), *left]
        turn = DryRun(graph, Schedule.of(steps), machine=MACHINE).rehearse()
        assert turn.results[x][0] == memory
