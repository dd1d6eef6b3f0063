"""optimizer-offload, paged-optimizer and activation-offload: closed forms on equal layers; refusals."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from equal_layers import (
    BACKWARD,
    FORWARD,
    HOST,
    LAYERS,
    LOSS,
    SAVED,
    STATES,
    UPDATE,
    WEIGHT,
    MiB,
    machine,
    network,
)
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from small_offload import small_training

ROOMY = 2**40

COPIES = (0.25, 0.5, 1.0, 2.0)
"""Seconds for a MiB each way."""

BY_HAND = ("activation-offload", "optimizer-offload", "paged-optimizer")

COMPUTED = LAYERS * (FORWARD + BACKWARD) + LOSS


def figures(name: str, problem: Problem, **chosen: Any) -> Figures:
    given = {key: str(value) for key, value in chosen.items()}
    return registry.solve(name, problem, 10.0, given, bound_seconds=0).figures


@pytest.mark.parametrize("copy", COPIES)
def test_gradients_leave_in_backward_and_weights_return_in_its_order(copy: float) -> None:
    """The first layer's weight comes last: after copies of all others, or its gradient's, update and copy."""
    problem = Problem(network(), ROOMY, machine(copy))
    found = figures("optimizer-offload", problem, fraction=1, manner="torchao", activations="keep")
    assert found.time == pytest.approx(COMPUTED + max(LAYERS * copy, 2 * copy + HOST))


@pytest.mark.parametrize("copy", COPIES)
def test_gradients_leave_after_backward_and_weights_return_in_their_order(copy: float) -> None:
    """The pipeline of copy, update, copy begins when backward ends; each layer waits for its own weight."""
    problem = Problem(network(), ROOMY, machine(copy))
    found = figures("optimizer-offload", problem, fraction=1, manner="megatron", activations="keep")
    forward = 0.0
    for layer in range(LAYERS):
        forward = max(forward, 2 * copy + HOST + layer * max(copy, HOST)) + FORWARD
    assert found.time == pytest.approx(forward + LOSS + LAYERS * BACKWARD)


@pytest.mark.parametrize(("manner", "later"), [("torchao", 1), ("megatron", LAYERS)])
def test_backward_ends_before_or_after_the_gradients_leave(manner: str, later: int) -> None:
    """later: the copies that begin after it; torchao's last gradient is that of its last operation."""
    graph, given = network(), {"fraction": "1", "manner": manner, "activations": "keep"}
    found = registry.solve("optimizer-offload", Problem(graph, ROOMY, machine(0.25)), 5.0, given)
    rows = [(verb, x) for verb, x, _where in found.schedule.rows()]
    end = max(
        k for k, (verb, x) in enumerate(rows) if verb == Verb.COMPUTE and graph.operations.name[x] == "B0"
    )
    assert sum(verb == Verb.OFFLOAD for verb, _x in rows[end:]) == later


@pytest.mark.parametrize("manner", ["torchao", "megatron"])
def test_a_share_of_the_parameters_is_updated_on_the_host(manner: str) -> None:
    """As in Megatron one parameter more is taken while the share is not reached."""
    graph = network()
    problem = Problem(graph, ROOMY, machine(0.25))
    peak = baseline(graph).peak
    above = (MiB + 0.5) / (LAYERS * WEIGHT)  # half a byte more than one weight
    shares = ((0.0, 0), (0.1, 1), (above, 2), (1 / 3, 2), (0.34, 3), (0.5, 3), (1.0, LAYERS))
    for fraction, updates in shares:
        found = figures("optimizer-offload", problem, fraction=fraction, manner=manner, activations="keep")
        assert found.least_budget == peak - updates * STATES
        assert found.host_peak >= updates * STATES
    with pytest.raises(InputError, match="fraction"):
        figures("optimizer-offload", problem, fraction=1.5)


def test_updates_without_a_variant_on_the_host_stay_and_those_after_them_leave() -> None:
    graph = network()
    modes = dict(graph.operations.modes)
    del modes[min(modes)]
    graph = replace(graph, operations=replace(graph.operations, modes=modes))
    problem = Problem(graph, ROOMY, machine(0.25))
    found = figures("optimizer-offload", problem, fraction=1, activations="keep")
    assert found.least_budget == baseline(graph).peak - (LAYERS - 1) * STATES


@pytest.mark.parametrize("copy", COPIES)
def test_each_update_waits_for_its_pages(copy: float) -> None:
    graph = network(host=False)
    problem = Problem(graph, ROOMY, machine(copy))
    for updates in range(LAYERS + 1):
        found = figures("paged-optimizer", problem, updates=updates, activations="keep")
        pages = updates * STATES / MiB * copy
        assert found.time == pytest.approx(COMPUTED + LAYERS * UPDATE + pages)
        assert found.least_budget == baseline(graph).peak - updates * STATES


def test_small_states_are_not_paged() -> None:
    problem = Problem(network(), ROOMY, machine(0.25))
    with pytest.raises(NotAcceptedError, match="moves optimizer states; equal layers has none that large"):
        figures("paged-optimizer", problem, smallest=3 * MiB)


@pytest.mark.parametrize("size", [99_999, 100_000])
def test_states_are_paged_from_100_000_bytes_on(size: int) -> None:
    graph = network()
    states = graph.tensors.kind == Kind.OPTIMIZER_STATE
    tensors = replace(graph.tensors, bytes=np.where(states, size, graph.tensors.bytes))
    problem = Problem(replace(graph, tensors=tensors), ROOMY, machine(0.25))
    if size < 100_000:
        with pytest.raises(NotAcceptedError, match="has none that large"):
            figures("paged-optimizer", problem)
    else:
        assert figures("paged-optimizer", problem, updates=LAYERS).host_peak == LAYERS * size


def test_activations_that_are_fetched_a_layer_ahead_are_hidden() -> None:
    """What a layer saves takes 0.75 s each way, its forward 1 s, the backward of the next one 2 s."""
    graph = network()
    problem, known = Problem(graph, ROOMY, machine(0.25)), baseline(graph)
    for layers in range(LAYERS - 2):
        found = figures("activation-offload", problem, layers=layers)
        assert found.time == pytest.approx(known.time)
        # While the last layer runs backward, it and the one before it are on the device.
        assert found.least_budget == max(known.peak - layers * SAVED, 30 * MiB + 2)
    late = figures("activation-offload", problem, layers=LAYERS - 1, ahead=0)
    assert late.time == pytest.approx(known.time + (LAYERS - 1) * SAVED / MiB * 0.25)
    with pytest.raises(InputError, match=f"layers must be at most {LAYERS - 1}, not {LAYERS}"):
        figures("activation-offload", problem, layers=LAYERS)


def offloaded(graph: Graph, layers: int) -> set[str]:
    """Return the names of the tensors that activation-offload copies to the host."""
    given = {"layers": str(layers)}
    found = registry.solve("activation-offload", Problem(graph, ROOMY, machine(0.1)), 5.0, given)
    rows = found.schedule.rows()
    return {graph.tensors.name[x] for verb, x, _where in rows if verb == Verb.OFFLOAD}


def test_what_several_layers_read_in_backward_leaves_with_the_last_of_them() -> None:
    draft = Draft("crossing")
    x = draft.tensor("batch", 1, Kind.INPUT)
    middle, late = draft.tensor("middle", MiB), draft.tensor("late", MiB)
    saved = [draft.tensor(f"h{k}", MiB) for k in range(3)]
    for k, own in enumerate(saved):
        out = draft.tensor(f"x{k}", 1)
        made = [own, out] if k else [own, middle, late, out]
        draft.operation(f"F{k}", time=1, reads=[x], writes=made, layer=f"layers.{k}")
        x = out
    also = {2: [late], 1: [middle], 0: [middle, late]}
    for k, others in also.items():
        below = draft.tensor(f"g{k}", 1, Kind.GRADIENT)
        reads = [x, saved[k], *others]
        draft.operation(
            f"B{k}", time=1, reads=reads, writes=[below], layer=f"layers.{k}", phase=Phase.BACKWARD
        )
        x = below
    graph = draft.graph([x])
    assert [offloaded(graph, layers) for layers in range(3)] == [set(), {"h0"}, {"h0", "h1", "middle"}]


def test_what_backward_alone_makes_stays() -> None:
    """Two layers side by side; the first operation of backward is not the last layer's."""
    draft = Draft("side by side")
    batch, between = draft.tensor("batch", 1, Kind.INPUT), draft.tensor("between", MiB)
    saved = [draft.tensor(f"h{k}", MiB) for k in range(2)]
    for k, own in enumerate(saved):
        draft.operation(f"F{k}", time=1, reads=[batch], writes=[own], layer=f"layers.{k}")
    gradients = [draft.tensor(f"g{k}", 1, Kind.GRADIENT) for k in range(2)]
    backward = (("B0a", 0, [saved[0]], between), ("B0b", 0, [between], gradients[0]))
    for name, k, reads, made in (*backward, ("B1", 1, [saved[1]], gradients[1])):
        draft.operation(name, time=1, reads=reads, writes=[made], layer=f"layers.{k}", phase=Phase.BACKWARD)
    assert offloaded(draft.graph(gradients), 1) == {"h0"}


@pytest.mark.parametrize("name", BY_HAND)
def test_as_little_leaves_as_the_budget_needs(name: str) -> None:
    graph = network()
    size = SAVED if name == "activation-offload" else STATES
    options = {} if name == "activation-offload" else {"activations": "keep"}
    peak = baseline(graph).peak
    for count in range(3):
        for slack in (0, size - 1):
            problem = Problem(graph, peak - count * size + (slack if count else 0), machine(0.5))
            found = figures(name, problem, **options)
            assert found.least_budget == peak - count * size
    with pytest.raises(InfeasibleError) as caught:
        figures(name, Problem(graph, peak // 2, machine(0.5)), **options)
    assert caught.value.least is not None
    assert figures(name, Problem(graph, caught.value.least, machine(0.5)), **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(30))
def test_schedules_of_small_graphs_hold(seed: int) -> None:
    random = Random(seed)
    graph = small_training(random, 3, states=True, host=seed % 3 != 0, saved=True, moving=9)
    box = Machine(links=Links(random.choice((1, 2, 3)), random.choice((1, 2))))
    low, high = minimum_memory(graph, box), baseline(graph).peak
    for name in BY_HAND[1:]:
        problem = Problem(graph, low + round((high - low) * random.random()), box)
        extra = {"smallest": "1"} if name == "paged-optimizer" else {}
        try:
            found = registry.solve(name, problem, 5.0, extra, bound_seconds=0)
        except (InfeasibleError, NotAcceptedError):
            continue
        assert not any("internal error" in note for note in found.notes)
        assert simulate(graph, found.schedule, budget=problem.budget, machine=box).figures == found.figures


def test_what_they_do_not_take() -> None:
    graph = small_training(Random(1), 3)
    with pytest.raises(NotAcceptedError, match=r"numbered layers; small-3 has none"):
        figures("activation-offload", Problem(graph, ROOMY, machine(1.0)))
    with pytest.raises(NotAcceptedError, match=r"no update of small-3 can run there"):
        figures("optimizer-offload", Problem(graph, ROOMY, machine(1.0)))
    with pytest.raises(NotAcceptedError, match=r"needs a machine with links"):
        figures("paged-optimizer", Problem(graph, ROOMY))


def test_an_update_whose_input_changes_later_stays_on_the_device() -> None:
    """After all else it would read the step that the second update has advanced."""
    draft = Draft("shared step")
    batch, step = draft.tensor("batch", 1, Kind.INPUT), draft.tensor("step", 1, Kind.OPTIMIZER_STATE)
    weights = [draft.tensor(f"w{k}", MiB, Kind.PARAMETER) for k in range(2)]
    gradients = [draft.tensor(f"dw{k}", MiB, Kind.PARAMETER_GRADIENT) for k in range(2)]
    draft.operation("F", time=1, reads=[batch, *weights], writes=[loss := draft.tensor("loss", 1)])
    draft.operation("B", time=1, reads=[loss], writes=gradients, phase=Phase.BACKWARD)
    modes = network().operations.modes
    (mode,) = next(iter(modes.values()))
    for k in range(2):
        draft.operation(
            f"U{k}",
            time=1,
            reads=[gradients[k], *([step] if not k else [])],
            mutates=[weights[k], *([step] if k else [])],
            phase=Phase.UPDATE,
            recompute=False,
            modes=[mode],
        )
    problem = Problem(draft.graph([]), ROOMY, machine(0.1))
    found = registry.solve("optimizer-offload", problem, 5.0, {"fraction": "1"}, bound_seconds=0)
    ran = {problem.graph.operations.name[o]: mode for verb, o, mode in found.schedule.rows() if not verb}
    assert ran["U0"] == 0
    assert ran["U1"] == 1
