"""Graphs of tests/hard_graphs/, each named by what solvers stumbled over: answers that hold, or refusals.

`verdict` (solver_cases.py) is the judge: the simulator, a second replay, bounds, and a named least budget
solved for. Warnings and faults of a part are faults.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.offloading.joint.drops import Drops
from memplan.solvers.problem import NotFoundError, Problem
from memplan.solvers.registry import run as registry
from odd_graphs import odd_problem
from solver_cases import contradictions, verdict, warm_up
from training_graphs import training

FOLDER = Path(__file__).parents[2] / "hard_graphs"

CHAINS = "chen-sqrt revolve rotor rk-rotor rockmate checkmate rk-checkmate search"
MOVERS = "joint offmate offload-greedy l2l"
CASES: dict[str, tuple[tuple[int, ...], str]] = {
    "activation-changed-in-place": ((200, 1001), f"{CHAINS} pofo"),
    "activation-changed-in-a-chain": ((1, 2), CHAINS),
    "activation-changed-by-a-block": ((1, 2), CHAINS),
    "changed-in-the-middle": ((3, 4), CHAINS),
    "buffer-changed-with-links": ((1048577,), MOVERS),
    "changed-with-links": ((1,), MOVERS),
    "no-bytes-updated-on-the-host": ((1,), MOVERS),
    "updates-on-the-host": ((1468789,), "joint offmate l2l"),
    "weight-that-nobody-reads": ((1,), f"{MOVERS} greedy-star"),
    "block-without-its-input": ((1049780,), "rockmate rk-rotor"),
    "hardly-any-time": ((549755813888, 1099511627776), "search rotor checkmate"),
    "bytes-beyond-the-backend": ((36029896530591760,), "store-all h-ilp offmate"),
    "bound-beyond-the-backend": ((1979120929997,), "l2l offload-greedy"),
    "cluster-beyond-the-backend": ((1099511627776,), "h-ilp hiremate"),
    "block-beyond-the-backend": ((1,), "offmate"),
    "tebibytes-beside-three-bytes": ((2199023256555,), "checkmate rk-checkmate"),
    "nothing-but-an-update": ((1,), MOVERS),
    "no-operations": ((5, 10), "search checkmate tw-remat store-all"),
    "nothing-to-run": ((1, 2), f"{MOVERS} greedy-star store-all rotor"),
    "a-weight-and-nothing-to-run": ((1, 3), f"{MOVERS} greedy-star"),
    "a-weight-and-no-room-on-the-host": ((1, 3), f"{MOVERS} greedy-star"),
    "both-parts-add-to-one-tensor": ((20014020,), f"{CHAINS} pofo"),
    "update-that-reads-the-batch": ((1099513725714,), "memferry offmate joint"),
    "changed-before-its-block": ((1, 4), CHAINS),
    "update-that-makes-a-gradient": ((16, 20), "memferry l2l"),
    "update-that-makes-what-is-read": ((1, 4), "stronghold memferry l2l zero-offload"),
    "update-that-draws-first": ((1, 4), "stronghold memferry l2l zero-offload"),
    "way-that-takes-ages": ((184000,), "checkmate rk-checkmate h-ilp"),
    "device-without-room": ((1,), "store-all checkmate search"),
    "nothing-read-nothing-changed": ((1, 4), "zero-offload zero-infinity lohan"),
    "gradient-changed-by-an-update": ((1, 4), "zero-offload zero-infinity lohan stronghold l2l memferry"),
    "result-made-on-the-host": ((1, 2), MOVERS),
    "read-behind-the-layers": ((1, 4), "stronghold memferry lohan zero-offload l2l"),
    "no-host-beside-a-disk": ((1, 917505), f"{MOVERS} stronghold memferry pofo"),
    "result-that-a-mode-leaves-out": (
        (10856290, 10900000),
        "h-ilp hiremate rockmate rk-checkmate search auto",
    ),
    "seconds-below-the-backends-tolerance": ((1099513726149,), "auto search checkmate"),
    "bound-within-the-backends-tolerance": ((5242980, 6291666), "auto search checkmate"),
    "way-without-what-all-blocks-read": ((500, 639, 800), "rockmate rk-rotor rk-checkmate hiremate"),
    "least-budget-of-l2l": ((600, 1006, 2012), "l2l"),
}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """What is compiled at its first use may take its time."""
    warm_up(["search", "joint", "offload-greedy", "rk-rotor"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_no_solver_stumbles(name: str) -> None:
    budgets, solvers = CASES[name]
    graph = load_graph(FOLDER / f"{name}.json")
    faults: list[str] = []
    for budget in budgets:
        problem = Problem(graph, budget, graph.machine)
        verdicts = [verdict(solver, problem, 0.5, bound_seconds=0.5) for solver in solvers.split()]
        faults += [f"{budget}: {one.solver}: {fault}" for one in verdicts for fault in one.faults]
        faults += [f"{budget}: {line}" for line in contradictions(problem, verdicts)]
    assert not [fault for fault in faults if ": it took " not in fault]


def test_every_file_is_tried() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CASES)


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 90, 30))
def test_no_quick_solver_stumbles_over_odd_graphs(first: int) -> None:
    """benchmarks/fuzz.py has the patience for all solvers and many more."""
    faults: list[str] = []
    for seed in range(first, first + 30):
        try:
            problem = odd_problem(Random(seed))
        except InputError:  # beyond what readers take
            continue
        for solver in ("chen-sqrt", "revolve", "rotor", "rk-rotor", "joint", "l2l"):
            one = verdict(solver, problem, 0.2, bound_seconds=0.0)
            faults += [f"seed {seed}: {solver}: {fault}" for fault in one.faults]
    assert not faults


def test_updates_move_unless_others_depend_on_them() -> None:
    """Of two updates of a weight with a reader between, the second alone may run whenever it can."""
    graph = training(2, 3, update="end")
    updates = [o for o, phase in enumerate(graph.operations.phase) if phase == Phase.UPDATE]
    assert Drops(graph).movable == set(updates)
    changed = load_graph(FOLDER / "nothing-but-an-update.json")
    drops = Drops(changed)
    assert [run for run, _mode in drops.runs] == [0]


def test_not_found_names_the_smallest_budget_that_was() -> None:
    graph = training(3, 1, skip=0.4)
    budget = (minimum_memory(graph) * 9 + baseline(graph).peak) // 10
    with pytest.raises(NotFoundError) as caught:
        registry.solve("search", Problem(graph, minimum_memory(graph)), 0.02, bound_seconds=0)
    assert caught.value.found is None or caught.value.found > minimum_memory(graph)
    refusal = NotFoundError("search", budget, 5, 12_345)
    assert re.search(r"the smallest budget found is 12,345 B", str(refusal))


def test_a_host_that_is_too_small_leaves_what_needs_none() -> None:
    """The plain schedule fits, though one operation is faster in a mode: joint does not lose it."""
    graph = training(2, 3, update="end")
    machine = Machine(host_capacity=0, links=Links(1e9, 1e9))
    problem = Problem(graph, baseline(graph).peak, machine)
    assert verdict("joint", problem, 0.3, bound_seconds=0).outcome == "ok"
