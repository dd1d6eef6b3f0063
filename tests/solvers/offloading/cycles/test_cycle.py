"""A cycle of runs and its offload intervals: by definition, run by run."""

from __future__ import annotations

from random import Random

import pytest
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.solvers.offloading.cycles.cycle import FROZEN, Cycle, cycle_of
from memplan.solvers.problem import Problem
from weights_only import weights_only


def cycle(number: int) -> Cycle:
    random = Random(number)
    layers = random.randint(2, 6)
    graph = weights_only(
        random, layers, frozen=random.choice((0.0, 0.5)), tied=layers > 2 and number % 3 == 0
    )
    machine = Machine(links=Links(d2h=random.choice((1, 2)), h2d=random.choice((1, 3))))
    return cycle_of("test", Problem(graph, baseline(graph).peak, machine))


def between(cycle: Cycle, after: int, before: int) -> list[int]:
    """Runs after one, up to another one, around the iteration's end if that comes no later."""
    runs, run = list[int](), (after + 1) % cycle.runs
    while run != before:
        runs.append(run)
        run = (run + 1) % cycle.runs
    return runs


@pytest.mark.parametrize("number", range(12))
def test_intervals_are_all_stretches_between_two_uses(number: int) -> None:
    found = cycle(number)
    wanted = list[tuple[int, int, int]]()
    for weight, uses in enumerate(found.uses):
        for use in uses:
            following = next(
                r % found.runs for r in range(use + 1, use + 1 + found.runs) if r % found.runs in uses
            )
            if between(found, use, following):
                wanted.append((weight, use, following))
    assert [interval[:3] for interval in found.intervals] == wanted
    for interval in found.intervals:
        runs = between(found, interval.after, interval.before)
        assert [run for stretch in found.covered(interval) for run in stretch] == (
            runs
            if interval.after < interval.before
            else sorted(runs, key=lambda run: (run < interval.before, run))
        )


@pytest.mark.parametrize("number", range(12))
def test_a_version_is_of_the_last_change_before_the_interval(number: int) -> None:
    """Backwards from the interval's start, around the iteration's beginning."""
    found = cycle(number)
    for interval in found.intervals:
        changes = {
            run: version
            for version, (weight, run) in enumerate(found.changed_by)
            if weight == interval.weight
        }
        back = ((interval.after - step) % found.runs for step in range(found.runs))
        assert interval.version == next((changes[run] for run in back if run in changes), FROZEN)


@pytest.mark.parametrize("number", range(12))
def test_bytes_and_seconds_are_sums_over_the_runs_between(number: int) -> None:
    found = cycle(number)
    random = Random(number)
    for interval, seconds in zip(found.intervals, found.covered_seconds, strict=True):
        runs = between(found, interval.after, interval.before)
        assert seconds == pytest.approx(sum(found.seconds[run] for run in runs))
    chosen = random.sample(range(len(found.intervals)), random.randint(0, len(found.intervals)))
    gone = [
        sum(
            found.sizes[found.intervals[each].weight]
            for each in chosen
            if run in between(found, found.intervals[each].after, found.intervals[each].before)
        )
        for run in range(found.runs)
    ]
    assert found.offloaded(chosen) == gone
    used = [sum(found.sizes[weight] for weight in weights) for weights in found.used_by]
    # With all intervals chosen a weight is there only during the runs that use it.
    assert found.least_budget == max(need + own for need, own in zip(found.need, used, strict=True))
    never_used = sum(int(found.graph.tensors.bytes[x]) for x in found.unused)
    assert found.plain_peak == max(found.idle, *found.need) + sum(found.sizes) + never_used
