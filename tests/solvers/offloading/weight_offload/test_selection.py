"""Algorithm 1 against itself, written as the paper has it: sums over operations, one interval at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.links import worth_moving
from memplan.solvers.offloading.cycles.cycle import FROZEN, Cycle, cycle_of
from memplan.solvers.offloading.weight_offload.selection import SelectionRule, chosen_intervals, moved_bytes
from memplan.solvers.problem import Problem
from weights_only import weights_only


def random_cycle(number: int) -> Cycle:
    random = Random(number)
    layers = random.randint(2, 7)
    graph = weights_only(
        random, layers, frozen=random.choice((0.0, 0.4)), tied=layers > 2 and number % 3 == 0
    )
    slow = Link(rate=1.0, latency=random.choice((0.0, 1.5)))
    machine = Machine(links=Links(d2h=slow, h2d=random.choice((1, 3))))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return cycle_of("test", Problem(graph, low + round((high - low) * random.random()), machine))


def by_the_paper(cycle: Cycle, rule: SelectionRule, most_sizes: int = 16) -> list[int] | None:
    operation, of_run = 0, [0]
    for run in range(1, cycle.runs):
        operation += cycle.used_by[run] != cycle.used_by[run - 1]
        of_run.append(operation)
    excess = [0.0] * (operation + 1)
    for run, weights in enumerate(cycle.used_by):
        own = sum(cycle.sizes[weight] for weight in weights)
        needed = cycle.need[run] + sum(cycle.sizes) + rule.spare * own - cycle.limit
        excess[of_run[run]] = max(excess[of_run[run]], needed)
    sizes = [cycle.sizes[interval.weight] for interval in cycle.intervals]
    assert len({*sizes}) <= most_sizes
    chosen = list[int]()
    while max(excess) > 0:
        best = list[tuple[bool, float, int]]()
        for number, interval in enumerate(cycle.intervals):
            if number in chosen:
                continue
            covered = spanned(of_run, interval.after, interval.before)
            sibling = rule.discount and any(
                cycle.intervals[each].version == interval.version for each in chosen
            )
            moved = sizes[number] * (1 if sibling or interval.version == FROZEN else 2)
            profit = sum(min(excess[each], sizes[number]) for each in covered) / moved
            copies = cycle.prefetch_seconds[interval.weight]
            copies += cycle.offload_seconds[interval.weight] * (interval.version != FROZEN)
            late = sizes[number] < worth_moving(cycle.machine)
            late |= rule.patient and cycle.covered_seconds[number] < copies
            best.append((not late, profit, -number))
        best = [each for each in best if each[1] > 0]
        if not best:
            return None
        number = -max(best)[2]
        chosen.append(number)
        for each in spanned(of_run, cycle.intervals[number].after, cycle.intervals[number].before):
            excess[each] = max(0.0, excess[each] - sizes[number])
    return chosen


def spanned(of_run: list[int], after: int, before: int) -> list[int]:
    """Operations between two uses, around the iteration's end if the second comes no later."""
    if after < before:
        return [*range(of_run[after] + 1, of_run[before])]
    return [*range(of_run[before]), *range(of_run[after] + 1, of_run[-1] + 1)]


@pytest.mark.parametrize("number", range(20))
def test_it_chooses_what_the_paper_chooses(number: int) -> None:
    cycle = random_cycle(number)
    for spare, patient, discount in product((0.0, 0.5, 1.0), (False, True), (False, True)):
        rule = SelectionRule(spare, patient, discount)
        found = chosen_intervals(cycle, rule)
        assert found == by_the_paper(cycle, rule)
        weights = {cycle.intervals[each].weight for each in found or ()}
        assert moved_bytes(cycle, found or ()) == sum(cycle.sizes[weight] for weight in weights)


def test_many_sizes_are_put_into_classes_that_never_overstate() -> None:
    """More than 16 sizes: what is chosen still suffices, run by run."""
    random = Random(3)
    graph = weights_only(random, 40)
    cycle = cycle_of("test", Problem(graph, baseline(graph).peak, Machine(links=Links(d2h=50, h2d=50))))
    sizes = [100 + 7 * weight for weight in range(len(cycle.sizes))]
    cycle = replace(cycle, sizes=sizes)
    cycle = replace(cycle, limit=max(cycle.need) + sum(sizes) // 2)
    chosen = chosen_intervals(cycle, SelectionRule(0.0))
    assert chosen is not None
    assert len(chosen) == len({*chosen})
    offloaded = cycle.offloaded(chosen)
    assert all(
        need + sum(sizes) - gone <= cycle.limit for need, gone in zip(cycle.need, offloaded, strict=True)
    )


def test_a_cycle_without_intervals_suffices_or_not() -> None:
    cycle = replace(random_cycle(0), intervals=())
    assert chosen_intervals(replace(cycle, limit=2**40), SelectionRule()) == []
    assert chosen_intervals(replace(cycle, limit=0), SelectionRule()) is None
