"""Collectives that are operations of a queue of their own: time, memory, files; three replays agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import graph_digest, load_graph, save_graph
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine, Peers
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.graphs.transformations.order import in_order
from memplan.graphs.transformations.sharding import sharded
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.bounds import time_bound
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.replay.instance import VariantTable
from memplan.planner.replay.ranking import starts_of, step_rows
from memplan.planner.replay.replay import UNASKED, figures_for, replay
from memplan.planner.schedule.file import load_schedule, save_schedule
from memplan.planner.schedule.schedule import Schedule, Verb, compute, delete
from memplan.planner.simulator.clock import _ITERATIONS, Queue
from memplan.planner.simulator.curves import byte_curves
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.planner.simulator.timeline import LAUNCH, NOTHING, timeline
from strategies import Case, random_case
from two_replays import disagreement

SAME = 1 + 1e-9


def gathered(workspace: int = 0) -> Graph:
    """w ─G (3 s)─▶ full ─F (1 s)─▶ y, after E (2 s) ─▶ x; 4 bytes of full, 1 of each other."""
    draft = Draft("gathered")
    w, full = draft.tensor("w", 1, Kind.PARAMETER), draft.tensor("full", 4)
    x, y = draft.tensor("x", 1), draft.tensor("y", 1)
    draft.operation("E", time=2.0, writes=[x])
    draft.operation("G", time=3.0, reads=[w], writes=[full], workspace=workspace, on_comm=True)
    draft.operation("F", time=1.0, reads=[full, x], writes=[y])
    return draft.graph([y])


E, G, F = (compute(operation) for operation in range(3))
X, FULL = 2, 1
LAST = [delete(FULL), delete(X)]


def test_a_collective_overlaps_with_what_stands_after_it() -> None:
    """Issued first it is hidden but for a second; issued last nothing runs alongside it.

    comm     GGG...           ..GGG.
    compute  EE.F             EE...F
    """
    early = timeline(gathered(), Schedule.of([G, E, F, *LAST]))
    assert early.start.tolist()[:3] == [0, 0, 3]
    assert early.queue.tolist()[:3] == [Queue.COMM, Queue.COMPUTE, Queue.COMPUTE]
    assert (early.idle[2], early.cause[2]) == (1, Queue.COMM)
    assert early.period == 4
    late = timeline(gathered(), Schedule.of([E, G, F, *LAST]))
    assert late.start.tolist()[:3] == [0, 2, 5]
    assert late.period == 6
    assert time_bound(gathered()) == 3, "either queue takes so long"


def test_its_operands_and_workspace_are_held_until_the_compute_queue_has_waited() -> None:
    """c reads a, 4 bytes, and makes b; a is deleted at once, and c holds 2 bytes for itself.

    With 11 bytes K has memory of its own. With fewer it waits for c.
    """
    draft = Draft("held")
    a, b, k, y = (draft.tensor(name, size) for name, size in (("a", 4), ("b", 1), ("k", 4), ("y", 0)))
    draft.operation("A", time=1.0, writes=[a])
    draft.operation("C", time=5.0, reads=[a], writes=[b], workspace=2, on_comm=True)
    draft.operation("K", time=1.0, writes=[k])
    draft.operation("B", time=1.0, reads=[b, k], writes=[y])
    graph = draft.graph([y])
    steps = [compute(0), compute(1), delete(a), compute(2), compute(3), delete(b), delete(k)]
    schedule = Schedule.of(steps)
    assert figures_of_all(graph, schedule, 11) == (7, 11, 7)  # K runs alongside C
    assert figures_of_all(graph, schedule, 10) == (8, 9, 7)  # K waits for C
    assert figures_of_all(graph, schedule, 7) == (8, 7, 7)
    with pytest.raises(InvalidScheduleError, match="7 bytes"):
        simulate(graph, schedule, budget=6)


def test_what_it_makes_is_held_until_then_though_it_was_deleted() -> None:
    """C makes b, 4 bytes, which is deleted at once; K makes as much, alongside C if both have memory."""
    draft = Draft("made in vain")
    a, b, k, y = (draft.tensor(name, size) for name, size in (("a", 1), ("b", 4), ("k", 4), ("y", 0)))
    draft.operation("A", time=1.0, writes=[a])
    draft.operation("C", time=5.0, reads=[a], writes=[b], on_comm=True)
    draft.operation("K", time=1.0, writes=[k])
    draft.operation("B", time=1.0, reads=[k], writes=[y])
    steps = [compute(0), compute(1), delete(b), compute(2), compute(3), delete(a), delete(k)]
    graph, schedule = draft.graph([y]), Schedule.of(steps)
    assert figures_of_all(graph, schedule) == (5, 14, 5)  # and alongside the C of the iteration before
    assert figures_of_all(graph, schedule, 9) == (5, 9, 5)
    assert figures_of_all(graph, schedule, 8) == (8, 5, 5)  # K waits for C


def test_who_has_waited_for_one_has_waited_for_those_before_it() -> None:
    """B reads what the second collective makes; what the first one reads is free then."""
    draft = Draft("in order")
    a, b, c, y = (draft.tensor(name, size) for name, size in (("a", 8), ("b", 1), ("c", 1), ("y", 8)))
    draft.operation("A", time=1.0, writes=[a])
    draft.operation("C", time=2.0, reads=[a], writes=[b], on_comm=True)
    draft.operation("D", time=2.0, reads=[b], writes=[c], on_comm=True)
    draft.operation("B", time=1.0, reads=[c], writes=[y])
    graph = draft.graph([y])
    steps = [compute(0), compute(1), compute(2), compute(3), delete(a), delete(b), delete(c)]
    found = simulate(graph, Schedule.of(steps)).figures
    assert found.time == 6
    assert simulate(graph, Schedule.of(steps), budget=18).figures.peak == 18


def test_a_collective_waits_for_its_launch() -> None:
    graph = gathered()
    launch = np.array([1.0, 30.0, 0.0])
    graph = replace(graph, operations=replace(graph.operations, launch=launch))
    schedule = Schedule.of([E, G, F, *LAST])
    assert figures_of_all(graph, schedule)[0] == 31
    line = timeline(graph, schedule)
    assert line.start[1] == 27
    assert line.cause[1] == LAUNCH


def figures_of_all(graph: Graph, schedule: Schedule, budget: int | None = None) -> tuple[float, int, int]:
    """Return seconds, peak and least budget by the simulator, with which both replays agree."""
    assert disagreement(Case(graph, schedule, budget, None)) is None
    found = simulate(graph, schedule, budget=budget).figures
    check_compiled(graph, schedule, Machine(), budget, found, 0)
    return found.time, found.peak, found.least_budget


def check_compiled(
    graph: Graph, schedule: Schedule, machine: Machine, budget: int | None, figures: Figures, seed: int
) -> None:
    variants = VariantTable(graph)
    instance = variants.instance(machine, 2**60 if budget is None else budget)
    result, rows = figures_for(instance), step_rows(variants, schedule)
    replay(instance, rows, starts_of(graph, schedule), result, UNASKED, _ITERATIONS)
    seconds, excess, *peaks, pinned, _elsewhere = result.tolist()
    assert excess == 0, seed
    assert seconds == pytest.approx(figures.time, rel=1e-9, abs=1e-9), seed
    assert tuple(peaks) == figures.peaks, seed
    assert pinned == (0 if machine.crossing_capacity is None else figures.pinned_peak), seed


# ── random schedules ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(8))
def test_three_replays_agree(batch: int) -> None:
    """Over 2,500 cases in all batches, alone, with links, with shared queues and with more memories."""
    seen = held = hidden = 0
    for seed in range(800 * batch, 800 * batch + 800):
        random = Random(seed)
        memories = random.choice((2, 3, 3, 5, 8))
        case = random_case(random, 9, memories, comm=True, shared=seed % 5 == 0)
        if not case.graph.operations.comm:
            continue
        seen += 1
        assert disagreement(case) is None, seed
        machine = case.machine or case.graph.machine or Machine()
        try:
            found = simulate(case.graph, case.schedule, budget=case.budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        held += 1
        check_compiled(case.graph, case.schedule, machine, case.budget, found, seed)
        alone = on_one_queue(case.graph)
        serial = simulate(alone, case.schedule, budget=case.budget, machine=machine).figures
        assert found.least_budget == serial.least_budget, seed
        hidden += found.time < serial.time
        assert time_bound(case.graph) <= found.time * SAME, seed
    assert seen > 300
    assert held > 100
    assert hidden > 30


@given(st.randoms(use_true_random=False))
def test_on_the_compute_queue_the_same_list_is_never_faster(random: Random) -> None:
    """Without transfers. If collectives take no time the time is that of the other operations."""
    case = random_case(random, 9, comm=True)
    graph, schedule = case.graph, case.schedule
    if (schedule.verbs > Verb.DELETE).any() or schedule.wheres.any() or schedule.initial.groups:
        graph, schedule = case.graph, baseline_schedule(graph)
    for budget in (None, case.budget):
        try:
            found = simulate(graph, schedule, budget=budget, machine=Machine()).figures
        except InvalidScheduleError:
            with pytest.raises(InvalidScheduleError):
                simulate(on_one_queue(graph), schedule, budget=budget, machine=Machine())
            continue
        serial = simulate(on_one_queue(graph), schedule, budget=budget, machine=Machine()).figures
        assert found.time <= serial.time * SAME
        seconds = graph.operations.time.copy()
        seconds[list(graph.operations.comm)] = 0.0
        free = replace(graph, operations=replace(graph.operations, time=seconds))
        timed = simulate(free, schedule, budget=budget, machine=Machine()).figures.time
        assert timed <= found.time * SAME
        if not graph.operations.launch.any():
            runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
            assert timed == pytest.approx(seconds[runs].sum())


def test_lifetimes_are_the_simulators_bytes() -> None:
    """Lifetimes on the device, pictures of which reports draw, add up to the curve."""
    checked = 0
    for seed in range(400):
        case = random_case(Random(seed), 9, comm=True)
        graph, machine = case.graph, case.machine or Machine()
        if not graph.operations.comm:
            continue
        try:
            curve = byte_curves(graph, case.schedule, budget=case.budget, machine=machine)[0]
        except InvalidScheduleError:
            continue
        found = lifetimes(graph, case.schedule, budget=case.budget, machine=machine)
        assert found.live().tolist() == curve.tolist(), seed
        checked += 1
    assert checked > 30


# ── the baseline, files ─────────────────────────────────────────────────────────────────────────────


def test_the_baseline_has_the_memory_of_eager_pytorch() -> None:
    graph = gathered(workspace=3)
    assert baseline(graph).peak == baseline(on_one_queue(graph)).peak == 1 + 1 + 4 + 3
    assert baseline(graph).time == 6


def test_a_graph_file_keeps_the_queue(tmp_path: Path) -> None:
    graph = gathered()
    document = graph_to_document(graph)
    assert document["format"] == "plan-graph/2"
    assert [row.get("queue") for row in document["operations"]] == [None, "comm", None]
    path = tmp_path / "graph.json"
    save_graph(graph, path)
    read = load_graph(path)
    assert read.operations.comm == {1}
    assert graph_digest(read) == graph_digest(graph) != graph_digest(on_one_queue(graph))
    assert graph_to_document(on_one_queue(graph))["format"] == "plan-graph/1"
    assert in_order(graph, [1, 0, 2]).operations.comm == {0}
    explicit = {**document["operations"][0], "queue": "compute"}
    document["operations"][0] = explicit
    assert graph_digest(graph_from_document(document, "file")) == graph_digest(graph)
    schedule = Schedule.of([G, E, F, *LAST])
    save_schedule(tmp_path / "schedule.json", graph, schedule)
    assert '"plan-schedule/2"' in (tmp_path / "schedule.json").read_text()
    assert list(load_schedule(tmp_path / "schedule.json", graph).schedule) == list(schedule)


def document_with(**changes: object) -> dict[str, object]:
    document = graph_to_document(gathered())
    document["operations"][1] |= changes
    return document


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queue": "d2h"}, "'d2h'"),
        ({"mutates": ["w"], "reads": []}, "queue comm, but it changes w in place"),
        ({"modes": {"fast": {"time": 1.0}}}, "queue comm, but it has modes"),
        ({"random": True}, "queue comm, but it draws random numbers"),
        ({"writes": ["full", "x"]}, "queue comm, but it writes x together with other operations"),
    ],
)
def test_what_no_collective_can_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        graph_from_document(document_with(**changes), "file")


def test_version_1_has_no_queue() -> None:
    with pytest.raises(InputError, match="unknown field 'queue'"):
        graph_from_document({**document_with(), "format": "plan-graph/1"}, "file")


def test_collectives_and_sharded_tensors_are_refused_together() -> None:
    document = document_with()
    tensors = document["tensors"]
    assert isinstance(tensors, list)
    tensors[0]["spread"] = True
    with pytest.raises(InputError, match=r"G.*give the operation the queue compute"):
        graph_from_document(document, "file")
    with pytest.raises(InputError, match="its ranks communicate already, see G"):
        sharded(gathered(), Peers(1.0, ranks=2))


def test_a_timeline_has_collectives_on_the_network() -> None:
    line = timeline(gathered(), Schedule.of([G, E, F, *LAST]))
    assert line.queue.tolist() == [Queue.COMM, 0, 0, NOTHING, NOTHING]
