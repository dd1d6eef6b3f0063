"""Breakdowns of random schedules: by a walk over the steps, and by the simulator's curve."""

from __future__ import annotations

from random import Random

import pytest
from memplan.cli.printing.breakdown import collectives, launches, peak, phases, recomputed, transfers
from memplan.graphs.graph import Kind, Phase
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from strategies import Case, random_case


def valid_cases(count: int) -> list[Case]:
    found, seed = list[Case](), 0
    while len(found) < count:
        case = random_case(Random(seed))
        seed += 1
        try:
            simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        except InvalidScheduleError:
            continue
        found.append(case)
    return found


CASES = valid_cases(25)


def test_the_cases_recompute_and_transfer() -> None:
    assert sum(bool(recomputed(case.graph, case.schedule)) for case in CASES) > 2
    assert (
        sum(any(row["steps"] for row in transfers(case.graph, case.schedule).values()) for case in CASES) > 2
    )


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_time_is_that_of_the_runs(case: Case) -> None:
    graph, runs = case.graph, dict[int, list[float]]()
    on_device = launching = 0.0
    for verb, target, where in case.schedule.rows():
        if verb == Verb.COMPUTE:
            runs.setdefault(target, []).append(graph.seconds(target, where))
            launching += graph.launch(target, where)
            on_device += 0.0 if graph.on_host(target, where) else graph.seconds(target, where)
    wanted = []
    for phase in Phase:
        members = [o for o in range(len(graph.operations)) if graph.operations.phase[o] == phase]
        if members:
            seconds = [runs.get(o, []) for o in members]
            wanted.append(
                {
                    "phase": phase.word,
                    "operations": len(members),
                    "runs": sum(map(len, seconds)),
                    "time": pytest.approx(sum(map(sum, seconds))),
                    "recompute_seconds": pytest.approx(sum(sum(each[1:]) for each in seconds)),
                }
            )
    assert phases(graph, case.schedule) == wanted
    assert launches(graph, case.schedule) == (pytest.approx(on_device), pytest.approx(launching))
    rows = recomputed(graph, case.schedule)
    repeated = {graph.operations.name[o]: each for o, each in runs.items() if len(each) > 1}
    assert {row["operation"]: row["runs"] for row in rows} == {
        name: len(each) for name, each in repeated.items()
    }
    for row in rows:
        assert row["recompute_seconds"] == pytest.approx(sum(repeated[row["operation"]][1:]))
    seconds = [row["recompute_seconds"] for row in rows]
    assert seconds == sorted(seconds, reverse=True)
    comm = [each for o, each in runs.items() if o in graph.operations.comm]
    found = collectives(graph, case.schedule)
    assert found == {"steps": sum(map(len, comm)), "time": pytest.approx(sum(map(sum, comm)))}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_bytes_are_those_of_the_copies(case: Case) -> None:
    graph, sizes = case.graph, case.graph.tensors.bytes.tolist()
    found = transfers(graph, case.schedule)
    for verb, spread, name in (
        (Verb.OFFLOAD, False, "offloads"),
        (Verb.PREFETCH, False, "prefetches"),
        (Verb.PREFETCH, True, "gathers"),
        (Verb.OFFLOAD, True, "scatters"),
    ):
        moved = [
            sizes[target]
            for kind, target, _where in case.schedule.rows()
            if kind == verb and (target in graph.tensors.spread) == spread
        ]
        if name in found:
            assert found[name] == {"steps": len(moved), "bytes": sum(moved)}
        else:
            assert not moved


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_peak_is_the_simulators(case: Case) -> None:
    graph = case.graph
    curve = simulate(graph, case.schedule, budget=case.budget, machine=case.machine).device_curve
    rows = lifetimes(graph, case.schedule, budget=case.budget, machine=case.machine)
    found = peak(graph, case.schedule, rows)
    assert found["bytes"] == curve.max()
    assert found["step"] == curve.argmax()
    verb, target, _where = list(case.schedule.rows())[found["step"]]
    names = graph.operations.name if verb == Verb.COMPUTE else graph.tensors.name
    assert found["what"] == f"{Verb(verb).word} {names[target]}"
    tensors = found["tensors"]
    assert sum(row["bytes"] for row in tensors) + found["other"] == found["bytes"]
    assert [row["bytes"] for row in tensors] == sorted((row["bytes"] for row in tensors), reverse=True)
    for kind in Kind:
        of_kind = [row["bytes"] for row in tensors if row["kind"] == kind.word]
        assert found["by_kind"].get(kind.word, None) == (sum(of_kind) if of_kind else None)
    for row in tensors:
        x = graph.tensor_index[row["tensor"]]
        assert (row["kind"], row["bytes"]) == (graph.tensor(x).kind.word, graph.tensors.bytes[x])
