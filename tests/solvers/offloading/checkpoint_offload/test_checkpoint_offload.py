"""checkpoint-offload: closed forms of time and peak on equal layers, against layer-checkpoint."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.simulator.simulate import Figures
from memplan.solvers.offloading.layers import fewest
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from small_offload import small_training

MiB = 2**20
LAYERS, SAVED, ROOMY = 6, 3, 2**40


def network(shared: int = 0) -> Graph:
    """Equal layers of 1 s forward and 2 s backward, each with a hidden tensor of 3 MiB; inputs take 1 MiB.

    shared: MiB of a tensor that all layers read, made by the first operation.
    """
    draft = Draft("network")
    batch = draft.tensor("batch", 1, Kind.INPUT)
    common = draft.tensor("common", shared * MiB) if shared else None
    x = draft.tensor("x0", MiB)
    made = [x] if common is None else [x, common]
    draft.operation("embed", time=0.5, reads=[batch], writes=made, layer="embed")
    rows: list[tuple[int, int, int]] = []
    for k in range(LAYERS):
        hidden, out = draft.tensor(f"h{k}", SAVED * MiB), draft.tensor(f"x{k + 1}", MiB)
        reads = [x] if common is None else [x, common]
        draft.operation(f"F{k}.in", time=0.5, reads=reads, writes=[hidden], layer=f"layers.{k}.a")
        draft.operation(f"F{k}.out", time=0.5, reads=[hidden], writes=[out], layer=f"layers.{k}.b")
        rows.append((x, hidden, out))
        x = out
    gradient = draft.tensor("g", MiB, Kind.GRADIENT)
    draft.operation("loss", time=0.5, reads=[x], writes=[gradient], phase=Phase.LOSS, recompute=False)
    for k, (into, hidden, _out) in reversed([*enumerate(rows)]):
        before = draft.tensor(f"g{k}", MiB, Kind.GRADIENT)
        draft.operation(
            f"B{k}",
            time=2.0,
            reads=[gradient, into, hidden],
            writes=[before],
            layer=f"layers.{k}.a",
            phase=Phase.BACKWARD,
        )
        gradient = before
    return draft.graph([gradient])


def machine(seconds: float) -> Machine:
    """A machine whose links take so long for a MiB."""
    return Machine(links=Links(d2h=MiB / seconds, h2d=MiB / seconds))


def figures(name: str, problem: Problem, **chosen: Any) -> Figures:
    return registry.solve(
        name, problem, 10.0, {k: str(v) for k, v in chosen.items()}, bound_seconds=0
    ).figures


@pytest.mark.parametrize("copy", [0.125, 0.25, 0.5])
def test_each_copy_back_is_waited_for(copy: float) -> None:
    problem = Problem(network(), ROOMY, machine(copy))
    plain = figures("layer-checkpoint", problem)
    for layers in range(LAYERS + 1):
        assert figures("checkpoint-offload", problem, layers=layers).time == pytest.approx(
            plain.time + layers * copy
        )


@pytest.mark.parametrize("ahead", [1, 2])
def test_copies_ahead_are_hidden(ahead: int) -> None:
    """But those of the layers with which backward begins: they are all requested at its start."""
    problem = Problem(network(), ROOMY, machine(0.25))
    plain = figures("layer-checkpoint", problem)
    ahead_of = figures("checkpoint-offload", problem, layers=LAYERS, ahead=ahead)
    assert ahead_of.time == pytest.approx(plain.time + 0.25)
    assert figures("checkpoint-offload", problem, layers=LAYERS - ahead, ahead=ahead).time == plain.time


def test_forward_leaves_no_input_on_the_device() -> None:
    problem = Problem(network(), ROOMY, machine(0.125))
    plain = figures("layer-checkpoint", problem)
    offloaded = figures("checkpoint-offload", problem, layers=LAYERS)
    # At the peak the last layer runs again: the inputs of the others are on the host.
    assert offloaded.least_budget == plain.least_budget - (LAYERS - 1) * MiB


def test_as_few_layers_leave_as_the_budget_needs() -> None:
    problem = Problem(network(), ROOMY, machine(0.25))
    plain = figures("layer-checkpoint", problem)
    for less in range(LAYERS):
        found = figures("checkpoint-offload", replace(problem, budget=plain.least_budget - less * MiB))
        assert found.time == pytest.approx(plain.time + less * 0.25)
    with pytest.raises(InfeasibleError) as refusal:
        figures("checkpoint-offload", replace(problem, budget=plain.least_budget - LAYERS * MiB))
    assert refusal.value.least == plain.least_budget - (LAYERS - 1) * MiB


def test_what_all_layers_read_is_copied_once() -> None:
    problem = Problem(network(shared=2), ROOMY, machine(0.25))
    plain = figures("layer-checkpoint", problem)
    assert figures("checkpoint-offload", problem, layers=LAYERS).time == pytest.approx(
        plain.time + LAYERS * 0.25 + 2 * 0.25
    )


def test_it_can_be_interrupted_before_it_has_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fewest, "simulate_residency", interrupted)
    with pytest.raises(KeyboardInterrupt):
        figures("checkpoint-offload", Problem(network(), ROOMY, machine(1.0)))


def test_what_it_does_not_take() -> None:
    with pytest.raises(InputError, match=f"layers must be at most {LAYERS}, not 9"):
        figures("checkpoint-offload", Problem(network(), ROOMY, machine(1.0)), layers=9)
    with pytest.raises(NotAcceptedError, match=r"takes training graphs|numbered layers"):
        figures("checkpoint-offload", Problem(small_training(Random(1), 3), ROOMY, machine(1.0)))
