"""Rk-Rotor's table against the recursion as printed, its options against the simulator; Rockmate above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.candidates import simulate_candidate
from memplan.solvers.chains.costs import advance_needs
from memplan.solvers.chains.least import LeastMemory
from memplan.solvers.chains.options import OptionCosts, OptionMove
from memplan.solvers.chains.runs import Pass
from memplan.solvers.chains.table import ChainTable
from memplan.solvers.milp.result import Settings
from memplan.solvers.problem import InfeasibleError, Options, Problem, Status
from memplan.solvers.recomputation.blocks import kinds as rockmate_options
from memplan.solvers.recomputation.blocks.greedy import greedy_options
from memplan.solvers.recomputation.blocks.kinds import BlockOptions
from memplan.solvers.recomputation.checkpointing import rotor
from memplan.solvers.recomputation.rockmate import rk_rotor, rockmate
from memplan.solvers.recomputation.rockmate.costs import BlockOptionCosts, sequence
from memplan.solvers.recomputation.rockmate.rk_rotor import ChainSearch
from memplan.solvers.registry import run as registry
from random_chains import random_costs
from training_graphs import training


def time_of(solver: Any, graph: Graph, budget: int, **settings: Any) -> float:
    """Seconds; ∞ where it finds the budget too small."""
    try:
        found = solver.solve(Problem(graph, budget), Options(settings=solver.Settings(**settings)))
    except InfeasibleError:
        return inf
    return simulate(graph, found.schedule, budget=budget).figures.time


def budgets(graph: Graph) -> list[int]:
    low, high = minimum_memory(graph), baseline(graph).peak
    return sorted({low + (high - low) * step // 4 for step in range(1, 4)})


def random_options(blocks: int, random: Random) -> OptionCosts:
    """Sizes of a few bytes, not always consistent with each other; options of up to three blocks."""
    counts = [random.randint(1, 4) for _ in range(blocks)]
    lasts = list[int]()
    for first, count in enumerate(counts):
        lasts += [first, *(min(blocks - 1, first + random.randint(0, 2)) for _ in range(count - 1))]
    columns = [np.array([random.randint(1, 9) for _ in lasts]) for _ in range(6)]
    both, turn = (column.astype(np.float64) for column in columns[:2])
    start = np.cumsum([0, *counts])
    return OptionCosts(random_costs(blocks, random), start, np.array(lasts), both, turn, *columns[2:])


def options_of(costs: OptionCosts, block: int) -> range:
    return range(int(costs.start[block]), int(costs.start[block + 1]))


@pytest.mark.sampled(37)
@pytest.mark.parametrize("seed", range(60))
def test_the_table_is_the_recursion(seed: int) -> None:
    random = Random(seed)
    blocks = random.randint(1, 6)
    costs = random_options(blocks, random)
    chained, table = costs.chain, ChainTable(costs, 40, 1)

    @cache
    def least(s: int, t: int, m: int) -> float:
        passing = int(chained.gradient_bytes[t])
        best = inf
        for o in options_of(costs, s):
            e = int(costs.last[o])
            forward = costs.turn_peak[o] if e == t else costs.forward_peak[o]
            if e > t or m < max(passing + forward, costs.backward_peak[o]):
                continue
            if e == t:
                best = min(best, float(costs.turn[o]))
            elif m >= costs.saved[o]:
                best = min(best, float(costs.both[o]) + least(e + 1, t, m - int(costs.saved[o])))
        if m >= advance_needs(chained, t)[s]:
            for i in range(s + 1, t + 1):
                if m >= chained.input_bytes[i]:
                    advance = float(chained.advance_seconds[s:i].sum())
                    rest = least(i, t, m - int(chained.input_bytes[i])) + least(s, i - 1, m)
                    best = min(best, advance + rest)
        return best

    expected = [least(0, blocks - 1, m) for m in range(41)]
    assert table.times().tolist() == pytest.approx(expected, rel=1e-12)
    enough = [m for m, time in enumerate(expected) if time < inf]
    assert LeastMemory(costs).bytes == (enough[0] if enough else LeastMemory(costs).bytes)
    for m in enough:
        assert seconds_of(costs, table.moves(m)) == pytest.approx(expected[m], rel=1e-12)


def seconds_of(costs: OptionCosts, moves: Iterator[OptionMove]) -> float:
    total, listed = 0.0, list(moves)
    for (kind, block, option), following in zip(listed, [*listed[1:], None], strict=True):
        if kind == Pass.ADVANCE:
            total += float(costs.chain.advance_seconds[block])
        elif kind == Pass.SAVE:
            at_once = following == (Pass.BACKWARD, block, option)
            total += float(costs.turn[option] if at_once else costs.both[option])
    return total


def all_moves(search: ChainSearch, costs: BlockOptionCosts) -> Iterator[list[OptionMove]]:
    """Every persistent sequence with every choice of options."""

    def part(s: int, t: int) -> Iterator[list[OptionMove]]:
        for o in options_of(costs.costs, s):
            e = int(costs.costs.last[o])
            for inner in part(e + 1, t) if e < t else [[]] if e == t else []:
                yield [(Pass.SAVE, s, o), *inner, (Pass.BACKWARD, s, o)]
        for i in range(s + 1, t + 1):
            for right in part(i, t):
                for left in part(s, i - 1):
                    yield [*((Pass.ADVANCE, k, 0) for k in range(s, i)), *right, *left]

    return part(0, search.chained.blocks - 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_options_is_faster(seed: int) -> None:
    graph = chain(3, seed=seed, parameters=seed % 2 == 0, fast_forward=seed % 3 > 0)
    for budget in budgets(graph):
        search = ChainSearch("rk-rotor", Problem(graph, budget), Options(), 10)
        costs = search.costs([greedy_options(kind, 100, lambda: True) for kind in search.kinds()])
        best = inf
        for moves in all_moves(search, costs):
            runs = sequence(search.chained.chain, search.chained.runs, costs, moves)
            candidate = simulate_candidate(graph, schedule_of(graph, runs))
            if candidate.peak <= budget:
                best = min(best, candidate.time)
        assert time_of(rk_rotor, graph, budget, slots=5000) <= best * (1 + 1e-12)


MODELS = [
    training(layers, seed, update=update)
    for seed, (layers, update) in enumerate(
        (layers, update) for layers in (2, 4, 6) for update in ("none", "end", "early")
    )
]
CHAINS = [chain(6, seed=seed, fast_forward=seed % 3 > 0) for seed in range(6)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("graph", [*MODELS, *CHAINS], ids=lambda graph: graph.name)
def test_rk_rotor_is_never_above_rotor(graph: Graph) -> None:
    for budget in budgets(graph):
        assert time_of(rk_rotor, graph, budget) <= time_of(rotor, graph, budget)


@pytest.mark.parametrize("graph", [*MODELS[:3], *CHAINS[:3]], ids=lambda graph: graph.name)
def test_rockmate_is_never_above_rotor(graph: Graph) -> None:
    budget = budgets(graph)[1]
    found = time_of(rockmate, graph, budget, peaks=2, saves=2, seconds=2.0)
    assert found <= time_of(rotor, graph, budget)
    assert found <= time_of(rk_rotor, graph, budget)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("graph", CHAINS[:4], ids=lambda graph: graph.name)
def test_options_of_the_grid_alone(graph: Graph) -> None:
    """One that keeps all, and one a pair of budgets at most; finer grids, or more options, lose nothing."""
    budget = budgets(graph)[1]
    grid = rockmate.Settings(options="grid", peaks=2, saves=2)
    search = ChainSearch("rockmate", Problem(graph, budget), Options(), 120)
    rounds = rockmate._Rockmate(search, grid)  # pyright: ignore[reportPrivateUsage]
    rounds.run()
    assert any(kind.asked for kind in rounds.kinds)
    for kind in rounds.kinds:
        assert len(kind.options) <= 1 + len(kind.asked) <= 5
    few, fine, everything = (
        time_of(rockmate, graph, budget, options=options, peaks=peaks, saves=peaks, gap=0.0)
        for options, peaks in (("grid", 2), ("grid", 4), ("all", 4))
    )
    assert everything <= fine <= few


def test_blocks_that_are_alike_are_one_kind() -> None:
    """A chain twice as long has no more kinds of blocks, and layers with noise in their times are alike."""
    counts: list[int] = []
    for blocks in (8, 16):
        graph = chain(blocks, uniform=True, parameters=False)
        graph.operations.time[:] *= np.linspace(1, 1.1, len(graph.operations))
        search = ChainSearch("rockmate", Problem(graph, budgets(graph)[0]), Options(), 20)
        single = [group for group in search.identical if search.segments[group[0]].first == group[0]]
        assert max(map(len, search.identical)) >= blocks - 3
        counts.append(len(single))
    assert counts[0] == counts[1] <= 4


def test_no_kind_is_solved_twice_for_the_same_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    original = BlockOptions.solve

    def counted(kind: BlockOptions, peak: int, saved: int, settings: Settings, seconds: float) -> None:
        asked.append((id(kind), peak, saved))
        original(kind, peak, saved, settings, seconds)

    monkeypatch.setattr(BlockOptions, "solve", counted)
    monkeypatch.setattr(rockmate_options, "FEWEST_OPERATIONS", 2)
    graph = chain(12, uniform=True, parameters=False)
    time_of(rockmate, graph, budgets(graph)[0], peaks=2, saves=2, seconds=2.0)
    assert asked
    assert len(asked) == len(set(asked))
    assert len({kind for kind, _peak, _saved in asked}) < 12


def test_budgets_of_a_block_are_kept_and_its_option_is_the_fastest() -> None:
    graph = training(4, 1)
    search = ChainSearch("rockmate", Problem(graph, baseline(graph).peak), Options(), 20)
    solved = 0
    for identical in search.kinds():
        kind = BlockOptions(identical, 200, lambda: True)
        if not 4 <= len(identical[0].members) <= 30:
            continue
        (low, high), (least, most) = kind.peaks, kind.saves
        for peak, saved in ((high, (least + most) // 2), ((low + high) // 2, most)):
            if not kind.is_open(peak, min(peak, saved), 1e-6):
                continue
            kind.solve(peak, min(peak, saved), Settings(), 5.0)
            solved += 1
            if kind.bounds[-1][2] < inf:
                assert not kind.is_open(peak, min(peak, saved), 1e-5)
    assert solved


def test_a_block_with_faster_variants_is_open_though_its_first_option_recomputes_nothing() -> None:
    """Each backward operation has a variant twice as fast: a program finds them at the largest budgets."""
    graph = training(4, 1)
    columns = graph.operations
    modes = {
        o: (Mode("fast", row.time / 2, row.workspace, row.writes),)
        for o in range(len(columns))
        if (row := graph.operation(o)).phase == Phase.BACKWARD and row.writes
    }
    graph = replace(graph, operations=replace(columns, modes=modes)).share_structure(graph)
    search = ChainSearch("rockmate", Problem(graph, baseline(graph).peak), Options(), 20)
    kinds = [BlockOptions(identical, 200, lambda: True) for identical in search.kinds()]
    kind = next(kind for kind in kinds if 4 <= len(kind.block.members) <= 30)
    budgets = kind.peaks[1], kind.peaks[1]
    assert kind.is_open(*budgets, 1e-6)
    kind.solve(*budgets, Settings(), 5.0)
    # Times are means over identical blocks.
    saved = sum(s / 2 for o, s in zip(kind.block.members, kind.seconds, strict=True) if o in modes)
    assert kind.known[-1].seconds == pytest.approx(kind.known[0].seconds - saved)
    assert not kind.is_open(*budgets, 1e-6)


def test_a_time_limit_ends_the_search() -> None:
    graph = chain(40, seed=1)
    found = rockmate.solve(Problem(graph, budgets(graph)[0]), Options(time_limit=2.0))
    simulate(graph, found.schedule, budget=budgets(graph)[0])
    assert found.status in (Status.FEASIBLE, Status.HEURISTIC)
    at_once = rockmate.solve(Problem(graph, budgets(graph)[0]), Options(time_limit=0.0))
    assert at_once.status == Status.FEASIBLE


@pytest.mark.parametrize(
    ("solver", "setting", "fault"),
    [
        ("rk-rotor", "slots=0", "slots must be 1 or more, not 0"),
        ("rk-rotor", "tries=0", "tries must be 1 or more, not 0"),
        ("rockmate", "peaks=0", "peaks must be 1 or more, not 0"),
        ("rockmate", "options=some", "options must be all or grid, not 'some'"),
        ("rockmate", "seconds=0", "seconds must be above 0, not 0"),
    ],
)
def test_settings_that_make_no_sense(solver: str, setting: str, fault: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(InputError, match=f"{solver}: {fault}"):
        registry.chosen_settings(solver, {key: value})


def with_light_variants(random: Random) -> Graph:
    """A chain whose operations have variants that leave out what other blocks read, or what random ones
    read.
    """
    draft, layers = Draft("light ways"), random.randint(3, 7)
    shared = [draft.tensor(f"b{k}", random.randint(1, 20)) for k in range(random.randint(1, 2))]
    outputs = [draft.tensor(f"a{k}", random.choice((50, 100, 150))) for k in range(layers)]
    producers = {random.randrange(0, 2): x for x in shared}
    for k, output in enumerate(outputs):
        reads = outputs[k - 1 : k] if k else []
        reads += [x for layer, x in producers.items() if layer < k]
        writes = [output, *([producers[k]] if k in producers else [])]
        spare = draft.tensor(f"c{k}", random.randint(1, 30)) if random.random() < 0.5 else None
        writes += [] if spare is None else [spare]
        variants = [tuple(writes[: 1 + cut]) for cut in range(len(writes) - 1)]
        modes = tuple(
            Mode(f"short{k}", random.uniform(0.1, 1.0), 0, variant) for k, variant in enumerate(variants)
        )
        draft.operation(f"F{k}", time=random.choice((1, 10)), reads=reads, writes=writes, modes=modes)
        if spare is not None:
            mark = draft.tensor(f"m{k}", 1)
            draft.operation(f"R{k}", time=1, reads=[spare], writes=[mark], random=True)
    loss = draft.tensor("l", 4)
    draft.operation("loss", phase=Phase.LOSS, time=0, reads=[outputs[-1]], writes=[loss], recompute=False)
    gradient: list[int] = []
    for k in reversed(range(layers)):
        reads = [*gradient, outputs[k], *(outputs[k - 1 : k] if k else [])]
        reads += [x for layer, x in producers.items() if layer < k]
        gradient = [draft.tensor(f"g{k}", 100, Kind.GRADIENT)]
        draft.operation(f"B{k}", phase=Phase.BACKWARD, time=2, reads=reads, writes=gradient)
    return draft.graph([loss, *gradient])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_ways_that_leave_out_what_only_the_first_pass_needs(seed: int) -> None:
    """What all blocks read is made in the first pass, whatever way is the fastest later."""
    graph = with_light_variants(Random(seed))
    low, high = minimum_memory(graph), baseline(graph).peak
    for share in (0.3, 0.6, 0.9):
        budget = int(low + share * (high - low))
        try:
            notes = registry.solve("rockmate", Problem(graph, budget), 0.7, bound_seconds=0.0).notes
        except InfeasibleError as refusal:
            notes = refusal.notes
        assert not notes
