"""ZeRO-Offload and ZeRO-Infinity: their fixed rules, seen in their schedules; closed forms of their times."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine, Memory
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.instances.models import Transformer
from memplan.instances.transformer import Rates, Training, transformer
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.layers.training import training_layers
from memplan.solvers.offloading.zero import zero_infinity, zero_offload
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem
from memplan.solvers.registry.run import solve as solve_and_bound
from not_none import not_none

MODEL = Transformer("small", 4, 64, 256, 4, 100, "made up", positions=32, tied=True)
RATES = Rates(flops=1e9, update_device=1e9, update_host=1e8)
MACHINE = Machine(links=Links(4e7, 4e7, 4e7, 2e7))
NO_DISK = Machine(links=Links(4e7, 4e7))

solve = partial(solve_and_bound, bound_seconds=0.0)


def graph(**fields) -> Graph:
    return transformer(MODEL, Training(4, 32, granularity="operation", **fields), RATES)


def computed(graph: Graph, schedule: Schedule) -> list[str]:
    names = graph.operations.name
    return [names[target] for verb, target, _where in schedule.rows() if verb == Verb.COMPUTE]


def bytes_moved(graph: Graph, schedule: Schedule, verb: Verb, to: Memory, kind: Kind) -> int:
    moved = [t for v, t, where in schedule.rows() if v == verb and where == to]
    return sum(int(graph.tensors.bytes[x]) for x in moved if graph.tensors.kind[x] == kind)


def weight_bytes(graph: Graph) -> int:
    return int(graph.tensors.bytes[graph.tensors.kind == Kind.PARAMETER].sum())


@pytest.mark.parametrize("solver", ["zero-offload", "zero-infinity"])
def test_an_update_that_can_not_wait_is_refused(solver: str):
    """What it reads is changed by a later operation."""
    draft = Draft("hasty")
    first, second = (draft.tensor(name, 8, Kind.PARAMETER) for name in ("w1", "w2"))
    x, scale = draft.tensor("x", 8), draft.tensor("scale", 8)
    draft.operation("F1", time=1, reads=[first], writes=[x])
    draft.operation("F2", time=1, reads=[x, second], writes=[scale])
    host = Mode("host", 1, 0, (), on_host=True)
    draft.operation("U", time=1, reads=[scale], mutates=[second], phase=Phase.UPDATE, modes=(host,))
    draft.operation("late", time=1, phase=Phase.BACKWARD, mutates=[scale])
    with pytest.raises(NotAcceptedError, match="puts updates after all else: U must run before late"):
        solve(solver, Problem(draft.graph([x]), 10**6, MACHINE))


@pytest.mark.parametrize("solver", ["zero-offload", "zero-infinity"])
@pytest.mark.parametrize("update", ["in-backward", "after"])
def test_updates_run_behind_the_whole_backward_part_on_the_cpu(solver: str, update: str):
    training = graph(update=update)
    solution = solve(solver, Problem(training, 2 * baseline(training).peak, MACHINE))
    run = computed(training, solution.schedule)
    updates = [name for name in run if name.startswith("U.")]
    assert run[-len(updates) :] == updates
    modes = [w for v, t, w in solution.schedule.rows() if v == Verb.COMPUTE]
    assert all(modes[-len(updates) :])


@pytest.mark.parametrize("solver", ["zero-offload", "zero-infinity"])
def test_every_gradient_and_no_state_moves_over_the_link(solver: str):
    training = graph()
    schedule = solve(solver, Problem(training, 2 * baseline(training).peak, NO_DISK)).schedule
    weights = weight_bytes(training)
    assert bytes_moved(training, schedule, Verb.OFFLOAD, Memory.HOST, Kind.PARAMETER_GRADIENT) == weights
    assert bytes_moved(training, schedule, Verb.OFFLOAD, Memory.HOST, Kind.PARAMETER) == 0
    for verb, to in ((Verb.OFFLOAD, Memory.HOST), (Verb.PREFETCH, Memory.DEVICE)):
        assert bytes_moved(training, schedule, verb, to, Kind.OPTIMIZER_STATE) == 0


def test_zero_offload_fetches_a_weight_once_and_zero_infinity_in_each_section():
    """Once, when updated; by layers: in forward and in backward, but the last layer's once. Backward does not
    read the embedding's rows, the tied head is in the last layer."""
    training = transformer(MODEL, Training(4, 32, granularity="layer"), RATES)
    size = {x: int(n) for x, n in zip(training.tensors.name, training.tensors.bytes, strict=True)}
    moved = {}
    for solver in ("zero-offload", "zero-infinity"):
        schedule = solve(solver, Problem(training, 2 * baseline(training).peak, NO_DISK)).schedule
        moved[solver] = bytes_moved(training, schedule, Verb.PREFETCH, Memory.DEVICE, Kind.PARAMETER)
    blocks = 4 * size["w.1.block"]
    assert moved["zero-offload"] == blocks + size["w.embed"]
    layers = training_layers("zero", training)
    assert len(layers.layers) == 5
    assert moved["zero-infinity"] == 2 * blocks - size["w.4.block"] + 2 * size["w.embed"]


def test_zero_offload_takes_as_long_as_its_stages_where_only_one_works_at_a_time():
    """Links as fast as can be: forward and backward on the device, then all updates on the CPU; the next
    forward begins before they end."""
    training = graph()
    machine = Machine(links=Links(1e15, 1e15))
    figures = solve("zero-offload", Problem(training, 2 * baseline(training).peak, machine)).figures
    o = training.operations
    forward, backward = (o.time[o.phase == phase].sum() for phase in (Phase.FORWARD, Phase.BACKWARD))
    updates = sum(modes[0].time for i, modes in o.modes.items() if o.phase[i] == Phase.UPDATE)
    assert backward + updates <= figures.time <= (forward + backward + updates) * (1 + 1e-6)


def test_zero_infinity_has_one_layer_on_its_way():
    training = transformer(replace(MODEL, layers=8), Training(4, 32, granularity="layer"), RATES)
    schedule = solve("zero-infinity", Problem(training, 2 * baseline(training).peak, NO_DISK)).schedule
    names, device, most = training.tensors.name, set(range(len(training.tensors))), 0
    device -= schedule.initial.host
    for verb, target, where in schedule.rows():
        if verb == Verb.PREFETCH and where == Memory.DEVICE:
            device.add(target)
        elif verb == Verb.DELETE and where == Memory.DEVICE:
            device.discard(target)
        most = max(most, sum(names[x].endswith(".block") and names[x].startswith("w.") for x in device))
    assert most == 2


@pytest.mark.parametrize("rule", ["keep", "recompute", "offload"])
def test_rules_for_activations(rule: str):
    training = graph()
    problem = Problem(training, 2 * baseline(training).peak, NO_DISK)
    schedule = solve("zero-infinity", problem, settings={"activations": rule}).schedule
    run = computed(training, schedule)
    assert (run.count("F.2.qkv") == 1) == (rule == "keep")
    moved = bytes_moved(training, schedule, Verb.OFFLOAD, Memory.HOST, Kind.ACTIVATION)
    assert (moved > 0) == (rule == "offload")


def test_memory_grows_smaller_from_rule_to_rule():
    training = graph()
    least = []
    for rule in ("keep", "recompute", "offload"):
        with pytest.raises(InfeasibleError) as refused:
            solve("zero-offload", Problem(training, 1000, NO_DISK), settings={"activations": rule})
        assert refused.value.least is not None
        solve("zero-offload", Problem(training, refused.value.least, NO_DISK), settings={"activations": rule})
        least.append(refused.value.least)
    assert least == sorted(least, reverse=True)
    assert least[0] > least[2]


@pytest.mark.scripts
@given(st.integers(2, 5), st.integers(0, 10**6), st.booleans(), st.integers(0, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_schedules_of_random_chains_hold(layers: int, seed: int, early: bool, share: int, disk: bool):
    plain = chain(layers, seed=seed)
    when = "in-backward" if early else "after"
    updated = with_updates(plain, optimizer=ADAMW, when=when, device_rate=1e6, host_rate=5e5)
    links = Links(2e6, 2e6, 2e6, 2e6) if disk else Links(2e6, 2e6)
    problem = Problem(updated, baseline(updated).peak * (share + 1) // 5, Machine(links=links))
    states = zero_infinity.Settings(states="disk" if disk else "auto")
    for solver, chosen in ((zero_offload, None), (zero_infinity, states)):
        try:
            answer = solver.solve(problem, Options(settings=chosen))
        except InfeasibleError as refused:
            least, text = refused.least, str(refused)
        else:
            simulate(updated, answer.schedule, budget=problem.budget, machine=problem.machine)
            continue
        assert least is not None and least > problem.budget and "smallest budget" in text  # noqa: PT018
        answer = solver.solve(replace(problem, budget=least), Options(settings=chosen))
        simulate(updated, answer.schedule, budget=least, machine=problem.machine)


def test_weights_on_the_disk_do_not_wait_in_host_memory_for_their_update():
    """The host holds all gradients until the updates run, and little else."""
    training = transformer(replace(MODEL, layers=12), Training(4, 32, granularity="layer"), RATES)
    weights = weight_bytes(training)
    machine = replace(MACHINE, host_capacity=weights * 13 // 8)
    figures = solve("zero-infinity", Problem(training, 2 * baseline(training).peak, machine)).figures
    assert weights < figures.host_peak <= not_none(machine.host_capacity)


def test_states_go_to_the_disk_where_they_take_more_than_half_of_the_host():
    training = graph()
    states = int(training.tensors.bytes[training.persistent].sum())
    for room, on_disk in ((2 * states, False), (2 * states - 1, True), (None, False)):
        machine = replace(MACHINE, host_capacity=room)
        figures = solve("zero-infinity", Problem(training, 2 * baseline(training).peak, machine)).figures
        assert (figures.disk_peak > 0) == on_disk
